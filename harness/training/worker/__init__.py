"""The child process that trains: the only code of this room that imports speculators and torch."""
