from html.parser import HTMLParser

from fakes.measurements import DRAFTED, make_cell, make_result, make_spec

from eval.report import render_html
from eval.result import BenchResult

RESULT = make_result([make_cell("baseline", "before", 0.06, foreign=0.4), DRAFTED])


def test_the_page_says_the_result_the_reason_and_the_conditions() -> None:
    page = render_html(RESULT)
    best = RESULT.best
    assert f"{best.decode_speedup.value:.2f}x" in page
    assert best.why is not None
    assert best.why.replace(">", "&gt;") in page
    assert RESULT.prompts_digest in page
    for flag in best.flags:
        assert flag in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_names_cannot_bring_markup_into_the_page() -> None:
    text = RESULT.model_dump_json().replace('"drafter":"a"', '"drafter":"<img src=x>"')
    page = render_html(BenchResult.model_validate_json(text))
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page


def test_every_tag_is_closed() -> None:
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in {"meta", "br", "line", "circle"}:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in {"line", "circle"}:
                assert open_tags.pop() == tag

    Checker().feed(render_html(RESULT))
    assert open_tags == []


def test_a_drafter_given_as_a_folder_goes_by_its_name_and_its_path_stands_below() -> None:
    text = RESULT.model_dump_json().replace('"drafter":"a"', '"drafter":"/models/good"')
    text = text.replace('"name":"a"', '"name":"/models/good"')
    html = render_html(BenchResult.model_validate_json(text))
    assert "<h1>good, K = 3" in html
    assert html.count("/models/good") == 1


def test_rows_with_warnings_are_announced_at_the_top() -> None:
    html = render_html(RESULT)
    assert html.index("1 of 1 rows have a warning") < html.index("<table>")
    quiet = [make_cell("baseline", "before", 0.06), DRAFTED]
    rows = [row.model_copy(update={"flags": ()}) for row in make_result(quiet).results]
    assert "have a warning" not in render_html(
        make_result(quiet).model_copy(update={"results": tuple(rows)})
    )


def test_times_acceptance_and_steps_have_tables_with_units() -> None:
    html = render_html(RESULT)
    for text in (
        "first token after (ms)",
        "tokens per second",
        "verifier alone (ms)",
        "K = 3: 80.0",
    ):
        assert text in html


def test_ceilings_say_how_they_were_found() -> None:
    assert "What a drafter of this size would bring" not in render_html(RESULT)
    cells = [make_cell("baseline", "before", 0.06), DRAFTED]
    page = render_html(make_result(cells, spec=make_spec(ceiling=(1.0, 3.0))))
    assert page.count("acceptance length over step cost") == 2
    assert ">2.25<" in page
