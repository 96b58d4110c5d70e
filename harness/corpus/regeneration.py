"""Prompts to conversations: the verifier's own answers, greedy, through a vLLM that we start.

Token ids are kept as the server saw and made them: text that is tokenised again may come out
differently, and a drafter would learn tokens that its verifier never produces.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from eval.answers import Answer, Failure
from eval.client import ask
from eval.device import resolve_server
from eval.progress import ProgressFn
from eval.prompts import digest_prompts, load_prompts
from eval.server import VllmServer
from eval.spec import Prompt, Sampling, ServerSpec
from harness.config.load import Frozen
from harness.corpus.conversations import CONVERSATIONS_NAME, Conversation, Turn
from harness.corpus.journal import Journal
from harness.corpus.manifest import (
    JOURNAL_NAME,
    Manifest,
    Plan,
    begin_stage,
    finish_stage,
    hold_folder,
)
from harness.corpus.prompts import require_disjoint
from harness.digests import digest_files, write_atomic
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import WorkError

REFUSED_NAME = "refused.jsonl"
LOG_NAME = "server.log"
_NUM_TRIES = 3
_REFUSAL = re.compile(r"HTTP 4\d\d")


class RegenerateConfig(Frozen):
    """How answers are made. What changes them is part of the plan, what changes the pace is not."""

    max_tokens: int = Field(default=64, ge=2)
    """New tokens per answer at most."""
    concurrency: int = Field(default=32, ge=1)
    dtype: str | None = None
    """None: float32 on CPU, the verifier's own on a GPU."""
    max_model_len: int | None = Field(default=None, ge=16)
    tensor_parallel_size: int = Field(default=1, ge=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    request_timeout_s: float = Field(default=600.0, gt=0)

    def build_server_spec(self, verifier: Path) -> ServerSpec:
        """The server that answers: as many sequences at once as requests under way."""
        spec = ServerSpec(
            verifier=verifier,
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=self.concurrency,
            tensor_parallel_size=self.tensor_parallel_size,
            port=self.port,
        )
        return resolve_server(spec)


class Regenerated(Frozen):
    """A finished stage, and the pace of what this call did of it (None when nothing was left)."""

    manifest: Manifest
    tokens_per_s: float | None
    """Answer tokens per second of asking, the server's start left out."""


def regenerate(
    prompts_path: Path,
    verifier: Verifier,
    out_dir: Path,
    config: RegenerateConfig,
    *,
    server: ServerSpec | None = None,
    cache_dir: Path | None = None,
    exclude: Path | None = None,
    overwrite: bool = False,
    progress: ProgressFn,
) -> Regenerated:
    """Has the verifier answer every prompt, and writes `conversations.jsonl` in prompt order.

    Can be killed at any point: answered prompts are in a journal, a later call asks the rest.

    Args:
        prompts_path: JSONL file of prompts.
        verifier: Who answers.
        out_dir: The stage's folder; owned by the stage afterwards.
        config: How to answer.
        server: Another way to start vLLM than `config.build_server_spec` gives.
        cache_dir: Keeps the verifier's digest between calls.
        exclude: Evaluation prompts, none of which may be among the prompts.
        overwrite: Replace other or finished work in `out_dir`.
        progress: Told the prompts answered so far, with the pace.

    Raises:
        SpecError: A prompts file is missing, empty or malformed.
        ConfigError: Prompts overlap with `exclude`, or `out_dir` holds other work.
        ServerStartError: vLLM did not start or died; answers so far are kept.
        WorkError: Prompts without an answer after three tries; answers so far are kept.
    """
    prompts = load_prompts(prompts_path)
    if exclude:
        require_disjoint(prompts, exclude)
    spec = server or config.build_server_spec(verifier.path)
    plan = _build_plan(prompts, verifier_digest(verifier, cache_dir), config, spec)
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return Regenerated(manifest=finished, tokens_per_s=None)
        with Journal(out_dir / JOURNAL_NAME) as journal:
            work = _Regeneration(prompts, journal, config, progress)
            work.run(spec, out_dir / LOG_NAME)
        counts = _write_results(out_dir, prompts, work)
        files = digest_files(out_dir, (CONVERSATIONS_NAME, REFUSED_NAME))
        origins = {"prompts": prompts_path.name, "verifier": verifier.reference}
        manifest = finish_stage(out_dir, plan, counts, files, origins)
    return Regenerated(manifest=manifest, tokens_per_s=work.tokens_per_s)


def _build_plan(
    prompts: Sequence[Prompt], verifier: str, config: RegenerateConfig, spec: ServerSpec
) -> Plan:
    return Plan(
        stage="regenerate",
        inputs={"prompts": digest_prompts(prompts), "verifier": verifier},
        config={
            "max_tokens": config.max_tokens,
            "temperature": 0.0,
            "dtype": spec.dtype,
            "max_model_len": spec.max_model_len,
        },
    )


class _Regeneration:
    """The answers so far, and the asking for the rest."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        journal: Journal,
        config: RegenerateConfig,
        progress: ProgressFn,
    ) -> None:
        self.answered: dict[str, Conversation] = {}
        self.refused: dict[str, Failure] = {}
        self.tokens_per_s: float | None = None
        self._prompts = {prompt.id: prompt for prompt in prompts}
        self._journal = journal
        self._config = config
        self._progress = progress
        self._turns: dict[str, list[Turn]] = {}
        self._num_tokens = 0
        self._started_s = 0.0
        for document in journal.read():
            if "refused" in document:
                failure = Failure.model_validate(document["refused"])
                self.refused[failure.prompt_id] = failure
            else:
                conversation = Conversation.model_validate(document["answered"])
                self.answered[conversation.id] = conversation

    def run(self, spec: ServerSpec, log_path: Path) -> None:
        """Starts the server and asks until every prompt is answered or refused."""
        if not self._pending():
            return
        text = "starting vLLM"
        self._progress(text, 0, 0)
        with VllmServer(
            spec, log_path, on_wait=lambda s: self._progress(text, int(s), 0)
        ) as server:
            self._started_s = time.monotonic()
            failures: tuple[Failure, ...] = ()
            for _ in range(_NUM_TRIES):
                failures = self._ask(server)
                if not failures:
                    return
                server.require_alive()
        lines = "\n".join(f"  {f.prompt_id} turn {f.turn}: {f.reason}" for f in failures[:8])
        raise WorkError(
            f"{len(failures)} of {len(self._prompts)} prompts got no answer in {_NUM_TRIES} tries:"
            f"\n{lines}",
            f"run the command again, answers so far are kept; the server's log is {log_path}",
        )

    def _pending(self) -> list[Prompt]:
        done = self.answered.keys() | self.refused.keys()
        return [prompt for key, prompt in self._prompts.items() if key not in done]

    def _ask(self, server: VllmServer) -> tuple[Failure, ...]:
        self._turns.clear()
        batch = ask(
            server.base_url,
            server.model,
            self._pending(),
            Sampling(max_tokens=self._config.max_tokens),
            concurrency=self._config.concurrency,
            timeout_s=self._config.request_timeout_s,
            is_streaming=False,
            on_answer=self._take,
        )
        refused = [failure for failure in batch.failures if _REFUSAL.search(failure.reason)]
        self._journal.append({"refused": failure.model_dump()} for failure in refused)
        self.refused |= {failure.prompt_id: failure for failure in refused}
        return tuple(failure for failure in batch.failures if failure not in refused)

    def _take(self, answer: Answer) -> None:
        prompt = self._prompts[answer.prompt_id]
        turns = self._turns.setdefault(prompt.id, [])
        turns.append(_build_turn(prompt, answer))
        self._num_tokens += answer.num_tokens
        self.tokens_per_s = self._num_tokens / (time.monotonic() - self._started_s)
        if len(turns) < len(prompt.turns):
            return
        conversation = Conversation(id=prompt.id, category=prompt.category, turns=tuple(turns))
        self._journal.append([{"answered": conversation.model_dump()}])
        self.answered[prompt.id] = conversation
        done = len(self.answered) + len(self.refused)
        text = f"answering | {self.tokens_per_s:.0f} tokens/s"
        self._progress(text, done, len(self._prompts))


def _build_turn(prompt: Prompt, answer: Answer) -> Turn:
    if not answer.prompt_token_ids or len(answer.token_ids) != answer.num_tokens:
        raise WorkError(
            f"prompt {prompt.id}: expected {answer.num_prompt_tokens} prompt and "
            f"{answer.num_tokens} answer token ids, found {len(answer.prompt_token_ids)} and "
            f"{len(answer.token_ids)}",
            "the server must support return_token_ids: vLLM 0.32",
        )
    return Turn(
        question=prompt.turns[answer.turn],
        answer=answer.text,
        prompt_token_ids=answer.prompt_token_ids,
        token_ids=answer.token_ids,
        finish_reason=answer.finish_reason,
    )


def _write_results(out_dir: Path, prompts: Sequence[Prompt], work: _Regeneration) -> dict[str, int]:
    answered = [work.answered[p.id] for p in prompts if p.id in work.answered]
    refused = [work.refused[p.id] for p in prompts if p.id in work.refused]
    if not answered:
        reason = refused[0].reason
        raise WorkError(f"the server refused all {len(refused)} prompts: {reason}")
    for name, documents in ((CONVERSATIONS_NAME, answered), (REFUSED_NAME, refused)):
        write_atomic(out_dir / name, "".join(d.model_dump_json() + "\n" for d in documents))
    turns = [turn for conversation in answered for turn in conversation.turns]
    return {
        "prompts": len(prompts),
        "conversations": len(answered),
        "refused": len(refused),
        "turns": len(turns),
        "truncated_answers": sum(turn.is_truncated for turn in turns),
        "answer_tokens": sum(len(turn.token_ids) for turn in turns),
    }
