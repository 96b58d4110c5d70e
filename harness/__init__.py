"""harness: the training of speculative-decoding drafters, turned into evidence."""

__version__ = "0.1.0"
