"""A replay as one HTML page for someone who has never seen this project: no script, no network."""

from collections.abc import Sequence
from html import escape

from eval.page import glossary, interval_text, page, short_names, table
from eval.replaychart import bar_chart, length_chart, position_bars
from eval.replayresult import DrafterReplay, Example, ReplayResult, ReplayRow, TokenKind
from eval.result import ALL

_STYLE = """
.text { white-space: pre-wrap; border: 1px solid var(--line); padding: .6rem; margin: .3rem 0 1rem;
  overflow-wrap: anywhere; unicode-bidi: isolate }
.a { background: var(--said); text-decoration: underline; text-decoration-thickness: 2px }
.p { color: var(--soft); font-style: italic }
"""
_CLASSES: dict[TokenKind, str] = {"accepted": "a", "verifier": "v", "prefill": "p"}
_WORDS = {
    "drafter": "a small model that proposes several tokens; the large one, the verifier, accepts "
    "or rejects them, so the text stays the verifier's own",
    "K": "tokens proposed in each step",
    "acceptance length": "tokens gained per step, from 1 (nothing accepted) to K + 1. It says how "
    "good a drafter guesses, not how fast it is",
    "replay": "the drafter is asked for its proposals on texts that the verifier has written "
    "already; what a server would accept is counted without running one",
    "walk": "the steps as a server takes them: after each one it goes on behind what was accepted. "
    "This is the figure that a server shows",
    "all positions": "as if a step began at every token of the text. A trainer sees this figure; "
    "it is mostly higher, since a server meets hard places more often",
    "emitted": "the walk without tokens accepted past the end of an answer, which a server counts "
    "and nobody receives",
    "ceiling": "what a drafter of this vocabulary would reach if it were right wherever it has the "
    "right token. Many drafters know only the most frequent tokens",
    "token": "a word or a piece of one",
    "interval": "where the figure would lie for other prompts of this kind, in 95 of 100 cases "
    "unless said otherwise",
}


def render_replay(result: ReplayResult) -> str:
    """The page, complete in itself."""
    names = shown_names(result)
    parts = [
        f"<h1>{escape(_headline(result))}</h1>",
        f"<p>{escape(_summary(result))}</p>",
        _main_table(result),
        f"<p>{escape(_explanation(result))}</p>",
        "<h2>How it grows with K</h2>",
        length_chart([(names[drafter.drafter], drafter.rows) for drafter in result.drafters]),
        _category_table(result),
        *(_breakdown(names[one.drafter], one, result.k) for one in result.drafters),
        glossary(_WORDS),
        "<h2>Conditions</h2>",
        table(("what", "value"), _conditions(result)),
    ]
    return page(_headline(result), parts, _STYLE)


def shown_names(result: ReplayResult) -> dict[str, str]:
    """Drafters' names as they are shown."""
    return short_names([drafter.drafter for drafter in result.drafters])


def best_of(result: ReplayResult) -> DrafterReplay:
    """The drafter of the greatest acceptance length at the largest K; the first of equals."""
    return max(result.drafters, key=lambda drafter: _value(drafter.pooled()))


def _value(row: ReplayRow) -> float:
    return row.acceptance_length.value if row.acceptance_length else 0.0


def _headline(result: ReplayResult) -> str:
    best = best_of(result)
    name, row = shown_names(result)[best.drafter], best.pooled()
    if row.acceptance_length is None:
        return f"{name}, K = {row.k}: nothing was drafted, the answers are too short"
    first = f"{name}, K = {row.k}: {row.acceptance_length.value:.2f} tokens per step"
    others = len(result.drafters) - 1
    return f"{first}, the best of {others + 1} drafters" if others else first


def _summary(result: ReplayResult) -> str:
    prompts = best_of(result).pooled().num_prompts
    return (
        f"Replayed, not served: {result.num_answer_tokens} tokens that {result.verifier} had "
        f"answered to {prompts} prompts ({result.source}), {result.dtype} arithmetic. "
        f"{result.confidence:.0%} intervals over prompts."
    )


def _explanation(result: ReplayResult) -> str:
    greedy = result.greedy
    past = (
        "Tokens accepted past the end of an answer are counted, as a server does."
        if result.is_past_end_known
        else "Tokens past the end of an answer are not known here, so none there counts as "
        "accepted; a server would count a few more."
    )
    return (
        "The acceptance length is that of the walk: a step begins where a server would begin one. "
        "All positions: a step begins at every token, as in training. "
        f"{past} {greedy.num_equal} of {greedy.num_checked} answer tokens that were checked are "
        "what the verifier itself finds most likely from these hidden states."
    )


