"""The Store's contract over MLflow on SQLite."""

from fakes.store_contract import StoreContract, weights

__all__ = ["weights"]


class TestMlflowStore(StoreContract):
    """Every promise, on a copy of a migrated database."""
