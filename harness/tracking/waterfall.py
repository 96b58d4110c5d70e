"""From the trainer's estimate to what is served: each step of the gap with its own name.

One document a training run (`gap.json`), one entry a checkpoint; every stage that learns a figure
adds it. Differences are taken only between figures of which one thing differs.
"""

from pydantic import ValidationError

from eval.result import BenchResult, Interval
from harness.config.load import Frozen
from harness.errors import TrackingError
from harness.tracking import names
from harness.tracking.figures import whiskers
from harness.tracking.measurements import rows_of
from harness.tracking.run import HtmlFigure, Run
from harness.tracking.store import Store

FIGURE_NAME = "gap"
_LABELS = {
    "estimate": "trainer's estimate",
    "domain_all": "all positions,<br>validation",
    "domain_walk": "walk,<br>validation",
    "prompts_all": "all positions,<br>evaluation prompts",
    "prompts_walk": "walk,<br>evaluation prompts",
    "served": "served",
}
_STEPS = (
    ("definition", "estimate", "domain_all"),
    ("walk in domain", "domain_all", "domain_walk"),
    ("domain", "domain_all", "prompts_all"),
    ("walk", "prompts_all", "prompts_walk"),
    ("serving", "prompts_walk", "served"),
)
"""Definition: the estimate multiplies accuracies of steps and counts a token outside the draft
vocabulary as right when the drafter says the best one within. Walk: a server drafts again right
after a mistake. Domain: other prompts. Serving: what an engine does otherwise."""


class Served(Frozen):
    """What a bench measured."""

    bench_run_id: str
    length: Interval
    prompts: str
    is_comparable: bool
    """Whether K, prompts and answer length are those of the walk over the evaluation prompts."""


class GapStep(Frozen):
    """One difference; negative is a loss."""

    name: str
    from_stage: str
    to_stage: str
    difference: float


class CheckpointGap(Frozen):
    """Acceptance lengths of one checkpoint at one K; what is not known is None."""

    model_id: str
    epoch: int | None
    k: int
    estimate: float | None = None
    domain_all: Interval | None = None
    domain_walk: Interval | None = None
    prompts_all: Interval | None = None
    prompts_walk: Interval | None = None
    served: Served | None = None
    steps: tuple[GapStep, ...] = ()
    """The named differences, as they were when this was written."""


class Gap(Frozen):
    """The document on a training run."""

    schema_version: int = 1
    prompts: str | None
    """Reference of the evaluation prompts."""
    prompts_digest: str | None
    max_tokens: int | None
    checkpoints: tuple[CheckpointGap, ...] = ()

    def find(self, model_id: str) -> CheckpointGap | None:
        """The entry of a checkpoint."""
        return next((one for one in self.checkpoints if one.model_id == model_id), None)

    def put(self, entry: CheckpointGap) -> "Gap":
        """With this entry, in place of an earlier one of the same checkpoint."""
        rest = [one for one in self.checkpoints if one.model_id != entry.model_id]
        return self.model_copy(update={"checkpoints": (*rest, entry)})


