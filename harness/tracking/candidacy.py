"""Who is to be promoted, against whom: references resolved, the champion known, files asked.

Nothing here measures or decides.
"""

from collections.abc import Sequence
from typing import NamedTuple

from eval.progress import ProgressFn
from harness.config.policy import Policy
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import gates, names, registry
from harness.tracking.decisions import DecisionLog, Gate
from harness.tracking.evidence import Evidence, Search, find_joint_bench
from harness.tracking.records import Checkpoint, ModelVersion, RunSummary
from harness.tracking.resolve import ResolvedDrafter, count_hashed, resolve_drafter
from harness.tracking.store import Store


class Candidate(NamedTuple):
    """A checkpoint of the store that may become champion."""

    drafter: ResolvedDrafter
    checkpoint: Checkpoint
    run: RunSummary
    """The training that made it."""

    @property
    def reference(self) -> str:
        """As it was given."""
        return self.drafter.reference


class Candidacy(NamedTuple):
    """Candidates, the champion that they are held against, and by what policy."""

    model: str
    policy: Policy
    settings: Settings
    store: Store
    candidates: tuple[Candidate, ...]
    champion: ModelVersion | None
    progress: ProgressFn | None

    @property
    def expected(self) -> int | None:
        """The version that is champion when this begins."""
        return self.champion.version if self.champion else None

    @property
    def is_champion_apart(self) -> bool:
        """Whether there is a champion that is no candidate itself."""
        own = {candidate.checkpoint.model_id for candidate in self.candidates}
        return self.champion is not None and self.champion.model_id not in own

    @property
    def references(self) -> tuple[str, ...]:
        """What is measured together."""
        own = tuple(candidate.reference for candidate in self.candidates)
        return (*own, f"models:/{self.model}/{self.expected}") if self.is_champion_apart else own

    def rival_of(self, candidate: Candidate) -> Checkpoint | None:
        """The champion, unless it is this candidate."""
        champion = self.champion
        if champion is None or champion.model_id == candidate.checkpoint.model_id:
            return None
        return self.store.get_checkpoint(champion.model_id)

    def find_bench(self) -> Search:
        """The newest bench of all of them, with the verifier that the first was trained for."""
        wanted = [candidate.checkpoint for candidate in self.candidates]
        if self.champion and self.is_champion_apart:
            wanted.append(self.store.get_checkpoint(self.champion.model_id))
        digest = self.candidates[0].run.tags.get(names.TAG_VERIFIER_DIGEST)
        return find_joint_bench(wanted, self.store, digest or None)

    def ask_files(self, candidate: Candidate, evidence: Evidence | None) -> list[Gate]:
        """The gates on weights, on what `verify` finds, and on where the candidate came from."""
        on_bytes = count_hashed(self.progress, candidate.checkpoint.num_bytes)
        measured = evidence.row.digest if evidence else None
        asked = [gates.check_weights(candidate.drafter, measured, self.store, on_bytes)]
        if self.policy.require_verify_clean:
            tags = evidence.bench.tags if evidence else candidate.run.tags
            verifier = tags.get(names.TAG_VERIFIER)
            asked.append(gates.check_files(candidate.drafter, verifier, self.settings))
        if self.policy.require_provenance:
            asked.append(gates.check_provenance(candidate.run, self.store))
        return asked


def open_candidacy(
    references: Sequence[str],
    model: str,
    policy: Policy,
    settings: Settings,
    store: Store,
    *,
    progress: ProgressFn | None = None,
) -> Candidacy:
    """Resolves the candidates and finds the champion.

    Raises:
        ConfigError: No model's name, or a reference that is no checkpoint of the store.
        PromotionError: The alias was moved without harness.
    """
    registry.require_model_name(model)
    log = DecisionLog(settings.mlruns_dir)
    expected = registry.require_alias_as_logged(store, log, model)
    versions = store.registry.versions(model) if expected is not None else ()
    champion = next((v for v in versions if v.version == expected), None)
    candidates = tuple(_resolve(reference, settings, store) for reference in references)
    return Candidacy(model, policy, settings, store, candidates, champion, progress)


def _resolve(reference: str, settings: Settings, store: Store) -> Candidate:
    drafter = resolve_drafter(reference, settings, store)
    if drafter.checkpoint is None:
        raise ConfigError(
            f"expected a checkpoint of the store, found {reference!r}, of which it knows nothing",
            "promote run:<id>, run:<id>@<epoch> or models:/<name>/<version>",
        )
    return Candidate(drafter, drafter.checkpoint, store.get_run(drafter.checkpoint.run_id))
