"""The only importer of mlflow: the store, its registry and its schema over MLflow's client."""
