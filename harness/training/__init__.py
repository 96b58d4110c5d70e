"""Training runs: the parent that owns the record, the child that runs speculators."""
