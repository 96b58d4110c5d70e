"""Drafters and verifiers on disk: their facts, their checks, their conversion, their descent."""
