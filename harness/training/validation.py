"""What a saved checkpoint is worth: its validation rows replayed from the file, by the parent.

Three things in one pass over the rows: whether the file computes what was trained (train
agreement), how far every position gets, and the walk that a server would take. Done in slices, so
that whoever listens to a training can go on listening in between. Imports torch: seconds.
"""

import time
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import torch

from eval.agreement import Agreement, compare
from eval.capture import default_device
from eval.counters import AcceptanceCounts
from eval.draft import DraftModel, load_tensors
from eval.judging import JudgedRow, judge_rows
from eval.result import Interval
from eval.sequences import Row, build_batches
from eval.speedup import Bootstrap, length_interval
from eval.unroll import count_right
from eval.verifier import VerifierParts
from eval.walk import Depths, count_everywhere, walk_row
from harness.config.load import Frozen
from harness.corpus.rows import read_validation_rows
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.drafter import Drafter
from harness.errors import CheckError
from harness.training.messages import Saved
from harness.training.plan import TrainPlan
from harness.training.resume import FAILED_AGREEMENT

_SLICE_TOKENS = {"cpu": 1024, "cuda": 8192}
_SPARE_GPU_BYTES = 24 << 30
"""Free memory from which a GPU, on which the training itself may be, is used as well."""
_MOST_UNEQUAL = 0.1
"""Answer tokens that may not be the verifier's own greedy ones; with more, no server's walk is
like one over them."""


class Lengths(Frozen):
    """Acceptance lengths over the same answers; None where nothing was drafted."""

    all_positions: Interval | None
    """As if every position had drafted."""
    walk: Interval | None
    """1 + accepted / drafts of the walk, as a server counts."""
    walk_by_conversation: dict[str, float]
    """The same of each conversation that drafted."""


class CheckpointReplay(Frozen):
    """What was found of one checkpoint."""

    k: int
    agreement: Agreement | None
    """None where the validation rows hold no answers."""
    share_unequal: float
    """Of the answer tokens in the draft vocabulary, those that the verifier would not say."""
    in_domain: Lengths | None
    """On the validation rows; None where they are not the verifier's own answers."""
    on_prompts: Lengths | None
    """On the evaluation prompts; None without any."""
    replay_s: float


class _Walked(NamedTuple):
    """A row's counts at the largest K."""

    id: str
    everywhere: AcceptanceCounts
    walk: AcceptanceCounts


class ValidationReplay:
    """The rows of one training, and the verifier's parts, kept between its checkpoints.

    Args:
        plan: The training.
        prompt_rows: The verifier's answers to the evaluation prompts.

    Raises:
        ConfigError: The verifier has no part that a replay needs, or one of another kind.
    """

    def __init__(self, plan: TrainPlan, prompt_rows: Sequence[Row] = ()) -> None:
        self._plan = plan
        self._prompt_rows = prompt_rows
        config = plan.config
        self._rows, self._share = read_validation_rows(
            plan.corpus, config.val_ratio, config.total_seq_len, config.replay_tokens
        )
        self._device = pick_device(config.device)
        facts = verifier_facts(plan.verifier, plan.verifier_digest)
        self._parts = VerifierParts.load(facts, torch.float32, self._device)

    def replay(self, saved: Saved, dtype: str) -> Generator[None, None, CheckpointReplay]:
        """Replays a checkpoint slice by slice; the generator's return value is the result.

        Args:
            saved: The checkpoint with its trainer's figures.
            dtype: That the trainer computes in.

        Raises:
            CheckError: The file does not compute what was trained, or cannot be replayed.
            EvalError: Hidden states are missing or of other tokens.
        """
        began = time.monotonic()
        config = self._plan.config
        model, k = self._load(saved), config.replay_k or config.ttt_steps
        num_steps = max(k, config.ttt_steps)
        budget = _SLICE_TOKENS[self._device]
        yield
        judged: list[JudgedRow] = []
        for found in judge_rows(model, self._parts, self._rows, num_steps, budget_tokens=budget):
            judged += found
            yield
        agreement = self._compare(judged, saved, dtype)
        walked: list[_Walked] = []
        for batch in build_batches(self._prompt_rows, budget, k):
            depths = count_right(model, batch, k).numpy()
            walked += [_walk(row, d, k) for row, d in zip(batch.rows, depths, strict=True)]
            yield
        checked = sum(one.num_checked for one in judged)
        unequal = 1 - sum(one.num_greedy for one in judged) / checked if checked else 0.0
        own = [_walk(one.row, one.served, k) for one in judged]
        return CheckpointReplay(
            k=k,
            agreement=agreement,
            share_unequal=unequal,
            in_domain=_measure(own) if unequal <= _MOST_UNEQUAL else None,
            on_prompts=_measure(walked) if walked else None,
            replay_s=time.monotonic() - began,
        )

    def _compare(self, judged: list[JudgedRow], saved: Saved, dtype: str) -> Agreement | None:
        keys = [f"full_acc_{step}" for step in range(self._plan.config.ttt_steps)]
        trained = [saved.metrics[key] for key in keys if key in saved.metrics]
        if len(trained) < len(keys) or not sum(int(one.total.sum()) for one in judged):
            return None
        agreement = compare(judged, trained, dtype=dtype, share_replayed=self._share)
        require_agreement(agreement, saved)
        return agreement

    def _load(self, saved: Saved) -> DraftModel:
        facts = draft_facts(Drafter.load(saved.path), self._plan.verifier)
        if facts.aux_layer_ids != self._plan.corpus.aux_layer_ids:
            raise CheckError(
                f"{FAILED_AGREEMENT}: {saved.path} takes aux layers {list(facts.aux_layer_ids)}, "
                f"it was trained on the states of {list(self._plan.corpus.aux_layer_ids)}",
                "correct eagle_aux_hidden_state_layer_ids in its config.json",
            )
        return DraftModel.beside(facts, load_tensors(saved.path), self._parts)


def require_agreement(agreement: Agreement, saved: Saved) -> None:
    """Stops at a checkpoint that computes something else than was trained.

    Raises:
        CheckError: Names step, both figures, the tolerance, and what such a gap comes from.
    """
    if not agreement.agrees:
        raise CheckError(
            f"{FAILED_AGREEMENT}: the checkpoint of epoch {saved.epoch} does not compute what was "
            f"trained, {agreement.describe()}",
            f"{agreement.suspects()}; the file is {saved.path}",
        )


def pick_device(asked: str) -> str:
    """A GPU with much memory left, unless cpu was asked for; else cpu."""
    if asked == "cpu" or default_device() == "cpu":
        return "cpu"
    free, _ = torch.cuda.mem_get_info()
    return "cuda" if free >= _SPARE_GPU_BYTES else "cpu"


def _walk(row: Row, depths: Depths, k: int) -> _Walked:
    return _Walked(row.id, count_everywhere(row, depths, k), walk_row(row, depths, k).acceptance)


def _measure(walked: Iterable[_Walked]) -> Lengths:
    """Pooled, with intervals over conversations."""
    everywhere: dict[str, AcceptanceCounts] = {}
    walks: dict[str, AcceptanceCounts] = {}
    for one in walked:
        everywhere[one.id] = everywhere.get(one.id, AcceptanceCounts()) + one.everywhere
        walks[one.id] = walks.get(one.id, AcceptanceCounts()) + one.walk
    return Lengths(
        all_positions=length_interval(everywhere.values(), Bootstrap()),
        walk=length_interval(walks.values(), Bootstrap()),
        walk_by_conversation={
            name: counts.acceptance_length for name, counts in walks.items() if counts.num_drafts
        },
    )
