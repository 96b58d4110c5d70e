import pytest
from fakes.words_template import (
    CHATML,
    MARKED,
    THINKING,
    build_template,
    build_tokenizer,
    rows_of,
)

from harness.corpus.messages import Message, NoConversationError
from harness.corpus.template import ChatTemplate
from harness.corpus.trainrows import Row

SAID = [
    Message("system", "be brief"),
    Message("user", "hi"),
    Message("assistant", "yo  x"),
    Message("user", "ok?"),
    Message("assistant", "bye"),
]


def marked(template: ChatTemplate, row: Row) -> str:
    """The row's text, what has loss in brackets, special tokens by their names."""
    text, is_open = "", False
    for token, mask in zip(row.input_ids, row.loss_mask, strict=True):
        if mask != is_open:
            text, is_open = text + ("[" if mask else "]"), bool(mask)
        text += template.decode([token])
    return text + "]" * is_open


def test_the_mask_is_that_of_the_templates_own_generation_marks() -> None:
    template = build_template(MARKED)
    documents = [message.document() for message in SAID]
    theirs = build_tokenizer(MARKED).apply_chat_template(
        documents, return_dict=True, return_assistant_tokens_mask=True
    )
    (row,) = rows_of(template, SAID)
    # What the template puts behind the last answer was not generated; nobody learns it.
    assert row.input_ids == theirs["input_ids"][: len(row.input_ids)]
    assert row.loss_mask == theirs["assistant_masks"][: len(row.loss_mask)]
    assert not any(theirs["assistant_masks"][len(row.loss_mask) :])
    assert sum(row.loss_mask) == len("yo  x") + 1 + len("bye") + 1


def test_without_marks_the_answer_begins_where_the_generation_prompt_ends() -> None:
    template = build_template(CHATML)
    (row,) = rows_of(template, SAID)
    assert marked(template, row) == (
        "<|system|>be brief<|end|>\n<|user|>hi<|end|>\n<|assistant|>[yo  x<|end|>]\n"
        "<|user|>ok?<|end|>\n<|assistant|>[bye<|end|>]"
    )


def test_an_answer_that_was_cut_off_does_not_end() -> None:
    template = build_template()
    (row,) = rows_of(template, SAID, is_cut=True)
    assert marked(template, row).endswith("[yo  x<|end|>]\n<|user|>ok?<|end|>\n<|assistant|>[bye]")


def test_thoughts_are_learned_and_a_template_that_forgets_them_gives_a_row_per_turn() -> None:
    template = build_template(THINKING)
    said = [*SAID[1:2], SAID[2]._replace(reasoning="hm"), *SAID[3:]]
    first, second = rows_of(template, said)
    assert marked(template, first) == (
        "<|user|>hi<|end|>\n<|assistant|>[<think>hm</think>yo  x<|end|>]"
    )
    assert marked(template, second) == (
        "<|user|>hi<|end|>\n<|assistant|>yo  x<|end|>\n<|user|>ok?<|end|>\n"
        "<|assistant|>[bye<|end|>]"
    )


def test_a_generation_prompt_that_the_answer_writes_otherwise_ends_where_both_agree() -> None:
    prefilled = CHATML.replace("<|assistant|>{% endif", "<|assistant|><think>{% endif")
    template = build_template(prefilled)
    (row,) = rows_of(template, SAID[1:3])
    assert marked(template, row) == "<|user|>hi<|end|>\n<|assistant|>[yo  x<|end|>]"


def test_a_template_without_an_end_of_turn_ends_with_the_last_word() -> None:
    bare = build_tokenizer(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    template = ChatTemplate(bare, frozenset())
    (row,) = rows_of(template, SAID[1:3])
    assert marked(template, row) == "user: hi\n\nassistant: [yo  x]"


@pytest.mark.parametrize(
    ("jinja", "complaint"),
    [
        ("{{ raise_exception('no system please') }}", "refuses it: no system please"),
        ("{{ messages | length }}{{ messages[-1].content }}", "renders what came before"),
        (CHATML.replace("m.content", "m.content | upper"), "rewrites the answer's text"),
    ],
)
def test_a_template_that_cannot_be_split_is_a_reason(jinja: str, complaint: str) -> None:
    with pytest.raises(NoConversationError, match=complaint) as caught:
        build_template(jinja).split(SAID[1:3], is_cut=False)
    assert caught.value.reason == "template"


def test_what_a_turn_costs_is_known() -> None:
    template = build_template()
    assert template.num_tokens_per_turn == len(["<|user|>", "<|end|>", "\n", "<|assistant|>"])
    assert list(template.count_tokens(["abc", ""])) == [3, 0]
