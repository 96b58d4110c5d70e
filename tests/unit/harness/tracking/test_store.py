"""The Store's contract, over the store in memory; MLflow's run of it is an integration test."""

from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.store_contract import StoreContract, weights

__all__ = ["weights"]


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> MemoryStore:
        return MemoryStore(tmp_path)