def stages(entry: CheckpointGap) -> dict[str, Interval]:
    """The figures that are known, in order."""
    found: dict[str, Interval | None] = {
        "estimate": None if entry.estimate is None else Interval(value=entry.estimate),
        "domain_all": entry.domain_all,
        "domain_walk": entry.domain_walk,
        "prompts_all": entry.prompts_all,
        "prompts_walk": entry.prompts_walk,
        "served": entry.served.length if entry.served else None,
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def gap_steps(entry: CheckpointGap) -> list[GapStep]:
    """The named differences between figures that are known and comparable."""
    known = stages(entry)
    if entry.served and not entry.served.is_comparable:
        del known["served"]
    return [
        GapStep(
            name=name,
            from_stage=start,
            to_stage=end,
            difference=known[end].value - known[start].value,
        )
        for name, start, end in _STEPS
        if start in known and end in known
    ]


def read_gap(store: Store, run_id: str) -> Gap | None:
    """The document of a training run; None where it has none.

    Raises:
        TrackingError: It is there and cannot be read.
    """
    text = store.read_text(run_id, names.ARTIFACT_GAP)
    try:
        return Gap.model_validate_json(text) if text else None
    except ValidationError as error:
        raise TrackingError(
            f"{names.ARTIFACT_GAP} of run {run_id} was written by another version: {error}"
        ) from error


def write_gap(run: Run, gap: Gap) -> None:
    """Puts the document on its run, the named differences beside the figures."""
    entries = tuple(
        entry.model_copy(update={"steps": tuple(gap_steps(entry))}) for entry in gap.checkpoints
    )
    text = gap.model_copy(update={"checkpoints": entries}).model_dump_json(indent=1)
    run.log_text(names.ARTIFACT_GAP, text)


def add_served(
    store: Store, result: BenchResult, model_ids: dict[str, str], bench_run_id: str
) -> None:
    """Adds what a bench measured to the trainings of its drafters, document and figure.

    Args:
        store: The open store.
        result: Of the bench.
        model_ids: Drafter name to model id, of the drafters that are checkpoints of this store.
        bench_run_id: The run of the bench.
    """
    for drafter, model_id in model_ids.items():
        run_id = store.get_checkpoint(model_id).run_id
        gap = read_gap(store, run_id)
        entry = gap.find(model_id) if gap else None
        if gap is None or entry is None:
            continue
        served = _served(gap, entry, result, drafter, bench_run_id)
        if served is None:
            continue
        entry = entry.model_copy(update={"served": served})
        run = store.attach_run(run_id)
        write_gap(run, gap.put(entry))
        run.log_figure(draw_gap(entry), FIGURE_NAME)


def draw_gap(entry: CheckpointGap) -> HtmlFigure:
    """The stages as bars with their intervals, the named differences between them."""
    # Late: plotly takes a second, which most who import this module do not need.
    from plotly import graph_objects  # noqa: PLC0415

    known = stages(entry)
    places = {name: place for place, name in enumerate(known)}
    top = max((figure.high or figure.value for figure in known.values()), default=1.0)
    figure = graph_objects.Figure(
        graph_objects.Bar(
            x=[_LABELS[name] for name in known],
            y=[stage.value - 1 for stage in known.values()],
            base=1.0,
            text=[f"{stage.value:.2f}" for stage in known.values()],
            textposition="inside",
            error_y=whiskers(list(known.values())),
        )
    )
    for row, step in enumerate(gap_steps(entry)):
        left, right = places[step.from_stage], places[step.to_stage]
        height = top + (0.06 + 0.05 * row) * max(top - 1, 0.1) * 2
        figure.add_shape(type="line", x0=left, x1=right, y0=height, y1=height)
        figure.add_annotation(
            x=(left + right) / 2,
            y=height,
            text=f"{step.name} {step.difference:+.2f}",
            showarrow=False,
            yshift=9,
        )
    which = "" if entry.epoch is None else f" of epoch {entry.epoch}"
    figure.update_layout(
        title=f"Acceptance length{which}, K = {entry.k}: from the trainer's estimate to what is "
        "served",
        yaxis_title="tokens per draft, bonus token included",
        template="plotly_white",
        showlegend=False,
    )
    drawn: HtmlFigure = figure
    return drawn


def _served(
    gap: Gap, entry: CheckpointGap, result: BenchResult, drafter: str, bench_run_id: str
) -> Served | None:
    """The row at the entry's K, else at the nearest; None where nothing was drafted."""
    rows = [(row, row.acceptance_length) for row in rows_of(result, drafter)]
    drafted = [(row, length) for row, length in rows if length is not None]
    if not drafted:
        return None
    row, length = min(drafted, key=lambda item: abs(item[0].k - entry.k))
    is_same = (
        row.k == entry.k
        and result.prompts_digest == gap.prompts_digest
        and result.spec.sampling.max_tokens == gap.max_tokens
        and result.spec.sampling.temperature == 0
    )
    return Served(
        bench_run_id=bench_run_id,
        length=length,
        prompts=result.spec.prompts_name,
        is_comparable=is_same,
    )
