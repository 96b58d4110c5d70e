"""Flags of prompts that benchmarks share, and the prompts that they stand for."""

import argparse
from pathlib import Path

from eval.prompts import load_prompts, pick_prompts
from eval.spec import Prompt

_PROMPTS = Path("experiments/smollm2-135m/prompts/eval.jsonl")


def build_parser(
    description: str | None, *, num_prompts: int, max_tokens: int | None = None
) -> argparse.ArgumentParser:
    """A parser of --prompts, --num-prompts and --max-tokens.

    Args:
        description: The script's docstring.
        num_prompts: The default.
        max_tokens: The default; None: the script has no such flag.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--prompts", type=Path, default=_PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=num_prompts)
    if max_tokens is not None:
        parser.add_argument("--max-tokens", type=int, default=max_tokens)
    return parser


def prompts_of(flags: argparse.Namespace) -> tuple[Prompt, ...]:
    """The prompts that the flags name, of all categories alike."""
    return pick_prompts(load_prompts(flags.prompts), flags.num_prompts)
