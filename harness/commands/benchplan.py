"""What a bench would measure, before anything is there but its YAML: `harness bench --dry-run`."""

from collections.abc import Iterator
from pathlib import Path

from eval.device import resolve_server
from eval.server import VllmServer
from eval.spec import ServerSpec
from harness.commands.work import load_prompts
from harness.config.bench import BenchConfig
from harness.errors import ConfigError, HarnessError
from harness.settings import Settings
from harness.tracking.resolve import resolve_drafter
from harness.training.dryrun import Section, load_verifier


def describe_bench(
    config: BenchConfig, settings: Settings, stand_in: Path | None
) -> Iterator[Section]:
    """Sections of names and values; nothing is started and nothing is written.

    Raises:
        ConfigError: It could not start even with all inputs there.
        EvalError: The prompts cannot be read.
    """
    if config.verifier is None:
        raise ConfigError("expected a verifier, found none given", "say --verifier or put it in")
    verifier, absence = load_verifier(config.verifier, settings, stand_in)
    prompts = load_prompts(config, settings)
    yield (
        "bench",
        {
            "verifier": config.verifier,
            "its weights": "here" if absence is None else f"not here: {absence}",
            "drafters": ", ".join(_drafter_text(name, settings) for name in config.drafters)
            or "none yet: --drafter",
            "prompts": f"{len(prompts)} of {len({p.category for p in prompts})} categories",
            "K": ", ".join(map(str, config.k)),
            "concurrency": ", ".join(map(str, config.concurrency)),
            "cells": len(config.k) * len(config.concurrency),
            "answer tokens at most": len(prompts) * config.max_tokens,
            "pairing": config.pairing,
        },
    )
    spec = resolve_server(ServerSpec(verifier=verifier.path, **config.server.model_dump()))
    command = VllmServer(spec, Path("server.log")).build_command()
    yield "server", {"each engine": " ".join(command)}


def _drafter_text(reference: str, settings: Settings) -> str:
    try:
        return str(resolve_drafter(reference, settings).path)
    except HarnessError as error:
        return f"{reference} (not here: {error.message.splitlines()[0]})"