def _main_table(result: ReplayResult) -> str:
    names = shown_names(result)
    columns = (
        *("drafter", "K", "acceptance length (walk)", "emitted", "all positions"),
        *("accepted at position 1 to K", "ceiling of the vocabulary"),
    )
    rows = [
        (
            names[drafter.drafter],
            row.k,
            interval_text(row.acceptance_length),
            interval_text(row.acceptance_length_emitted),
            interval_text(row.everywhere_length),
            ", ".join(f"{rate:.0%}" for rate in row.acceptance_rate_at) or "-",
            "-" if row.ceiling is None else f"{row.ceiling:.2f}",
        )
        for drafter in result.drafters
        for row in drafter.rows
        if row.category == ALL
    ]
    return table(columns, rows)


def _category_table(result: ReplayResult) -> str:
    names = shown_names(result)
    rows = [
        (
            names[drafter.drafter],
            row.category,
            row.num_prompts,
            interval_text(row.acceptance_length),
            interval_text(row.everywhere_length),
        )
        for drafter in result.drafters
        for row in drafter.rows
        if row.category != ALL and row.k == result.k
    ]
    if not rows:
        return ""
    columns = ("drafter", "kind of prompt", "prompts", "acceptance length", "all positions")
    return f"<h2>By kind of prompt, K = {result.k}</h2>" + table(columns, rows)


def _breakdown(name: str, drafter: DrafterReplay, k: int) -> str:
    """Where one drafter is right and where not."""
    lengths = [row.length for row in (*drafter.by_position, *drafter.by_token)]
    if not lengths:
        return ""
    most = max(lengths)
    ceiling = drafter.pooled().ceiling
    said = "" if ceiling is None else f" With these gaps no drafter could pass {ceiling:.2f}."
    return "".join(
        (
            f"<h2>{escape(name)}: where it is right</h2>",
            "<p>Tokens per step by the place in the answer where the step begins, counted in "
            "tokens; all positions. A bar of no length is 1.0: nothing accepted.</p>",
            bar_chart(position_bars(drafter.by_position), 1.0, most, "by place in the answer"),
            f"<p>By whether the next token is one that this drafter can propose at all.{said}</p>",
            bar_chart(position_bars(drafter.by_token), 1.0, most, "by kind of token"),
            _examples(drafter.examples, k),
        )
    )


def _examples(examples: Sequence[Example], k: int) -> str:
    if not examples:
        return ""
    ranked = sorted(examples, key=lambda example: example.acceptance_length)
    half = (len(ranked) + 1) // 2
    legend = (
        '<p>Legend: <span class="a">accepted from the drafter</span> (blue and underlined), '
        '<span class="v">written by the verifier</span> (plain), '
        '<span class="p">the answer\'s first token, which nobody drafts</span> (grey, slanted). '
        f"K = {k}.</p>"
    )
    return "".join(
        (
            "<h3>Worst and best answers</h3>",
            legend,
            *(_example(example, "among the worst") for example in ranked[:half]),
            *(_example(example, "among the best") for example in reversed(ranked[half:])),
        )
    )


def _example(example: Example, rank: str) -> str:
    head = f"{example.prompt_id} ({example.category}), {rank}"
    text = "".join(
        f'<span class="{_CLASSES[piece.kind]}">{escape(piece.text)}</span>'
        for piece in example.pieces
    )
    return (
        f"<div><b>{escape(head)}</b>: {example.acceptance_length:.2f} tokens per step"
        f'<div class="text">{text}</div></div>'
    )


def _conditions(result: ReplayResult) -> list[tuple[object, ...]]:
    states = "there already" if result.states_s is None else f"{result.states_s:.1f} s"
    return [
        ("replayed", result.source),
        ("its digest", result.source_digest),
        ("verifier", result.verifier),
        ("its digest", result.verifier_digest),
        ("sequences, tokens, answer tokens",
         f"{result.num_sequences}, {result.num_tokens}, {result.num_answer_tokens}"),
        ("K", result.k),
        ("arithmetic", result.dtype),
        ("the verifier's answers and hidden states", states),
        *((f"replay of {d.drafter}", f"{d.replay_s:.2f} s") for d in result.drafters),
        *((f"digest of {d.drafter}", d.digest or "-") for d in result.drafters),
        *result.environment.items(),
    ]  # fmt: skip
