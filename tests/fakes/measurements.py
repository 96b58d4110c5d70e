"""Hand-made measurements: every figure of the results they give can be checked by hand."""

from pathlib import Path

from eval.answers import Answer, Speculation
from eval.assembly import Measured, build_result
from eval.cells import Cell, CellKey
from eval.counters import count_answers
from eval.result import BenchResult, Lossless
from eval.spec import BenchSpec, DrafterSpec, Prompt, ServerSpec

NUM_PROMPTS = 10
PROMPTS = tuple(
    Prompt(id=f"p{i}", category="code" if i % 2 else "chat", turns=("x",))
    for i in range(NUM_PROMPTS)
)


def make_spec(**changes: object) -> BenchSpec:
    values: dict[str, object] = {
        "server": ServerSpec(verifier=Path("v")),
        "drafters": (DrafterSpec(name="a", path=Path("a"), digest="d" * 64),),
        "prompts": PROMPTS,
        "prompts_name": "p",
    }
    return BenchSpec.model_validate(values | changes)


def make_answer(
    prompt_id: str,
    said: tuple[int, ...],
    histogram: tuple[int, ...] = (),
    *,
    prompt: tuple[int, ...] = (0, 1, 2, 3, 4),
    category: str = "chat",
    tpot_s: float = 0.1,
) -> Answer:
    """What a server said to one turn; the histogram is of drafts of 3 by accepted tokens."""
    steps = sum(histogram)
    speculation = Speculation(
        acceptance_histogram=histogram,
        num_spec_steps=steps,
        num_accepted_draft_tokens=sum(j * n for j, n in enumerate(histogram)),
        num_draft_tokens=3 * steps,
    )
    return Answer(
        prompt_id=prompt_id,
        category=category,
        turn=0,
        text="",
        token_ids=said,
        prompt_token_ids=prompt,
        num_prompt_tokens=len(prompt),
        num_tokens=len(said),
        finish_reason="length",
        sent_s=0.0,
        ttft_s=0.1,
        latency_s=0.1 + (len(said) - 1) * tpot_s,
        speculation=speculation if steps else None,
    )


def make_cell(
    arm: str, session: str, tpot_s: float, histogram: tuple[int, ...] = (), foreign: float = 0.0
) -> Cell:
    said = tuple(range(21))
    answers = [
        make_answer(prompt.id, said, histogram, category=prompt.category, tpot_s=tpot_s)
        for prompt in PROMPTS
    ]
    return Cell(
        key=CellKey(session=session, arm=arm, k=3 if histogram else None, concurrency=1, block=0),
        answers=tuple(answers),
        counters=count_answers(answers),
        wall_s=sum(answer.latency_s for answer in answers),
        started_unix_s=0.0,
        foreign_cpu_share=foreign,
    )


def make_result(
    cells: list[Cell],
    verdict: Lossless | None = None,
    spec: BenchSpec | None = None,
    acceptance_cells: tuple[Cell, ...] = (),
) -> BenchResult:
    measured = Measured(
        cells=tuple(cells),
        acceptance_cells=acceptance_cells,
        verdicts={("a", 3, 1): verdict} if verdict else {},
        pairing="bracketed",
        idle_cost=None,
        stopped_because="all prompts were used",
        environment={},
        engines=(),
        swaps=(),
        swap_checks=(),
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=1.0,
    )
    return build_result(spec or make_spec(), measured)


# Ten drafts a prompt: 4 accepted none, 3 one, 2 two, 1 three; 20 tokens after the first.
DRAFTED = make_cell("a", "k3-0", tpot_s=0.04, histogram=(4, 3, 2, 1))
