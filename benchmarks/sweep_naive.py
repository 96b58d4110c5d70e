"""A sweep against the naive way: every point trained to its end and served in engines of its own.

    python benchmarks/sweep_naive.py [experiments/smollm2-135m/sweep.yaml] --out FOLDER

First `harness sweep` in a store of its own, then, over the points of the finished study, `harness
train` without any replay and `harness bench --no-swap` for each. Wall and CPU seconds are of the
whole process tree, by trial and stage; they lie in FOLDER as JSON, and a killed run goes on.

Both ways are compared by their whole time: neither knows its best before its end. The ratio of
these is aimed at 0.4, at an equal or better served acceptance. What is saved comes from

    pruning         of trials given up: a whole training, less what was trained
    replay          of trials never served: their own bench; less what replays added to the
                    trainings that came to their end
    shared engines  of trials served: their own benches, less the sweep's one measurement

less what the coordinator took besides; the four add up exactly. Trials that run at once share
the seconds of the wall clock, so what that saves is in all three; CPU seconds are free of it.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from flags import build_parser
from metering import OTHER, Cost, Meter

from eval.result import BenchResult
from harness.config.load import dump_yaml
from harness.settings import Settings, load_settings
from harness.sweep.records import Trial, TrialState
from harness.sweep.session import reopen
from harness.sweep.study import SweepStudy
from harness.sweep.view import best_config

_CONFIG = Path("experiments/smollm2-135m/sweep.yaml")
_SERVE = "serve"
_LABELS = (
    (re.compile(r"harness\.sweep\.trial .*trials/0*(\d+)/"), "trial {}"),
    (re.compile(r"supervise\.py"), _SERVE),
)
_CHANGES = {"replay_tokens": 0, "eval_prompts": None, "smoke": "never"}
"""Of the naive trainings: nothing is replayed."""
_HARNESS = (sys.executable, "-m", "harness")


class Naive(NamedTuple):
    """One point the naive way."""

    train: Cost
    bench: Cost
    acceptance_length: float


class Benchmark:
    """Both ways, kept in a folder.

    Args:
        flags: `out`, `config`, `n_trials`, and how points are served.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self._out: Path = flags.out.resolve()
        self._settings: Settings = load_settings(self._out / "store").model_copy(
            update={"tracking_uri": f"sqlite:///{self._out / 'store' / 'mlruns' / 'mlflow.db'}"}
        )
        self._variables = {
            "HARNESS_ROOT": str(self._settings.root_dir),
            "MLFLOW_TRACKING_URI": self._settings.tracking_uri,
        }
        """The corpus, the training and the prompts are found from where we are."""

    def run_sweep(self) -> None:
        """The sweep: one call or, after a kill, several whose seconds are added up."""
        path, flags = self._out / "sweep.json", self._flags
        calls: list[dict[str, Any]] = _load(path, [])
        if calls and calls[-1]["is_done"]:
            return
        calls.append({})
        meter = Meter(_LABELS, busiest=_SERVE)

        def save(*, is_done: bool = False) -> None:
            calls[-1] = {"whole": meter.whole, "by": meter.by_label(), "is_done": is_done}
            _save(path, calls)

        served = {
            "num_prompts": flags.num_prompts,
            "max_tokens": flags.max_tokens,
            "prompts": flags.prompts.resolve(),
        }
        changes = [f"--set=bench_fixed.{key}={value}" for key, value in served.items()]
        command = [*_HARNESS, "sweep", str(flags.config), f"--n-trials={flags.n_trials}", *changes]
        meter.run(command, self._out / "logs" / "sweep.log", self._variables, save)
        save(is_done=True)

    def run_naive(self) -> None:
        """Each point of the study, trained to its end and benched by itself."""
        study = self._study()
        for trial in _points(study):
            path = self._path_of(trial)
            found: dict[str, Any] = _load(path, {"params": trial.params})
            if "train" not in found:
                found |= self._train(study, trial)
                _save(path, found)
            if "bench" not in found:
                found |= self._bench(study, trial, found["run_id"])
                _save(path, found)

    def report(self) -> None:
        """Prints both ways and what makes the difference."""
        study = self._study()
        points = _points(study)
        naive: dict[int, Naive] = {}
        for trial in points:
            found = _load(self._path_of(trial), {})
            if "bench" not in found:
                sys.exit(f"the naive way has not come to trial {trial.number} yet")
            naive[trial.number] = Naive(
                Cost(*found["train"]), Cost(*found["bench"]), found["acceptance_length"]
            )
        whole, by = Cost(), defaultdict[str, Cost](Cost)
        for call in _load(self._out / "sweep.json", []):
            whole = whole.plus(call["whole"])
            for label, cost in call["by"].items():
                by[label] = by[label].plus(cost)
        _print_trials(points, by, naive)
        _print_savings(points, by, naive, whole)
        _print_ratio(points, naive, whole)

    def _train(self, study: SweepStudy, trial: Trial) -> dict[str, Any]:
        config = best_config(study, trial).model_copy(update=_CHANGES)
        path = self._path_of(trial).with_suffix(".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml(config))
        meter = Meter()
        command = [*_HARNESS, "train", str(path), "--new", "--json"]
        output = meter.run(command, self._log_of(trial), self._variables)
        return {"run_id": json.loads(output)["run_id"], "train": meter.whole}

    def _bench(self, study: SweepStudy, trial: Trial, run_id: str) -> dict[str, Any]:
        config = self._settings.sweeps_dir / study.config.name / "bench.yaml"
        k = study.space.k_of(trial.params)
        meter = Meter()
        command = [*_HARNESS, "bench", str(config), f"--drafter=run:{run_id}", f"--k={k}"]
        command += ["--no-swap", "--json"]
        output = meter.run(command, self._log_of(trial), self._variables)
        (row,) = BenchResult.model_validate_json(output).pooled()
        if row.acceptance_length is None:
            sys.exit(f"trial {trial.number} drafted nothing")
        return {"bench": meter.whole, "acceptance_length": row.acceptance_length.value}

    def _study(self) -> SweepStudy:
        (path,) = self._settings.sweeps_dir.glob("*/sweep.yaml")
        return reopen(path.parent.name, self._settings)[0]

    def _path_of(self, trial: Trial) -> Path:
        return self._out / "naive" / f"{trial.number:04d}.json"

    def _log_of(self, trial: Trial) -> Path:
        return self._out / "logs" / f"naive-{trial.number:04d}.log"


def _points(study: SweepStudy) -> list[Trial]:
    """Trials that a process trained; a copy of an earlier point is not charged to either way."""
    ended = {TrialState.COMPLETE, TrialState.PRUNED}
    return [t for t in study.trials() if t.state in ended and "duplicate_of" not in t.facts]


def _served(trial: Trial) -> float | None:
    value = trial.served.get("acceptance_length")
    return float(value) if value is not None else None


def _print_trials(points: list[Trial], by: dict[str, Cost], naive: dict[int, Naive]) -> None:
    print(
        "trial  state     trained in the sweep  trained naively       benched naively       "
        "acceptance served by the sweep, naively"
    )
    for trial in points:
        one, served = naive[trial.number], _served(trial)
        costs = (by[f"trial {trial.number}"], one.train, one.bench)
        print(
            f"{trial.number:5}  {trial.state:8}  {'  '.join(cost.text() for cost in costs)}  "
            f"{'    -' if served is None else f'{served:.3f}'}  {one.acceptance_length:.3f}"
        )


def _print_savings(
    points: list[Trial], by: dict[str, Cost], naive: dict[int, Naive], whole: Cost
) -> None:
    pruning = replay = Cost()
    engines = Cost().less(by[_SERVE])
    for trial in points:
        one = naive[trial.number]
        trained = one.train.less(by[f"trial {trial.number}"])
        if trial.state is TrialState.PRUNED:
            pruning = pruning.plus(trained)
        else:
            replay = replay.plus(trained)
        if _served(trial) is None:
            replay = replay.plus(one.bench)
        else:
            engines = engines.plus(one.bench)
    saved = pruning.plus(replay).plus(engines)
    rest = _total(naive).less(whole).less(saved)
    print(f"served in the sweep         {by[_SERVE].text()}")
    print(f"besides, in the sweep       {by[OTHER].text()}")
    for name, cost in {"pruning": pruning, "replay": replay, "shared engines": engines}.items():
        print(f"saved by {name:18} {cost.text()}")
    print(f"less the coordinator        {rest.text()}")


def _print_ratio(points: list[Trial], naive: dict[int, Naive], whole: Cost) -> None:
    served = {t.number: length for t in points if (length := _served(t)) is not None}
    best = max(served, key=served.__getitem__)
    other = max(naive, key=lambda number: naive[number].acceptance_length)
    total = _total(naive)
    print(f"sweep  {whole.text()}  best served acceptance {served[best]:.3f}, trial {best}")
    length = naive[other].acceptance_length
    print(f"naive  {total.text()}  best served acceptance {length:.3f}, trial {other}")
    reached = [n for n, one in naive.items() if one.acceptance_length >= served[best]]
    if reached:
        until = _total({n: one for n, one in naive.items() if n <= min(reached)})
        print(f"       {until.text()}  until naively one as good was found, trial {min(reached)}")
    print(
        f"ratio {whole.wall_s / total.wall_s:.2f} of wall seconds, "
        f"{whole.cpu_s / total.cpu_s:.2f} of CPU seconds (aim 0.40); the sweep's best accepts "
        f"{served[best] - length:+.3f} against the naive one's"
    )


def _total(naive: dict[int, Naive]) -> Cost:
    total = Cost()
    for one in naive.values():
        total = total.plus(one.train).plus(one.bench)
    return total


def _load(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default


def _save(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(document, indent=1))
    half.replace(path)


def main() -> None:
    """Runs what is missing and prints."""
    parser = build_parser(__doc__, num_prompts=48, max_tokens=64)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("config", type=Path, nargs="?", default=_CONFIG)
    parser.add_argument("--out", type=Path, required=True, help="Folder of store and results.")
    parser.add_argument("--only", choices=["sweep", "naive"], help="One of the two ways.")
    parser.add_argument("--n-trials", type=int, default=12)
    flags = parser.parse_args()
    benchmark = Benchmark(flags)
    if flags.only != "naive":
        benchmark.run_sweep()
    if flags.only != "sweep":
        benchmark.run_naive()
        benchmark.report()


if __name__ == "__main__":
    main()
