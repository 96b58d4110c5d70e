"""What a vLLM log says went wrong: its last lines and the one line that names the cause."""

import re
from pathlib import Path

_TAIL_BYTES = 64 * 1024
_NUM_SHOWN = 40
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\((\w+)[^)]*pid=\d+\)\s*")
_LEVEL = re.compile(r"^(?:ERROR|CRITICAL)\s+\S+\s+\S+\s+\[[^\]]+\]\s*")
_ERROR = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*")
_USAGE = re.compile(r"^\S+: error: .*")
"""How argparse refuses a flag."""
_SYMPTOMS = ("Engine core initialization failed", "EngineDeadError", "EngineCore encountered")
_RANK = {"Worker": 0, "EngineCore": 1}
_REMEDIES = {
    "scheduler_metadata must have shape": "with a drafter, likely its num_heads, num_kv_heads or "
    "head_dim: vLLM 0.26 plans FlashAttention 3 by the verifier's (0.32 by the drafter's own); "
    "take a newer vLLM, or train with the verifier's",
}
"""By a part of the cause: what it comes from and what helps."""


def read_tail(path: Path, offset: int | None = None) -> str:
    """The end of a log (64 KiB at most, colours taken out); empty when there is none.

    Args:
        path: The log file.
        offset: Bytes to leave out at the beginning.
    """
    if not path.exists():
        return ""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(size - _TAIL_BYTES, offset or 0))
        return _ANSI.sub("", stream.read().decode(errors="replace"))


def find_root_cause(log: str) -> str | None:
    """The error line nearest to the cause: a worker's before the engine's before the server's.

    The server itself only reports that its engine failed; the reason is in the process below it.
    Source: vLLM 0.32, whose processes prefix their lines with `(Worker pid=N)` and so on.
    """
    best: tuple[int, str] | None = None
    for line in log.splitlines():
        process = _PREFIX.match(line)
        text = _LEVEL.sub("", line[process.end() :] if process else line).strip()
        if not (_ERROR.match(text) or _USAGE.match(text)) or any(
            symptom in text for symptom in _SYMPTOMS
        ):
            continue
        name = process.group(1) if process else ""
        rank = next((r for key, r in _RANK.items() if name.startswith(key)), 2)
        if best is None or rank <= best[0]:
            best = (rank, text)
    return best[1] if best else None


def explain_failure(log: str) -> tuple[list[str], str | None]:
    """What to tell of a server that did not start.

    Returns:
        Lines: the cause, if there is one, and the last 40 of the log. And what helps, where the
        cause is one that we have met and its line does not say it.
    """
    cause = find_root_cause(log)
    lines = [*([f"cause: {cause}"] if cause else ()), "last lines of the log:"]
    lines += [f"  | {line}" for line in log.splitlines()[-_NUM_SHOWN:]]
    met = (remedy for sign, remedy in _REMEDIES.items() if sign in (cause or ""))
    return lines, next(met, None)
