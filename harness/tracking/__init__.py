"""The MLflow store: runs, checkpoints, the registry and its decisions."""
