"""Searches for drafters: points, trials as processes, pruning, survivors in vLLM. Optuna's door."""
