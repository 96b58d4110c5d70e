"""Prompts to conversations: the verifier's own answers, through a vLLM of ours or another's.

Token ids are kept as the server saw and made them: text that is tokenised again may come out
differently, and a drafter would learn tokens that its verifier never produces.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from eval.answers import Answer, Failure
from eval.client import ask
from eval.progress import ProgressFn
from eval.prompts import digest_prompts
from eval.server import VllmServer
from eval.spec import Prompt, ServerSpec
from harness.config.load import Frozen
from harness.config.regenerate import RegenerateConfig
from harness.corpus.conversations import CONVERSATIONS_NAME, Conversation, Turn
from harness.corpus.endpoint import KEY_HINT, Endpoint, judge
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
from harness.corpus.promptset import resolve_prompts
from harness.corpus.reuse import find_answered
from harness.digests import digest_files, write_atomic
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import WorkError
from harness.redaction import redacted

REFUSED_NAME = "refused.jsonl"
FAILED_NAME = "failed.jsonl"
LOG_NAME = "server.log"
_NUM_TRIES = 3
_PAUSE_S = 2.0
"""Before the second try; as long again before the third."""


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
    exclude: Sequence[str] = (),
    reuse: Path | None = None,
    overwrite: bool = False,
    progress: ProgressFn,
) -> Regenerated:
    """Has the verifier answer every prompt, and writes `conversations.jsonl` in prompt order.

    Can be killed at any point: answered prompts are in a journal, a later call asks the rest.

    Args:
        prompts_path: JSONL file of prompts, or a folder of `harness data prompts`.
        verifier: Who answers.
        out_dir: The stage's folder; owned by the stage afterwards.
        config: How to answer.
        server: Another way to start vLLM than `config.build_server_spec` gives.
        cache_dir: Keeps the verifier's digest between calls.
        exclude: Evaluation sets, by file or reference; nothing of them may be among the prompts.
        reuse: An earlier regeneration, whose answers to equal prompts are taken.
        overwrite: Replace other or finished work in `out_dir`.
        progress: Told the prompts answered so far, with the pace.

    Raises:
        SpecError: A prompts file is missing, empty or malformed.
        ConfigError: Prompts overlap with `exclude`, or `out_dir` holds other work.
        PrerequisiteError: No server answers at the endpoint.
        ServerStartError: vLLM did not start or died; answers so far are kept.
        WorkError: More than `max_failed` prompts without an answer after three tries, or a token
            that the verifier does not have; answers so far are kept.
    """
    prompts = resolve_prompts(prompts_path)
    for evaluation in exclude:
        require_disjoint(prompts, evaluation)
    spec = None
    if config.endpoint is None:
        spec = server or config.build_server_spec(verifier.path)
    inputs = {"prompts": digest_prompts(prompts), "verifier": verifier_digest(verifier, cache_dir)}
    plan = Plan(stage="regenerate", inputs=inputs, config=config.plan(spec))
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return Regenerated(manifest=finished, tokens_per_s=None)
        with Journal(out_dir / JOURNAL_NAME) as journal:
            work = _Regeneration(prompts, journal, config, verifier.vocab_size, progress)
            if reuse:
                work.take_over(find_answered(reuse, plan, work.prompts))
            work.run(spec, out_dir)
        counts = _write_results(out_dir, prompts, work)
        files = digest_files(out_dir, (CONVERSATIONS_NAME, REFUSED_NAME))
        origins = {"prompts": prompts_path.name, "verifier": verifier.reference}
        if config.endpoint:
            origins["endpoint"] = redacted(config.endpoint)
        manifest = finish_stage(out_dir, plan, counts, files, origins)
    return Regenerated(manifest=manifest, tokens_per_s=work.tokens_per_s)


class _Regeneration:
    """The answers so far, and the asking for the rest."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        journal: Journal,
        config: RegenerateConfig,
        vocab_size: int,
        progress: ProgressFn,
    ) -> None:
        self.answered: dict[str, Conversation] = {}
        self.refused: dict[str, Failure] = {}
        self.tokens_per_s: float | None = None
        self.prompts = {prompt.id: prompt for prompt in prompts}
        self._journal = journal
        self._config = config
        self._vocab_size = vocab_size
        self._progress = progress
        self._turns: dict[str, list[Turn]] = {}
        self._num_tokens = self._num_done = 0
        self._started_s = 0.0
        for document in journal.read():
            if "refused" in document:
                failure = Failure.model_validate(document["refused"])
                self.refused[failure.prompt_id] = failure
            else:
                conversation = Conversation.model_validate(document["answered"])
                self.answered[conversation.id] = conversation

    def run(self, spec: ServerSpec | None, out_dir: Path) -> None:
        """Asks until every prompt is answered or refused; starts the server unless one runs."""
        if not self._pending():
            return
        if spec is None:
            self._ask_all(Endpoint(self._config.endpoint or "", self._config.served_model), out_dir)
            return
        text = "starting vLLM"
        self._progress(text, 0, 0)
        with VllmServer(
            spec, out_dir / LOG_NAME, on_wait=lambda s: self._progress(text, int(s), 0)
        ) as server:
            self._ask_all(server, out_dir)

    def take_over(self, conversations: Sequence[Conversation]) -> None:
        """Answers that need not be asked for."""
        new = [said for said in conversations if said.id not in self.answered]
        self._journal.append({"answered": said.model_dump()} for said in new)
        self.answered |= {said.id: said for said in new}

    def _ask_all(self, server: VllmServer | Endpoint, out_dir: Path) -> None:
        self._started_s = time.monotonic()
        (out_dir / FAILED_NAME).unlink(missing_ok=True)
        failures: tuple[Failure, ...] = ()
        for num_before in range(_NUM_TRIES):
            time.sleep(_PAUSE_S * num_before)
            failures = self._ask(server)
            if not failures:
                return
            server.require_alive()
        if len(failures) <= self._config.max_failed:
            self._refuse(failures)
            return
        listed = "".join(failure.model_dump_json() + "\n" for failure in failures)
        write_atomic(out_dir / FAILED_NAME, listed)
        lines = "\n".join(f"  {f.prompt_id} turn {f.turn}: {f.reason}" for f in failures[:8])
        raise WorkError(
            f"{len(failures)} of {len(self.prompts)} prompts got no answer in {_NUM_TRIES} tries:"
            f"\n{lines}",
            f"all of them: {out_dir / FAILED_NAME}; run the command again, answers so far are "
            "kept, or let so many go with --set max_failed=N",
        )

    def _pending(self) -> list[Prompt]:
        done = self.answered.keys() | self.refused.keys()
        return [prompt for key, prompt in self.prompts.items() if key not in done]

    def _ask(self, server: VllmServer | Endpoint) -> tuple[Failure, ...]:
        self._turns.clear()
        batch = ask(
            server.base_url,
            server.model,
            self._pending(),
            self._config.sampling,
            concurrency=self._config.concurrency,
            timeout_s=self._config.request_timeout_s,
            is_streaming=False,
            extra_body=self._config.request_fields,
            is_patient=True,
            api_key=server.api_key if isinstance(server, Endpoint) else None,
            on_answer=self._take,
        )
        # A server may well repeat the key that it was sent.
        failures = [f.model_copy(update={"reason": redacted(f.reason)}) for f in batch.failures]
        if shut := [failure for failure in failures if judge(failure) == "shut"]:
            raise WorkError(
                f"the server refuses every prompt: {shut[0].reason}",
                f"check address and --served-model; where a key is missing, {KEY_HINT}",
            )
        refused = [failure for failure in failures if judge(failure) == "refused"]
        self._refuse(refused)
        return tuple(failure for failure in failures if failure not in refused)

    def _refuse(self, failures: Sequence[Failure]) -> None:
        self._journal.append({"refused": failure.model_dump()} for failure in failures)
        self.refused |= {failure.prompt_id: failure for failure in failures}

    def _take(self, answer: Answer) -> None:
        prompt = self.prompts[answer.prompt_id]
        if answer.num_tokens == 0:
            reason = "the answer has no token"
            self._refuse([Failure(prompt_id=prompt.id, turn=answer.turn, reason=reason)])
            return
        turns = self._turns.setdefault(prompt.id, [])
        turns.append(_build_turn(prompt, answer, self._vocab_size))
        self._num_tokens += answer.num_tokens
        self.tokens_per_s = self._num_tokens / (time.monotonic() - self._started_s)
        if len(turns) < len(prompt.turns):
            return
        conversation = Conversation(
            id=prompt.id, category=prompt.category, system=prompt.system, turns=tuple(turns)
        )
        self._journal.append([{"answered": conversation.model_dump()}])
        self.answered[prompt.id] = conversation
        done = len(self.answered) + len(self.refused)
        text = f"answering | {self.tokens_per_s:.0f} tokens/s, {self._time_left()} left"
        self._progress(text, done, len(self.prompts))

    def _time_left(self) -> str:
        """By the prompts of this call, which are not all of one length."""
        left = len(self.prompts) - len(self.answered) - len(self.refused)
        self._num_done += 1
        seconds = round((time.monotonic() - self._started_s) * left / self._num_done)
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _build_turn(prompt: Prompt, answer: Answer, vocab_size: int) -> Turn:
    if not answer.prompt_token_ids or len(answer.token_ids) != answer.num_tokens:
        raise WorkError(
            f"prompt {prompt.id}: expected {answer.num_prompt_tokens} prompt and "
            f"{answer.num_tokens} answer token ids, found {len(answer.prompt_token_ids)} and "
            f"{len(answer.token_ids)}",
            "the server must support return_token_ids: vLLM 0.32",
        )
    if (largest := max((*answer.prompt_token_ids, *answer.token_ids))) >= vocab_size:
        raise WorkError(
            f"prompt {prompt.id}: expected token ids below the verifier's {vocab_size}, found "
            f"{largest}",
            "the server serves another model than --verifier",
        )
    return Turn(
        question=prompt.turns[answer.turn],
        answer=answer.text,
        reasoning=answer.reasoning or None,
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
        write_atomic(out_dir / name, "".join(_line(d) for d in documents))
    turns = [turn for conversation in answered for turn in conversation.turns]
    return {
        "prompts": len(prompts),
        "conversations": len(answered),
        "refused": len(refused),
        "turns": len(turns),
        "truncated_answers": sum(turn.is_truncated for turn in turns),
        "answer_tokens": sum(len(turn.token_ids) for turn in turns),
    }


def _line(document: Conversation | Failure) -> str:
    return document.model_dump_json(exclude_none=True) + "\n"
