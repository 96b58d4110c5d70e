"""What strangers wrote into files is shown as text: no markup, no escape sequence, no crash."""

import json
from pathlib import Path

import pytest

from harness.config.load import Frozen
from harness.render import log, show_facts, show_json, show_marked, show_table, show_text

NASTY = "[/red]\x1b[2J\ud800\u202e[bold]x"
SHOWN = "[/red]\\x1b[2J\\ud800\\u202e[bold]x"


class Document(Frozen):
    path: Path
    text: str


def test_nothing_from_a_file_reaches_the_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_text(NASTY)
    show_facts(NASTY, {"a": NASTY})
    show_table("title", ("name", NASTY), [("a", NASTY), ("[link=x]", None)])
    log(NASTY)
    out, err = capsys.readouterr()
    assert out.count(SHOWN) == 5
    assert err.count(SHOWN) == 1
    assert "[link=x]" in out
    assert "\x1b" not in out + err


def test_lines_and_tabs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    show_text("a\nb")
    assert capsys.readouterr().out == "a\nb\n"


def test_a_path_that_is_no_utf8_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(Document(path=Path("/a/\udcff"), text="\udcff"))
    assert json.loads(capsys.readouterr().out) == {"path": "/a/\udcff", "text": "\udcff"}


def test_marked_text_is_told_without_colours_and_held_back_like_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_marked([("asked [bold]?\n", False), ("said\x1b[2J", True), (".", False)])
    assert capsys.readouterr().out == "asked [bold]?\n[[said\\x1b[2J]].\n"
