"""`harness train`: a drafter trained from scratch or from a parent, as one run of the store."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.launching import AUTO, LOCAL, Address, Where, place_of, run_there
from harness.commands.options import AsJson, OptionalVerifier
from harness.commands.preflight import begin
from harness.config.load import load_config
from harness.config.train import TrainConfig
from harness.errors import ConfigError
from harness.launch.tasks import gpus_of
from harness.render import log, progress, show_facts, show_json, show_table, warn
from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.store import open_store
from harness.training.dryrun import describe_training, find_stand_in
from harness.training.plan import build_plan
from harness.training.preflight import check_training
from harness.training.resume import CONFIG_NAME, run_folder
from harness.training.run import TrainRun, run_smoke, run_training

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_RUN_PREFIX = "run:"

_Corpus = Annotated[str | None, typer.Option(help="What `harness data extract` wrote.")]
_Parent = Annotated[
    str | None, typer.Option(help="PATH, run:<id>[@<epoch>], models:/<name>@<alias> or hf:...")
]
_Fresh = Annotated[
    list[str] | None, typer.Option(help="A tensor that the parent lacks and that may start fresh.")
]
_Set = Annotated[list[str] | None, typer.Option("--set", help="A key of the YAML: lr=3e-4.")]
_Name = Annotated[str | None, typer.Option(help="Name of the run.")]
_Smoke = Annotated[
    bool, typer.Option("--smoke", help="Only test: ten conversations, the loss must fall.")
]
_Resume = Annotated[str | None, typer.Option(help="run:<id> of a training to go on with.")]
_New = Annotated[bool, typer.Option("--new", help="Do not go on with an interrupted training.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would be; start nothing.")]
_Reuse = Annotated[
    bool, typer.Option("--reuse", help="Take an equal training that is finished already.")
]


@app.command()
def train(
    *,
    config: Annotated[Path | None, typer.Argument(help="train.yaml; flags win over it.")] = None,
    verifier: OptionalVerifier = None,
    corpus: _Corpus = None,
    finetune_from: _Parent = None,
    allow_fresh: _Fresh = None,
    overrides: _Set = None,
    name: _Name = None,
    smoke: _Smoke = False,
    resume: _Resume = None,
    new: _New = False,
    reuse: _Reuse = False,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    launcher: Where = LOCAL,
    address: Address = AUTO,
) -> None:
    """Trains a drafter; the same command after an interruption goes on where it stopped."""
    settings = load_settings()
    resolved = load_config(
        TrainConfig,
        _resumed_config(resume, settings) if resume and config is None else config,
        overrides or (),
        verifier=verifier,
        corpus=corpus,
        finetune_from=finetune_from,
        allow_fresh=allow_fresh or None,
        name=name,
    )
    if dry_run:
        for title, facts in describe_training(resolved, settings, find_stand_in(config)):
            show_facts(title, facts)
        return
    with place_of(launcher, address, settings) as place:
        if place is not None:
            flags = {"--smoke": smoke, "--new": new, "--reuse": reuse, "--json": as_json}
            num_gpus = gpus_of(place, 0 if resolved.device == "cpu" else resolved.nproc)
            options = flags | {"--resume": resume}
            run_there("train", resolved, options, settings, place, num_gpus=num_gpus)
            return
    begin("training", check_training(resolved, settings))
    store = open_store(settings)
    with progress() as report:
        if smoke:
            plan = build_plan(resolved, settings, store, report)
            log(f"smoke passed: run {run_smoke(plan, settings, store, report)}")
            return
        trained = run_training(
            resolved,
            settings,
            store,
            report,
            is_reusing=reuse,
            is_fresh=new,
            resume_run_id=resume.removeprefix(_RUN_PREFIX) if resume else None,
        )
    show_json(trained) if as_json else show_training(trained)


def show_training(trained: TrainRun) -> None:
    """The checkpoints of a training as a table, then what came out and how long it took."""
    for text in trained.warnings:
        warn(text)
    lengths = (
        names.METRIC_VAL_ACCEPTANCE_LENGTH, names.METRIC_VAL_ESTIMATED_LENGTH,
        names.METRIC_EVAL_ACCEPTANCE_LENGTH,
    )  # fmt: skip
    columns = (
        "epoch", "step", "val loss", "length", "estimate", "eval length", "on disk", "best",
    )  # fmt: skip
    rows = [
        (
            checkpoint.epoch,
            checkpoint.step,
            checkpoint.metrics.get(names.METRIC_VAL_LOSS),
            *(checkpoint.metrics.get(key) for key in lengths),
            checkpoint.path.is_dir(),
            "*" if checkpoint.model_id == trained.best.model_id else "",
        )
        for checkpoint in trained.checkpoints
    ]
    show_table(
        "Checkpoints (acceptance length in validation and on evaluation prompts, replayed)",
        columns,
        rows,
    )
    shown = (
        names.METRIC_STEPS_PER_S, names.METRIC_TOKENS_PER_S, names.METRIC_PEAK_MEMORY_BYTES,
        names.METRIC_WALL_TIME_S, names.METRIC_CHECKPOINT_BYTES,
    )  # fmt: skip
    facts = {key: trained.metrics.get(key) for key in shown}
    title = f"{trained.name}{' (finished earlier, nothing trained)' if trained.was_reused else ''}"
    show_facts(title, {"reference": f"{_RUN_PREFIX}{trained.run_id}", **facts})
    log(f"measure it: harness bench --drafter {_RUN_PREFIX}{trained.run_id}")


def _resumed_config(reference: str, settings: Settings) -> Path:
    run_id = reference.removeprefix(_RUN_PREFIX)
    path = run_folder(settings, run_id) / CONFIG_NAME
    if not path.is_file():
        raise ConfigError(
            f"--resume: expected the configuration of run {run_id} in {path}, found none",
            "a training is resumed in the project and on the machine that it ran on",
        )
    return path
