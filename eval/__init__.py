"""eval: measures drafters in vLLM.

Imports nothing of harness, mlflow or optuna, so that it can run inside vLLM's own environment.
"""
