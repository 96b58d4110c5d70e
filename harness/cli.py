"""The door: names every command, imports its module on use, maps failures to exit codes."""

import importlib
import signal
import sys
from typing import Any

import typer
from typer._click import Command, Context
from typer._click.exceptions import ClickException
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "demo": "the whole job on a small real model, step by step",
    "verifier": "the facts of a verifier; a deeper one to measure with",
    "data": "prompts -> conversations -> tokens -> hidden states",
    "train": "train a drafter, from scratch or from a parent, as one MLflow run",
    "inspect": "the facts of a drafter, or the difference of two",
    "verify": "find what would make a drafter silently wrong",
    "convert": "between flat and speculators format, without loss",
    "lineage": "where a drafter came from, back to the root",
    "replay": "acceptance length from hidden states, without a server",
    "sweep": "search trainings for what decodes fastest",
    "bench": "measure acceptance length and decode speedup in vLLM",
    "compare": "drafters side by side: what differs, who is faster",
    "report": "one page for whoever decides",
    "promote": "make a drafter the champion, if the policy lets it",
    "rollback": "make an earlier champion champion again",
    "registry": "champions: list, show, history, check, approve, settle, delete",
    "export": "write a folder that vLLM serves",
    "push": "upload an export to a hub repository",
    "gc": "free the files of checkpoints that nothing keeps",
    "remote": "a command on a host over ssh: run, attach, status, stop, resume, fetch",
    "store": "the MLflow store: path, relocate",
    "doctor": "what is wrong with this machine or store, and how to mend it",
    "ui": "the MLflow UI on 127.0.0.1",
}


class LazyGroup(TyperGroup):
    """Lists commands from the table above; imports `harness.commands.<name>` on use."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The commands in the order a newcomer meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """A light stand-in that carries the help line; `resolve_command` loads the real one."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Imports the module of the command that was asked for."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        module = importlib.import_module(f"harness.commands.{name}")
        command: Any = typer.main.get_command(module.app)
        command.name = name
        return name, command, rest


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Turns drafter training into evidence: train, measure in vLLM, compare, promote.",
)


@app.callback()
def root(
    ctx: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of a failure."),
) -> None:
    """Turns drafter training into evidence: train, measure in vLLM, compare, promote."""
    ctx.obj = {"debug": debug}


def main() -> None:
    """Runs a command; every failure becomes a message, a hint and an exit code."""
    from harness.settings import number_gpus

    signal.signal(signal.SIGTERM, _terminate)
    number_gpus()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code (see `harness.errors`)."""
    try:
        result = app(arguments, standalone_mode=False)
    except ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        code = _known_failure(error)
        if code is None or "--debug" in arguments:
            raise
        return code
    return result if isinstance(result, int) else 0


def _known_failure(error: Exception) -> int | None:
    """Shows a failure of ours and returns its exit code; None for one we do not know."""
    from eval.errors import EvalError, SpecError
    from harness.errors import HarnessError
    from harness.render import show_error

    if isinstance(error, HarnessError):
        show_error(error.message, error.hint)
        return error.exit_code
    if isinstance(error, EvalError):
        show_error(error.message, error.hint)
        return 2 if isinstance(error, SpecError) else 1
    if isinstance(error, OSError):
        hint = _SPACE_HINT if error.errno in _FULL else _PATH_HINT
        show_error(f"the system refused: {error}", hint)
        return 3
    if type(error).__module__.partition(".")[0] in {"sqlite3", "sqlalchemy"}:
        reason = str(error).splitlines()[0]
        hint = _SPACE_HINT if "disk is full" in reason else _STORE_HINT
        show_error(f"the store cannot be read or written: {reason}", hint)
        return 3
    return None


_FULL = {28, 122}  # ENOSPC, EDQUOT
_SPACE_HINT = "free space or quota, then run again"
_PATH_HINT = "check that path, its parents and your permissions; --debug shows where"
_STORE_HINT = "restore mlruns/mlflow.db from a backup, or move mlruns away to begin a new store"


def _terminate(signum: int, frame: object) -> None:  # noqa: ARG001 - the signature is Python's
    raise KeyboardInterrupt
