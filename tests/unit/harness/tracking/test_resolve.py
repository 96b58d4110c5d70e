import shutil
from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter
from fakes.trained import train

from harness.errors import CheckError, ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import Checkpoint
from harness.tracking.resolve import (
    best_checkpoint,
    recognise,
    require_unchanged,
    resolve_drafter,
)


@pytest.fixture
def run_id(store: MemoryStore, settings: Settings) -> str:
    return train(store, settings)[0]


def epoch_of(reference: str, settings: Settings, store: MemoryStore) -> int | None:
    checkpoint = resolve_drafter(reference, settings, store).checkpoint
    assert checkpoint is not None
    return checkpoint.epoch


def test_a_path_needs_no_store(settings: Settings, tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path / "drafter")
    found = resolve_drafter(str(folder), settings)
    assert (found.path, found.run_id, found.digest) == (folder, None, None)


def test_the_path_of_a_checkpoint_is_recognised(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    checkpoint = store.checkpoints(run_id)[1]
    reference = str(checkpoint.path)
    found = recognise(resolve_drafter(reference, settings), settings, store)
    assert found.reference == reference
    assert (found.run_id, found.model_id) == (run_id, checkpoint.model_id)
    assert found.digest == checkpoint.digest


def test_a_folder_of_no_run_stays_unknown(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    copies = (tmp_path / "copy", settings.checkpoints_dir / ("0" * 32) / "0")
    for copy in copies:
        shutil.copytree(store.checkpoints(run_id)[0].path, copy)
        found = recognise(resolve_drafter(str(copy), settings), settings, store)
        assert (found.run_id, found.digest) == (None, None)


@pytest.mark.parametrize(
    ("suffix", "epoch"), [("", 1), ("@best", 1), ("@last", 1), ("@0", 0), ("@1", 1), ("@10", 0)]
)
def test_a_run_by_best_epoch_or_step(
    store: MemoryStore, settings: Settings, run_id: str, suffix: str, epoch: int
) -> None:
    assert epoch_of(f"run:{run_id}{suffix}", settings, store) == epoch


def test_an_epoch_wins_over_a_step_of_the_same_number(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    first, second = store.checkpoints(run_id)
    store.models[first.model_id] = first.model_copy(update={"step": 1})
    assert epoch_of(f"run:{run_id}@1", settings, store) == second.epoch


def ranked(*figures: dict[str, float]) -> list[Checkpoint]:
    return [
        Checkpoint(
            model_id=f"m-{step}",
            run_id="",
            name="",
            path=Path(),
            step=step,
            epoch=None,
            digest="",
            num_bytes=0,
            is_uploaded=False,
            params={},
            tags={},
            metrics=metrics,
        )
        for step, metrics in enumerate(figures)
    ]


ACCEPTANCE, LOSS = names.METRIC_VAL_ACCEPTANCE_LENGTH, names.METRIC_VAL_LOSS
ESTIMATE = names.METRIC_VAL_ESTIMATED_LENGTH


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        (({LOSS: 1.0}, {LOSS: 3.0}, {LOSS: 2.0}), 0),
        (({ACCEPTANCE: 1.5, LOSS: 1.0}, {ACCEPTANCE: 1.9, LOSS: 3.0}), 1),
        (({ACCEPTANCE: 1.5, LOSS: 1.0}, {LOSS: 0.5}), 1),
        (({ACCEPTANCE: 1.9, ESTIMATE: 1.5}, {ACCEPTANCE: 1.8, ESTIMATE: 2.5}), 0),
        (({ACCEPTANCE: 1.9, ESTIMATE: 1.5}, {ESTIMATE: 2.5}), 1),
        (({LOSS: 1.0}, {}), 1),
        (({}, {}, {}), 2),
    ],
)
def test_what_is_best_in_a_run(figures: tuple[dict[str, float], ...], best: int) -> None:
    assert best_checkpoint(ranked(*figures)).step == best


def test_models_by_alias_version_and_id(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    for checkpoint in store.checkpoints(run_id):
        store.registry.create_version("tiny", checkpoint, {})
    store.registry.set_alias("tiny", "champion", 1)
    assert epoch_of("models:/tiny@champion", settings, store) == 0
    assert epoch_of("models:/tiny/2", settings, store) == 1
    direct = store.checkpoints(run_id)[0].model_id
    assert epoch_of(f"models:/{direct}", settings, store) == 0


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("run:abc", "32 hex digits"),
        ("run:" + "0" * 32, "found none"),
        ("run:{run_id}@7", "epoch 0 (step 10), epoch 1 (step 20)"),
        ("run:{run_id}@x", "32 hex digits"),
        ("models:tiny@champion", "models:/<name>"),
        ("models:/other@champion", "no registered model 'other'; registered: tiny"),
        ("models:/tiny@champion", "versions: 1 (no alias)"),
        ("models:/tiny/9", "versions: 1 (no alias)"),
        ("models:/../x/1", "models:/<name>"),
        ("models:/m-" + "0" * 32, "found none"),
        ("/no/such/folder", "/no/such/folder"),
    ],
)
def test_references_that_lead_nowhere_say_what_there_is(
    store: MemoryStore, settings: Settings, run_id: str, reference: str, says: str
) -> None:
    store.registry.create_version("tiny", store.checkpoints(run_id)[0], {})
    with pytest.raises(ConfigError) as caught:
        resolve_drafter(reference.format(run_id=run_id), settings, store)
    assert says in caught.value.message


def test_a_run_by_the_beginning_of_its_id(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    whole = resolve_drafter(f"run:{run_id}", settings, store)
    assert resolve_drafter(f"run:{run_id[:8]}", settings, store) == whole


def test_the_beginning_of_no_run_is_refused(store: MemoryStore, settings: Settings) -> None:
    with pytest.raises(ConfigError, match="found none"):
        resolve_drafter("run:ffffffff", settings, store)


def test_a_run_without_checkpoints_says_so(store: MemoryStore, settings: Settings) -> None:
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    run.finish()
    with pytest.raises(ConfigError, match=r"with checkpoints, found none in 'train #1'"):
        resolve_drafter(f"run:{run.run_id}", settings, store)


def test_files_that_are_gone_are_taken_from_the_upload(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    checkpoint = store.checkpoints(run_id)[1]
    upload = settings.root_dir / "uploads" / checkpoint.model_id
    upload.parent.mkdir()
    shutil.move(checkpoint.path, upload)
    found = resolve_drafter(f"run:{run_id}", settings, store)
    assert found.path == upload
    assert require_unchanged(found, store) == checkpoint.digest


def test_files_that_are_gone_for_good_say_so(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    shutil.rmtree(store.checkpoints(run_id)[1].path)
    with pytest.raises(CheckError, match="are gone"):
        resolve_drafter(f"run:{run_id}", settings, store)


def test_one_flipped_byte_is_found_and_its_file_named(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    found = resolve_drafter(f"run:{run_id}", settings, store)
    assert require_unchanged(found, store) == found.digest
    weights = found.path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(CheckError, match=r"recorded: model\.safetensors in"):
        require_unchanged(found, store)


def test_a_file_put_beside_the_weights_is_found(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    found = resolve_drafter(f"run:{run_id}", settings, store)
    shutil.copyfile(found.path / "model.safetensors", found.path / "extra.safetensors")
    with pytest.raises(CheckError, match=r"extra\.safetensors"):
        require_unchanged(found, store)
