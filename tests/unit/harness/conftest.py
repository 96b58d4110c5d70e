"""A project in a temporary folder, with a store in memory."""

from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore

from harness.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(root_dir=tmp_path, tracking_uri="memory:", cache_dir=tmp_path / "cache")


@pytest.fixture
def store(settings: Settings) -> MemoryStore:
    return MemoryStore(settings.root_dir)
