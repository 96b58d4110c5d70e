"""`--launcher`: the same command, run on a Ray cluster or by Slurm, its output here as it comes."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from harness.config.load import Frozen, dump_yaml
from harness.digests import write_atomic
from harness.errors import WorkError
from harness.launch.opening import Kind, open_launcher
from harness.launch.ports import Launcher, Task
from harness.launch.tasks import build_task, follow
from harness.render import log, show_text, warn
from harness.settings import Settings, ray_environment
from harness.tracking.reaping import settle_task
from harness.tracking.store import Store, open_store
from harness.training.process import signal_name

Where = Annotated[Kind, typer.Option("--launcher", help="Where it runs.")]
Address = Annotated[
    str,
    typer.Option(
        help="Of the Ray cluster, host:port, or Slurm's partition; auto: the one this machine is "
        "in, the default one."
    ),
]
LOCAL = Kind.LOCAL
AUTO = "auto"
_REUSE = "--reuse"


@contextmanager
def place_of(kind: Kind, address: str, settings: Settings) -> Iterator[Launcher | None]:
    """The launcher that was asked for; warns where it lets everybody in."""
    if kind is Kind.RAY and ray_environment()["RAY_AUTH_MODE"] != "token":
        warn(
            "RAY_AUTH_MODE is not token: whoever reaches the cluster's ports can run code on it; "
            "keep them on loopback or a private network"
        )
    with open_launcher(kind, address, settings) as launcher:
        yield launcher


def run_there(
    command: str,
    config: Frozen,
    flags: Mapping[str, bool | str | None],
    settings: Settings,
    launcher: Launcher,
    *,
    num_gpus: int = 0,
    is_alone: bool = False,
) -> None:
    """Runs `harness COMMAND` on a resolved configuration as a task, and ends as it ends.

    Args:
        command: Its name.
        config: The configuration, all flags in it that are keys.
        flags: The others, by name; those that are off or empty were not given.
        settings: Of the project.
        launcher: Where it runs.
        num_gpus: What it needs.
        is_alone: Whether it needs a host for itself.

    Raises:
        typer.Exit: With its exit code, when that is not 0.
        HarnessError: The place is not what it must be, or it lost one host after the other.
    """
    folder = settings.mlruns_dir / "launch" / f"{command}-{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True)
    config_path, result_path = folder / f"{command}.yaml", folder / "stdout.txt"
    write_atomic(config_path, dump_yaml(config))
    task = build_task(
        f"harness {command}",
        ("-m", "harness", command, str(config_path), *_spell(flags)),
        settings,
        folder / "log.txt",
        result_path=result_path,
        num_gpus=num_gpus,
        is_alone=is_alone,
    )
    log(f"{task.name} runs elsewhere; its output is in {folder}")
    store = open_store(settings)
    code = follow(
        launcher,
        task,
        lambda text: log(text.rstrip("\n")),
        lambda task: _settle(store, task),
    )
    if result_path.exists():
        show_text(result_path.read_text(encoding="utf-8").rstrip("\n"))
    if code < 0:
        raise WorkError(
            f"{task.name} was ended by {signal_name(code)}, where it ran",
            f"its output is in {folder}; did it take too much memory?",
        )
    if code:
        raise typer.Exit(code)


def _settle(store: Store, task: Task) -> Task:
    """Where the lost process had just finished, the next one takes what it finished."""
    if settle_task(store, task.id) and _REUSE not in task.arguments:
        return task.model_copy(update={"arguments": (*task.arguments, _REUSE)})
    return task


def _spell(flags: Mapping[str, bool | str | None]) -> Iterator[str]:
    for name, value in flags.items():
        if value:
            yield from (name,) if value is True else (name, str(value))
