"""Proof of a checkpoint of ours: does its file compute what its training measured?"""

from pathlib import Path

from eval.agreement import Agreement, check_agreement
from eval.draft import DraftModel
from eval.facts import VerifierFacts
from eval.scoring import Subject
from eval.states import StatesCheck, check_states
from harness.corpus.hidden_states import Corpus
from harness.corpus.rows import read_validation_rows
from harness.drafter.findings import Finding
from harness.errors import HarnessError
from harness.tracking import names
from harness.tracking.records import Checkpoint, RunSummary

_RULE = "trained"
_MOST_TOKENS = 20_000
"""Answer tokens of the validation rows that are replayed at most."""


def check_against_training(
    subject: Subject, checkpoint: Checkpoint, run: RunSummary, verifier: VerifierFacts
) -> list[Finding]:
    """The trainer's accuracies counted again from the file, over the run's own validation rows.

    The verifier's states of a few of these rows are computed again, too: no file of the drafter
    shows that it would be served beside another revision, or with ids of another convention.

    Args:
        subject: The drafter as its file says.
        checkpoint: What the store knows of it.
        run: The training that it comes from.
        verifier: The one that it would be served with.

    Raises:
        EvalError: The corpus' files are damaged, or the verifier does not load here.
    """
    trained: list[float] = []
    while (key := names.METRIC_VAL_ACC.format(step=len(trained))) in checkpoint.metrics:
        trained.append(checkpoint.metrics[key])
    if not trained:
        return [_unchecked("the trainer's accuracies", "none recorded with this checkpoint")]
    try:
        corpus = _load_corpus(run)
    except (HarnessError, LookupError) as error:
        return [_unchecked("the corpus of its training", str(error))]
    ids = corpus.aux_layer_ids
    if ids != subject.facts.aux_layer_ids:
        return [_wrong_layers(ids, subject.facts.aux_layer_ids)]
    val_ratio, seq_length = float(run.params["val_ratio"]), int(run.params["total_seq_len"])
    rows, share = read_validation_rows(corpus, val_ratio, seq_length, _MOST_TOKENS)
    found = check_agreement(
        DraftModel.beside(subject.facts, subject.tensors, subject.parts),
        subject.parts,
        rows,
        trained,
        dtype=run.params.get("dtype", "bfloat16"),
        share_replayed=share,
    )
    states = check_states(rows, verifier, ids, dtype=corpus.dtype)
    return [agreement_finding(found, checkpoint.name), *_judged_states(states)]


def _load_corpus(run: RunSummary) -> Corpus:
    source = next(one.source for one in run.datasets if one.context == "training")
    corpus = Corpus.load(Path(source), deep=False)
    recorded = run.tags[names.TAG_CORPUS_DIGEST]
    if corpus.digest != recorded:
        raise LookupError(f"{source} has digest {corpus.digest[:16]}, not {recorded[:16]} any more")
    return corpus


def agreement_finding(found: Agreement, name: str) -> Finding:
    """What train agreement says of the checkpoint of this name."""
    verdict, fix = "The file computes what was trained.", "none needed"
    if not found.is_judged:
        verdict = "Nothing can be concluded: the drafter has hardly learned."
        fix = "judge a later checkpoint"
    elif not found.agrees:
        verdict, fix = "The file does not compute what was trained.", found.suspects()
    return Finding(
        rule=_RULE,
        severity="info" if found.agrees else "error",
        subject=f"train agreement of {name}",
        expected="the accuracies of its trainer, over its own validation rows",
        found=("they agree; worst " if found.agrees and found.is_judged else "") + found.describe(),
        consequence=verdict,
        fix=fix,
    )


def _judged_states(found: StatesCheck) -> list[Finding]:
    """Nothing, where the verifier gives the states that the drafter was trained on."""
    if found.is_same:
        return []
    worst = max(found.layers, key=lambda layer: layer.difference)
    shift = found.shift
    return [
        Finding(
            rule="S14" if shift else "S21",
            severity="error",
            subject="the verifier's hidden states",
            expected=f"those of the training's corpus, within {found.tolerance:.1%}",
            found=f"layer {worst.layer_id} differs by {worst.difference:.1%}"
            + (f"; the states of layers {shift:+d} fit" if shift else ""),
            consequence="The drafter is handed other states than in training.",
            fix="extract the corpus again and train anew, with ids of vLLM's convention"
            if shift
            else "serve it with the verifier revision that its corpus was made with",
        )
    ]


def _wrong_layers(trained: tuple[int, ...], found: tuple[int, ...]) -> Finding:
    return Finding(
        rule="S14",
        severity="error",
        subject="eagle_aux_hidden_state_layer_ids",
        expected=f"{list(trained)}, whose states it was trained on",
        found=str(list(found)),
        consequence="The drafter is handed the states of other layers than in training.",
        fix=f"set eagle_aux_hidden_state_layer_ids to {list(trained)} in config.json",
    )


def _unchecked(expected: str, found: str) -> Finding:
    return Finding(
        rule=_RULE,
        severity="info",
        subject="train agreement",
        expected=expected,
        found=found,
        consequence="Whether the file computes what was trained was not checked.",
        fix="put the corpus back where its run says, or rely on the rest of --replay",
    )
