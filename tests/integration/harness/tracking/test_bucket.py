"""Artifacts and weights in an S3-style store, beside a database that no server stands before."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from fakes.store_contract import digest_of, log_checkpoint, weights
from moto.server import ThreadedMotoServer

from harness.errors import TrackingError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.store import Store, open_store

__all__ = ["weights"]
BUCKET = "drafters"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that speaks S3, with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {
        "MLFLOW_S3_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "word", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    yield client
    server.stop()


def open_with(settings: Settings, place: str) -> Store:
    return open_store(settings.model_copy(update={"artifact_root": place}))


def test_what_one_host_keeps_there_another_reads(
    settings: Settings, bucket: Any, weights: Path, tmp_path: Path
) -> None:
    store = open_with(settings, f"s3://{BUCKET}/team")
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        run.log_text("config/train.yaml", "lr: 1\n")
        digest, model_id = digest_of(weights), log_checkpoint(run, weights)
    keys = [found["Key"] for found in bucket.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert all(key.startswith("team/") for key in keys)
    assert any(key.endswith("train.yaml") for key in keys)
    assert not list(settings.mlruns_dir.rglob("train.yaml"))
    shutil.rmtree(weights)
    elsewhere = open_with(settings.model_copy(update={"root_dir": tmp_path / "other"}), "unused")
    assert elsewhere.read_text(run.run_id, "config/train.yaml") == "lr: 1\n"
    found = elsewhere.checkpoint_files(model_id)
    assert found
    assert digest_of(found).root == digest.root


def test_a_bucket_that_is_not_there_is_named(settings: Settings, bucket: Any) -> None:
    store = open_with(settings, "s3://nowhere")
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        with pytest.raises(TrackingError, match=r"bucket .*nowhere"):
            run.log_text("config/train.yaml", "lr: 1\n")
        assert bucket.list_buckets()["Buckets"]
