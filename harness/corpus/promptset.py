"""Sources to the prompts that a verifier is to answer: read, filtered, mixed, written.

The folder holds `prompts.jsonl` (what `harness data regenerate` asks), `dropped.jsonl` (what is not
in it, with reasons) and `mixture.json` (how much of each source).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eval.progress import ProgressFn
from eval.prompts import digest_prompts, load_prompts
from eval.promptsets import load_prompt_set
from eval.spec import Prompt
from harness.config.load import Frozen
from harness.config.prompts import PromptsConfig, SourceConfig
from harness.corpus.manifest import (
    Manifest,
    Plan,
    begin_stage,
    check_files,
    finish_stage,
    hold_folder,
    load_manifest,
)
from harness.corpus.mixture import Portion, mix
from harness.corpus.selection import Room, Selection
from harness.corpus.sources import Candidate, Dropped, read_source
from harness.corpus.template import ChatTemplate
from harness.digests import digest_files, digest_json, write_atomic
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import ConfigError, WorkError

PROMPTS_NAME = "prompts.jsonl"
DROPPED_NAME = "dropped.jsonl"
MIXTURE_NAME = "mixture.json"
_SHOWN = 10


class PromptSet(Frozen):
    """A finished stage and how much each source gave."""

    manifest: Manifest
    portions: tuple[Portion, ...]


def collect_prompts(
    config: PromptsConfig,
    verifier: Verifier,
    out_dir: Path,
    *,
    cache_dir: Path | None = None,
    overwrite: bool = False,
    progress: ProgressFn,
) -> PromptSet:
    """Writes the prompts of a mixture; a call that was killed is made again from the start.

    Raises:
        SpecError: A source or an evaluation set cannot be had, or a line of it is malformed.
        ConfigError: Prompts overlap with an evaluation set and that is to be refused, the sources
            cannot be mixed, or `out_dir` holds other work.
        WorkError: No prompt is left.
    """
    evaluation = [prompt for name in config.exclude for prompt in load_prompt_set(name)]
    rows = {source.label: _read(source, progress) for source in config.sources}
    plan = Plan(
        stage="prompts",
        inputs={
            "verifier": verifier_digest(verifier, cache_dir),
            "evaluation": digest_prompts(evaluation),
            "pilot": load_manifest(Path(config.pilot), "regenerate").digest if config.pilot else "",
            **{f"source {label}": _digest(found) for label, found in rows.items()},
        },
        config=_plan_config(config),
    )
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            portions = json.loads((out_dir / MIXTURE_NAME).read_text())
            found = tuple(Portion.model_validate(portion) for portion in portions)
            return PromptSet(manifest=finished, portions=found)
        template = ChatTemplate.load(verifier, trust_remote_code=config.trust_remote_code)
        room = Room(verifier.max_position_embeddings, config.max_answer_tokens)
        selection = _select(config, rows, evaluation, room, template, progress=progress)
        chosen, portions = mix(config, selection.kept, template)
        counts = _write(out_dir, chosen, portions, selection)
        files = digest_files(out_dir, (PROMPTS_NAME, DROPPED_NAME, MIXTURE_NAME))
        origins = {
            "verifier": verifier.reference,
            "evaluation": ", ".join(config.exclude),
            **{f"source {source.label}": source.source for source in config.sources},
        }
        manifest = finish_stage(out_dir, plan, counts, files, origins)
    return PromptSet(manifest=manifest, portions=tuple(portions))


def resolve_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts of a JSONL file, or of a finished folder of this stage, checked byte by byte.

    Raises:
        SpecError: The file is missing or malformed.
        ConfigError: The folder is no finished set of prompts.
        CheckError: A file in it was changed.
    """
    if not path.is_dir():
        return load_prompts(path)
    check_files(path, load_manifest(path, "prompts"), deep=True)
    return load_prompts(path / PROMPTS_NAME)


