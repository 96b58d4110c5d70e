"""The Store's contract over MLflow on SQLite, on PostgreSQL, and through an HTTP server."""

import pytest
from fakes.store_contract import StoreContract, weights

from harness.settings import Settings
from harness.tracking.store import Store, open_store

__all__ = ["weights"]


class TestSqlite(StoreContract):
    """Every promise, on a copy of a migrated database."""


class TestPostgresql(StoreContract):
    """Every promise, on a database of its own for each test."""

    @pytest.fixture
    def store(self, postgres_settings: Settings) -> Store:
        return open_store(postgres_settings)


class TestServer(StoreContract):
    """Every promise through the MLflow server with basic auth, artifacts included."""

    @pytest.fixture
    def store(self, server_settings: Settings) -> Store:
        return open_store(server_settings)
