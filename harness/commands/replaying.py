"""A replay as a run of the store: references resolved and checked, then replayed and logged.

The one function of `harness replay` that others call. Everything that can be refused is refused
before torch is imported.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from eval.facts import DraftFacts, VerifierFacts
from eval.progress import ProgressFn
from eval.prompts import digest_prompts
from eval.replayresult import ReplayResult
from eval.spec import Prompt
from harness.commands.work import (
    DEFAULT_PROMPTS,
    LoggedResult,
    load_prompts,
    verifier_reference,
)
from harness.config.replay import ReplayConfig
from harness.corpus.hidden_states import Corpus
from harness.digests import digest_json
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.checks import require_sound
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import CheckError, ConfigError
from harness.settings import Settings
from harness.tracking.resolve import ResolvedDrafter, require_unchanged, resolve_drafter
from harness.tracking.store import Store


class Contestant(NamedTuple):
    """A drafter that may be replayed."""

    resolved: ResolvedDrafter
    facts: DraftFacts
    digest: str
    """Root digest of its files."""


class ReplayPlan(NamedTuple):
    """All that is to be done, checked."""

    config: ReplayConfig
    drafters: tuple[Contestant, ...]
    verifier: Verifier
    verifier_facts: VerifierFacts
    corpus: Corpus | None
    prompts: tuple[Prompt, ...]
    """Empty where a corpus is replayed."""

    @property
    def source(self) -> str:
        """What is replayed, as it was referred to."""
        return self.config.corpus or self.config.prompts or str(DEFAULT_PROMPTS)

    @property
    def source_digest(self) -> str:
        """Of the corpus or the prompts."""
        return self.corpus.digest if self.corpus else digest_prompts(self.prompts)

    @property
    def fingerprint(self) -> str:
        """Equal for replays that would give the same result."""
        settings = self.config.model_dump(mode="json", exclude={"name", "drafters", "corpus"})
        drafters = [(one.resolved.reference, one.digest) for one in self.drafters]
        return digest_json([settings, drafters, self.verifier_facts.digest, self.source_digest])


def replay_drafters(
    config: ReplayConfig, settings: Settings, store: Store, progress: ProgressFn
) -> LoggedResult[ReplayResult]:
    """Replays the drafters of a config and logs the result as one replay run.

    What the verifier says to prompts is kept below `settings.replay_dir` and used again.

    Args:
        config: What to replay; at least one drafter.
        settings: Where verifiers, work folders and the store are.
        store: The open store.
        progress: Told how far it is.

    Raises:
        ConfigError: A reference, prompt file or setting makes no sense.
        CheckError: A drafter is not sound or of a kind that is not replayed, its files were
            changed, or the corpus is not of this verifier, these layers, or this greedy text.
        EvalError: The verifier or a file of hidden states failed; the run says why.
    """
    plan = prepare_replay(config, settings, store, progress)
    # torch and transformers take six seconds, which a refusal need not wait for.
    from harness.commands.replaywork import run_replay  # noqa: PLC0415

    return run_replay(plan, settings, store, progress)


def prepare_replay(
    config: ReplayConfig, settings: Settings, store: Store, progress: ProgressFn
) -> ReplayPlan:
    """Everything that can be refused before anything is computed."""
    if not config.drafters:
        raise ConfigError(
            "expected something to replay, found no drafter", "say --drafter with a folder or run:"
        )
    if config.corpus and config.prompts:
        raise ConfigError(
            f"expected a corpus or prompts, found both: {config.corpus} and {config.prompts}",
            "give one of --corpus and --prompts",
        )
    resolved = [resolve_drafter(reference, settings, store) for reference in config.drafters]
    corpus = Corpus.load(Path(config.corpus), deep=False) if config.corpus else None
    reference = verifier_reference(config.verifier, resolved, store)
    verifier = Verifier.load(reference, settings)
    facts = verifier_facts(verifier, verifier_digest(verifier, settings.cache_dir))
    if corpus:
        corpus.require_verifier(verifier, facts.digest)
        _require_answers(corpus)
    drafters = tuple(_check_drafter(drafter, verifier, corpus, store) for drafter in resolved)
    _require_different(drafters)
    if corpus:
        Corpus.load(corpus.dir, deep=True, progress=progress)
    prompts = () if corpus else load_prompts(config, settings)
    return ReplayPlan(config, drafters, verifier, facts, corpus, prompts)


def _check_drafter(
    resolved: ResolvedDrafter, verifier: Verifier, corpus: Corpus | None, store: Store
) -> Contestant:
    require_sound(resolved.path, verifier, deep=True)
    facts = draft_facts(Drafter.load(resolved.path), verifier)
    if corpus and corpus.aux_layer_ids != facts.aux_layer_ids:
        raise CheckError(
            f"{resolved.reference}: expected hidden states of its aux layers "
            f"{_join(facts.aux_layer_ids)}, found those of layers {_join(corpus.aux_layer_ids)} in "
            f"{corpus.dir}",
            "extract the corpus with this drafter's layers, or replay it over --prompts",
        )
    return Contestant(resolved, facts, require_unchanged(resolved, store))


def _require_answers(corpus: Corpus) -> None:
    if not corpus.num_loss_tokens:
        raise CheckError(
            f"expected answers to replay, found none in the corpus {corpus.dir}",
            "prepare it from conversations whose answers the verifier wrote",
        )


def _require_different(drafters: Sequence[Contestant]) -> None:
    by_digest: dict[str, list[str]] = {}
    for one in drafters:
        by_digest.setdefault(one.digest, []).append(one.resolved.reference)
    if again := [same for same in by_digest.values() if len(same) > 1]:
        raise ConfigError(
            "expected every drafter once, found the same files more than once: "
            + "; ".join(" and ".join(same) for same in again),
            "name each drafter once",
        )


def _join(layer_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, layer_ids))
