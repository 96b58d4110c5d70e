from html.parser import HTMLParser
from pathlib import Path

from fakes.replays import KNOWN, OTHER, answer_row, replay_answers, replay_result

from eval.replaypage import best_of, render_replay, shown_names
from eval.replayresult import ReplayResult

GOOD = replay_answers(
    [
        answer_row([KNOWN, KNOWN, OTHER, KNOWN] * 4, name=f"p{i}", category=category)
        for i, category in enumerate(("chat", "code", "chat"))
    ],
    name="run:good",
)
BAD = replay_answers([answer_row([OTHER] * 12, name="p0")], name="/somewhere/bad")
RESULT = replay_result(BAD, GOOD)


def test_the_page_says_figures_conditions_and_what_they_mean() -> None:
    page = render_replay(RESULT)
    row = GOOD.pooled()
    assert best_of(RESULT) == GOOD
    assert f"<h1>run:good, K = 3: {row.acceptance_length.value:.2f} tokens per step" in page
    assert f"{row.everywhere_length.value:.2f}" in page
    assert f"could pass {row.ceiling:.2f}" in page
    assert "19 of 20 answer tokens" in page
    assert RESULT.source_digest in page
    assert RESULT.verifier_digest in page
    for word in ("walk", "all positions", "ceiling", "emitted"):
        assert f"<dt>{word}</dt>" in page


def test_the_page_needs_no_script_and_no_network() -> None:
    page = render_replay(RESULT)
    assert "<script" not in page
    assert "http" not in page
    assert "src=" not in page


def test_accepted_tokens_are_told_by_more_than_colour() -> None:
    page = render_replay(RESULT)
    assert ".a { background: var(--said); text-decoration: underline" in page
    assert 'Legend: <span class="a">' in page
    assert f'<span class="p"> &lt;{KNOWN}&gt;</span><span class="a"> &lt;{KNOWN}&gt;</span>' in page


def test_every_k_of_every_drafter_is_in_the_table_and_the_chart() -> None:
    page = render_replay(RESULT)
    for k in (1, 2, 3):
        value = GOOD.pooled(k).acceptance_length.value
        assert f'<td>run:good</td><td class="n">{k}</td><td>{value:.2f}' in page
    assert page.count("<polyline") == 2
    assert page.count("<circle") == 1 + 3  # the legend, and one for each K
    assert page.count('width="10"') == 1 + 3


def test_categories_have_rows_of_their_own() -> None:
    page = render_replay(RESULT)
    assert "By kind of prompt" in page
    assert '<td>run:good</td><td>chat</td><td class="n">2</td>' in page


def test_answers_without_drafts_are_no_length() -> None:
    nothing = replay_result(replay_answers([answer_row([OTHER])]))
    page = render_replay(nothing)
    assert "nothing was drafted" in page
    assert "<polyline" not in page


def test_unknown_tokens_past_the_end_are_said_to_be_unknown() -> None:
    unknown = RESULT.model_copy(update={"is_past_end_known": False})
    assert "a server would count a few more" in render_replay(unknown)
    assert "a server would count a few more" not in render_replay(RESULT)


def test_folders_are_shown_by_their_last_part_unless_two_share_it() -> None:
    assert shown_names(RESULT) == {"/somewhere/bad": "bad", "run:good": "run:good"}
    twin = BAD.model_copy(update={"drafter": "/elsewhere/bad"})
    run = BAD.model_copy(update={"drafter": f"run:{'0123456789abcdef' * 2}@3"})
    assert shown_names(replay_result(run)) == {run.drafter: "run:01234567@3"}
    names = shown_names(replay_result(BAD, twin))
    assert names == {"/somewhere/bad": "/somewhere/bad", "/elsewhere/bad": "/elsewhere/bad"}


def test_text_of_models_and_names_cannot_bring_markup_into_the_page() -> None:
    text = RESULT.model_dump_json().replace(f" <{OTHER}>", "<img src=x>")
    text = text.replace("run:good", "<b>good").replace('"p0"', '"<i>p0"')
    page = render_replay(ReplayResult.model_validate_json(text))
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page
    assert "<b>good" not in page
    assert "<i>p0" not in page


def test_every_tag_is_closed() -> None:
    open_tags: list[str] = []
    alone = {"meta", "br", "line", "circle", "rect", "polygon", "polyline"}

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in alone:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in alone:
                assert open_tags.pop() == tag

    Checker().feed(render_replay(RESULT))
    assert open_tags == []


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    RESULT.save(tmp_path / "result.json")
    assert ReplayResult.load(tmp_path / "result.json") == RESULT
    frame = RESULT.to_frame()
    assert len(frame) == 3 * (3 + 1)
    assert frame.num_accepted.sum() == sum(
        GOOD.pooled(k).acceptance.num_accepted for k in (1, 2, 3)
    )
