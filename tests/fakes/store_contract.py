"""What every Store promises. A test module subclasses it and offers a fixture `store`."""

import math
from pathlib import Path

import pytest

from harness.digests import FolderDigest, digest_files
from harness.errors import ConfigError, TrackingError
from harness.tracking import names
from harness.tracking.records import Checkpoint, Metric, RunStatus
from harness.tracking.run import Run
from harness.tracking.store import Store

DIGEST = "ab" * 32


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder inside the project with the two files of a drafter."""
    folder = tmp_path / "checkpoints" / "0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    return folder


def digest_of(folder: Path) -> FolderDigest:
    return digest_files(folder, ["config.json", "model.safetensors"])


def start(store: Store, name: str = "train tiny") -> Run:
    return store.start_run(names.KIND_TRAIN, name, experiment=names.EXPERIMENT_TRAIN)


def log_checkpoint(run: Run, folder: Path, step: int = 1, upload: int = 10**6) -> str:
    return run.log_checkpoint(
        f"step-{step}",
        folder,
        step=step,
        epoch=step - 1,
        digest=digest_of(folder),
        params={"head_dim": 64},
        upload_below_bytes=upload,
    )


class StoreContract:
    """The promises."""

    def test_runs_of_one_name_are_numbered(self, store: Store) -> None:
        assert [start(store).name for _ in range(3)] == [f"train tiny #{n}" for n in (1, 2, 3)]
        assert start(store, "train tin").name == "train tin #1"

    def test_a_run_that_ends_well_is_finished(self, store: Store) -> None:
        with start(store) as run:
            assert store.get_run(run.run_id).status == RunStatus.RUNNING
        found = store.get_run(run.run_id)
        assert found.status == RunStatus.FINISHED
        assert found.end_ms is not None

    def test_nothing_is_printed(self, store: Store, capfd: pytest.CaptureFixture[str]) -> None:
        with start(store) as run:
            run.log_text("a.txt", "stdout belongs to the commands' documents")
        assert capfd.readouterr().out == ""

    @pytest.mark.parametrize(
        ("error", "status", "reason"),
        [
            (ValueError("no\nroom"), RunStatus.FAILED, "ValueError: no room"),
            (ConfigError("bad key"), RunStatus.FAILED, "bad key"),
            (KeyboardInterrupt(), RunStatus.KILLED, "interrupted"),
            (SystemExit(1), RunStatus.KILLED, "SystemExit: 1"),
        ],
    )
    def test_a_run_that_ends_badly_says_so(
        self, store: Store, error: BaseException, status: RunStatus, reason: str
    ) -> None:
        run = start(store)
        with pytest.raises(type(error)), run:
            raise error
        found = store.get_run(run.run_id)
        assert found.status == status
        assert found.tags[names.TAG_FAILURE] == reason

    def test_leaving_by_exit_zero_is_finished(self, store: Store) -> None:
        run = start(store)
        with pytest.raises(SystemExit), run:
            raise SystemExit(0)
        assert store.get_run(run.run_id).status == RunStatus.FINISHED

    def test_a_status_set_by_hand_stands(self, store: Store) -> None:
        with start(store) as run:
            run.finish(RunStatus.FAILED, reason="the worker died")
        found = store.get_run(run.run_id)
        assert found.status == RunStatus.FAILED
        assert found.tags[names.TAG_FAILURE] == "the worker died"

    def test_a_resumed_run_is_running_and_ours(self, store: Store) -> None:
        with start(store) as run:
            pass
        again = store.resume_run(run.run_id)
        assert store.get_run(run.run_id).status == RunStatus.RUNNING
        again.finish()
        assert store.get_run(run.run_id).status == RunStatus.FINISHED

    def test_numeric_params_are_mirrored_as_metrics(self, store: Store) -> None:
        with start(store) as run:
            run.log_params({"lr": 1e-3, "flag": True, "name": "x", "none": None, "ids": [2, 15]})
        found = store.get_run(run.run_id)
        assert found.params == {
            "lr": "0.001",
            "flag": "true",
            "name": "x",
            "none": "none",
            "ids": "[2, 15]",
        }
        assert found.metrics == {"hp/lr": 1e-3}

    def test_a_param_may_be_said_again_but_not_changed(self, store: Store) -> None:
        with start(store) as run:
            run.log_params({"lr": 1})
            run.log_params({"lr": 1})
            with pytest.raises(TrackingError):
                run.log_params({"lr": 2})

    def test_a_long_param_is_kept_whole(self, store: Store) -> None:
        text = "x" * 20_000
        with start(store) as run:
            run.log_params({"prompt": text})
        found = store.get_run(run.run_id)
        assert len(found.params["prompt"]) < 200
        assert len(found.tags["param.prompt.sha256"]) == 64
        assert store.read_text(run.run_id, "params/prompt.txt") == text

    def test_hundreds_of_params_and_tags_fit(self, store: Store) -> None:
        with start(store) as run:
            run.log_params({f"p{n}": "v" * 5000 for n in range(250)})
            run.set_tags({f"t{n}": n for n in range(250)})
        found = store.get_run(run.run_id)
        assert len(found.params) == 250
        assert found.tags["t249"] == "249"

    def test_keys_that_mlflow_refuses_are_spelled_differently(self, store: Store) -> None:
        with start(store) as run:
            run.log_params({"drafters[0].path": "x"})
            run.log_metrics([Metric("acc@1", 0.5)])
        found = store.get_run(run.run_id)
        assert found.params == {"drafters_0_.path": "x"}
        assert found.metrics == {"acc_1": 0.5}

    def test_nonfinite_metrics_become_tags(self, store: Store) -> None:
        with start(store) as run:
            run.log_metrics(
                [Metric("loss", 2.0, 1), Metric("loss", math.nan, 2), Metric("gap", math.inf, 3)]
            )
        found = store.get_run(run.run_id)
        assert found.metrics == {"loss": 2.0}
        assert found.tags["metric.loss.nonfinite"] == "nan at step 2"
        assert found.tags["metric.gap.nonfinite"] == "inf at step 3"

    def test_thousands_of_points_in_one_call(self, store: Store) -> None:
        with start(store) as run:
            run.log_metrics([Metric("loss", 1 / (step + 1), step) for step in range(2500)])
        assert store.get_run(run.run_id).metrics == {"loss": 1 / 2500}

    def test_a_tag_too_long_is_cut_and_says_so(self, store: Store) -> None:
        with start(store) as run:
            run.set_description("y" * 9000)
        text = store.get_run(run.run_id).tags[names.TAG_DESCRIPTION]
        assert text.endswith("[cut, 9000 characters]")
        assert len(text) == 8000

    def test_text_artifacts_are_read_back(self, store: Store) -> None:
        with start(store) as run:
            run.log_text("config/train.yaml", "lr: 1\n")
        assert store.read_text(run.run_id, "config/train.yaml") == "lr: 1\n"
        assert store.read_text(run.run_id, "config/other.yaml") is None
        assert store.read_text(run.run_id, "nothing") is None

    def test_files_are_stored(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "train.log"
        path.write_text("line")
        with start(store) as run:
            run.log_file(path, "logs")
            with pytest.raises(TrackingError, match="found none"):
                run.log_file(tmp_path / "missing.log")
        assert store.read_text(run.run_id, "logs/train.log") == "line"

    @pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\b"])
    def test_artifacts_cannot_leave_their_run(self, store: Store, name: str) -> None:
        with start(store) as run, pytest.raises(TrackingError, match="artifact path"):
            run.log_text(name, "x")

    def test_a_dataset_keeps_its_whole_digest(self, store: Store) -> None:
        with start(store) as run:
            run.log_dataset("corpus", "/data/corpus", DIGEST, "training", {"conversations": 240})
        (dataset,) = store.get_run(run.run_id).datasets
        assert (dataset.name, dataset.digest, dataset.context) == ("corpus", DIGEST, "training")
        assert dataset.source == "/data/corpus"

    def test_a_checkpoint_is_found_with_its_facts(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            model_id = log_checkpoint(run, weights)
        (found,) = store.checkpoints(run.run_id)
        assert found == store.get_checkpoint(model_id)
        assert (found.path, found.step, found.epoch) == (weights, 1, 0)
        assert found.digest == digest_of(weights).root
        assert found.params["head_dim"] == "64"
        assert store.checkpoint_manifest(model_id) == digest_of(weights)

    def test_small_checkpoints_are_uploaded_and_large_are_not(
        self, store: Store, weights: Path
    ) -> None:
        with start(store) as run:
            small, large = log_checkpoint(run, weights), log_checkpoint(run, weights, 2, upload=10)
        folder = store.checkpoint_files(small)
        assert folder is not None
        assert digest_of(folder) == digest_of(weights)
        assert store.get_checkpoint(small).is_uploaded
        assert store.checkpoint_files(large) is None

    def test_checkpoints_come_in_order_of_step(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            for step in (30, 10, 20):
                log_checkpoint(run, weights, step, upload=0)
        assert [found.step for found in store.checkpoints(run.run_id)] == [10, 20, 30]

    def test_measurements_stay_with_their_checkpoint(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            first, second = log_checkpoint(run, weights), log_checkpoint(run, weights, 2)
            store.log_model_metrics(first, run.run_id, {"val/loss": 3.0, "bad": math.nan})
            store.log_model_metrics(second, run.run_id, {"val/loss": 2.0}, "prompts", DIGEST)
        assert store.get_checkpoint(first).metrics == {"val/loss": 3.0}
        assert store.get_checkpoint(second).metrics == {"val/loss": 2.0}

    def test_a_runs_own_figure_stands_over_those_of_its_checkpoints(
        self, store: Store, weights: Path
    ) -> None:
        with start(store) as run:
            model_id = log_checkpoint(run, weights)
            store.log_model_metrics(model_id, run.run_id, {"acceptance_length": 9.0})
            run.log_metrics([Metric("acceptance_length", 1.5)])
        assert store.get_run(run.run_id).metrics["acceptance_length"] == 1.5

    def test_model_tags_are_set(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            model_id = log_checkpoint(run, weights)
        store.set_model_tags(model_id, {"kept": True})
        assert store.get_checkpoint(model_id).tags["kept"] == "true"

    def test_runs_are_found_by_kind_tag_status_and_input(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            model_id = log_checkpoint(run, weights)
        with store.start_run(
            names.KIND_BENCH, "bench", experiment=names.EXPERIMENT_BENCH, tags={"host": "a'b"}
        ) as bench:
            bench.log_model_inputs([model_id])
        running = start(store)
        by_input = {names.TAG_MODEL_INPUT.format(model_id=model_id): "1"}
        assert [r.run_id for r in store.find_runs(tags=by_input)] == [bench.run_id]
        assert store.find_runs(kind=names.KIND_BENCH)[0].model_inputs == (model_id,)
        assert [r.run_id for r in store.find_runs(status=RunStatus.RUNNING)] == [running.run_id]
        newest_first = [r.run_id for r in store.find_runs(kind=names.KIND_TRAIN)]
        assert set(newest_first) == {running.run_id, run.run_id}
        assert len(store.find_runs(limit=2)) == 2
        by_id = store.find_runs(id_prefix=bench.run_id)
        assert [r.run_id for r in by_id] == [bench.run_id]

    def test_a_child_names_its_parent(self, store: Store) -> None:
        parent = start(store)
        child = store.start_run(
            names.KIND_TRAIN,
            "trial",
            experiment=names.EXPERIMENT_SWEEP,
            parent_run_id=parent.run_id,
        )
        assert store.get_run(child.run_id).tags[names.TAG_PARENT] == parent.run_id

    def test_what_is_not_there_is_a_config_error(self, store: Store) -> None:
        with pytest.raises(ConfigError, match="found none"):
            store.get_run("0" * 32)
        with pytest.raises(ConfigError, match="found none"):
            store.get_checkpoint("m-" + "0" * 32)

    def test_versions_and_aliases(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            first = store.get_checkpoint(log_checkpoint(run, weights))
            second = store.get_checkpoint(log_checkpoint(run, weights, 2))
        registry = store.registry
        assert registry.versions("tiny") == ()
        assert registry.aliases("tiny") == {}
        numbers = [
            registry.create_version("tiny", checkpoint, {"a": "1"}).version
            for checkpoint in (first, second)
        ]
        assert numbers == [1, 2]
        registry.set_alias("tiny", "champion", 1)
        registry.set_alias("tiny", "champion", 2)
        registry.set_version_tags("tiny", 2, {"harness.state": "champion"})
        assert registry.aliases("tiny") == {"champion": 2}
        assert registry.names() == ("tiny",)
        one, two = registry.versions("tiny")
        assert (one.model_id, one.aliases) == (first.model_id, ())
        assert (two.model_id, two.run_id, two.aliases) == (
            second.model_id,
            run.run_id,
            ("champion",),
        )
        assert two.tags == {"a": "1", "harness.state": "champion"}

    def test_an_alias_needs_its_version(self, store: Store, weights: Path) -> None:
        with start(store) as run:
            checkpoint = store.get_checkpoint(log_checkpoint(run, weights))
        store.registry.create_version("tiny", checkpoint, {})
        with pytest.raises(TrackingError):
            store.registry.set_alias("tiny", "champion", 7)

    def test_an_alias_is_taken_away_and_its_version_stays(
        self, store: Store, weights: Path
    ) -> None:
        registered(store, weights)
        store.registry.set_alias("tiny", "champion", 2)
        store.registry.set_alias("tiny", "previous", 1)
        store.registry.delete_alias("tiny", "champion")
        assert store.registry.aliases("tiny") == {"previous": 1}
        assert [version.aliases for version in store.registry.versions("tiny")] == [
            ("previous",),
            (),
        ]

    def test_a_version_is_forgotten_with_its_alias_and_its_number_is_not_given_again(
        self, store: Store, weights: Path
    ) -> None:
        first, second = registered(store, weights)
        store.registry.set_alias("tiny", "champion", 2)
        store.registry.set_alias("tiny", "previous", 1)
        store.registry.delete_version("tiny", 1)
        assert store.registry.aliases("tiny") == {"champion": 2}
        assert [version.version for version in store.registry.versions("tiny")] == [2]
        assert store.get_checkpoint(first.model_id).digest == first.digest, "its checkpoint stays"
        assert store.registry.create_version("tiny", second, {}).version == 3

    def test_a_version_has_a_text_of_its_own(self, store: Store, weights: Path) -> None:
        registered(store, weights)
        store.registry.describe_version("tiny", 2, "**first**")
        store.registry.describe_version("tiny", 2, "**second**")
        assert [v.description for v in store.registry.versions("tiny")] == ["", "**second**"]


def registered(store: Store, weights: Path) -> tuple[Checkpoint, Checkpoint]:
    """Two checkpoints, versions 1 and 2 of a model."""
    with start(store) as run:
        first = store.get_checkpoint(log_checkpoint(run, weights))
        second = store.get_checkpoint(log_checkpoint(run, weights, 2))
    for checkpoint in (first, second):
        store.registry.create_version("tiny", checkpoint, {})
    return first, second