def _plan_config(config: PromptsConfig) -> dict[str, Any]:
    """What was asked for, without the places that sets lie in: their digests stand for them."""
    places = {"verifier", "exclude", "pilot", "sources"}
    left_out = places | {"trust_remote_code"}
    planned = config.model_dump(mode="json", exclude=left_out, exclude_none=True)
    planned["sources"] = {
        source.label: source.model_dump(exclude={"source", "name"}, exclude_none=True)
        for source in config.sources
    }
    return planned


def _read(source: SourceConfig, progress: ProgressFn) -> list[Candidate | Dropped]:
    rows: list[Candidate | Dropped] = []
    for row in read_source(source):
        rows.append(row)
        if len(rows) % 1000 == 0:
            progress(f"reading {source.label} | {len(rows)} rows", 0, 0)
    return rows


def _digest(rows: Iterable[Candidate | Dropped]) -> str:
    return digest_json(
        [row.model_dump() if isinstance(row, Dropped) else row._asdict() for row in rows]
    )


def _select(
    config: PromptsConfig,
    rows: dict[str, list[Candidate | Dropped]],
    evaluation: Sequence[Prompt],
    room: Room,
    template: ChatTemplate,
    *,
    progress: ProgressFn,
) -> Selection:
    selection = Selection(progress)
    for found in rows.values():
        selection.take(found)
    selection.drop_repeated_ids()
    overlap = selection.drop_overlap(evaluation, config.filters)
    if overlap and config.overlap == "refuse":
        raise _refuse(overlap)
    selection.drop_languages(config.filters)
    selection.drop_lengths(config.filters, template, room)
    selection.drop_duplicates(config.filters.near_duplicates)
    return selection


def _refuse(overlap: Sequence[Dropped]) -> ConfigError:
    lines = [f"  {one.id} {one.detail}" for one in overlap[:_SHOWN]]
    more = [f"  and {len(overlap) - _SHOWN} more"] if len(overlap) > _SHOWN else []
    return ConfigError(
        "\n".join([f"{len(overlap)} prompts are asked in an evaluation set:", *lines, *more]),
        "set overlap: drop to leave them out: what was trained on measures nothing",
    )


def _write(
    out_dir: Path, chosen: Sequence[Candidate], portions: Sequence[Portion], selection: Selection
) -> dict[str, int]:
    if not chosen:
        reasons = ", ".join(f"{n} {reason}" for reason, n in _reasons(selection).items())
        raise WorkError(f"no prompt is left: {reasons or 'the sources are empty'}")
    lines = [_line(candidate) for candidate in chosen]
    write_atomic(out_dir / PROMPTS_NAME, "".join(lines))
    dropped = "".join(one.model_dump_json() + "\n" for one in selection.dropped)
    write_atomic(out_dir / DROPPED_NAME, dropped)
    mixture = [portion.model_dump() for portion in portions]
    write_atomic(out_dir / MIXTURE_NAME, json.dumps(mixture, indent=2) + "\n")
    return {
        "prompts": len(chosen),
        "turns": sum(len(candidate.turns) for candidate in chosen),
        "left_over": len(selection.kept) - len(chosen),
        "system_messages": sum(candidate.system is not None for candidate in chosen),
        "dropped": len(selection.dropped),
        **{f"dropped_{reason}": count for reason, count in _reasons(selection).items()},
    }


def _reasons(selection: Selection) -> dict[str, int]:
    return dict(sorted(Counter(one.reason for one in selection.dropped).items()))


def _line(candidate: Candidate) -> str:
    asked = (
        {"prompt": candidate.turns[0]}
        if len(candidate.turns) == 1
        else {"turns": list(candidate.turns)}
    )
    told = {"system": candidate.system} if candidate.system else {}
    document = {"id": candidate.id, "category": candidate.category, **told, **asked}
    return json.dumps({**document, "source": candidate.source}, ensure_ascii=False) + "\n"
