"""A written drafter loaded in vLLM, as whoever serves it would: the last step of an export."""

import importlib.util
import json
from pathlib import Path

from eval.client import ask
from eval.counters import count_answers
from eval.errors import EvalError
from eval.progress import ProgressFn
from eval.server import VllmServer
from eval.spec import DrafterSpec, Prompt, Sampling, ServerSpec
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, PrerequisiteError
from harness.settings import Settings
from harness.tracking.export import Loaded, LoadFn

_PROMPT = Prompt(id="load", category="load", turns=("Count from one to ten.",))
_NUM_TOKENS = 16
_MAX_MODEL_LEN = 512
_LOG = Path("export") / "load.log"


def load_in_vllm(settings: Settings, progress: ProgressFn | None = None) -> LoadFn:
    """The check that `export_drafter` takes.

    Args:
        settings: Names the cache folder, where the server's log is kept.
        progress: Told the seconds waited.

    Raises:
        PrerequisiteError: There is no vLLM here.
    """
    if importlib.util.find_spec("vllm") is None:
        raise PrerequisiteError(
            "expected vLLM to load the export with, found none installed",
            "--no-load writes it unloaded; load it where vLLM is",
        )

    def load(folder: Path, verifier: Verifier, k: int) -> Loaded:
        log = settings.cache_dir / _LOG
        log.unlink(missing_ok=True)
        try:
            return _serve(folder, verifier, k, log, progress)
        except EvalError as error:
            raise CheckError(
                f"vLLM does not serve what was written, so nothing is exported: {error.message}",
                f"the whole log: {log}",
            ) from error

    return load


def _serve(
    folder: Path, verifier: Verifier, k: int, log: Path, progress: ProgressFn | None
) -> Loaded:
    spec = ServerSpec(
        verifier=verifier.path,
        max_num_seqs=1,
        max_model_len=min(verifier.max_position_embeddings or _MAX_MODEL_LEN, _MAX_MODEL_LEN),
    )

    def on_wait(waited_s: float) -> None:
        if progress:
            progress("loading it in vLLM, seconds", int(waited_s), 0)

    with VllmServer(
        spec, log, DrafterSpec(name="export", path=folder), k, on_wait=on_wait
    ) as server:
        sampling = Sampling(max_tokens=_NUM_TOKENS)
        batch = ask(server.base_url, server.model, (_PROMPT,), sampling)
        batch.require_complete()
        counts = count_answers(batch.answers).acceptance
        version = str(json.loads(server.fetch("/version"))["version"])
    if not counts.num_drafts:
        raise CheckError(
            "vLLM loaded what was written and drafted nothing, so nothing is exported",
            f"the whole log: {log}",
        )
    return Loaded(
        vllm_version=version,
        start_s=server.start_s or 0.0,
        num_drafts=counts.num_drafts,
        num_accepted=counts.num_accepted,
    )
