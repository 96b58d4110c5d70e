"""Experiments as frozen pydantic models, loaded from YAML and `--set`."""
