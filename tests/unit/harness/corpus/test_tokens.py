from pathlib import Path
from typing import NamedTuple

import pytest

from harness.corpus.conversations import Conversation, Turn
from harness.corpus.dialogues import Unusable
from harness.corpus.tokens import PrepareConfig
from harness.corpus.trainrows import build_all, build_rows
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, WorkError

VERIFIER = Verifier(
    reference="tiny", path=Path(), revision=None, digest=None, architectures=(),
    model_type="llama", hidden_size=8, num_layers=4, num_attention_heads=1,
    num_key_value_heads=1, head_dim=8, vocab_size=100, max_position_embeddings=128,
    rms_norm_eps=None, rope_parameters={}, dtype=None, embed_key=None, lm_head_key=None,
    is_tied=False,
)  # fmt: skip


def conversation(*turns: tuple[tuple[int, ...], tuple[int, ...]]) -> Conversation:
    return Conversation(
        id="c",
        category="chat",
        turns=tuple(
            Turn(
                question="q",
                answer="a",
                prompt_token_ids=prompt,
                token_ids=answer,
                finish_reason="stop",
            )
            for prompt, answer in turns
        ),
    )


def test_loss_is_on_the_answer_alone() -> None:
    (row,) = build_rows(conversation(((1, 2, 3), (4, 5))))
    assert row.input_ids == [1, 2, 3, 4, 5]
    assert row.loss_mask == [0, 0, 0, 1, 1]


def test_no_row_is_longer_than_the_context() -> None:
    long: list[Conversation | Unusable] = [conversation((tuple(range(90)), tuple(range(60))))]
    built = build_all(long, VERIFIER, PrepareConfig(seq_length=2048), 1, lambda *_: None)
    assert len(built.rows[0].input_ids) == VERIFIER.max_position_embeddings == 128
    assert (built.counts["cut_rows"], built.counts["loss_tokens"]) == (1, 38)


def test_turns_whose_prompts_go_on_share_a_row() -> None:
    (row,) = build_rows(conversation(((1, 2), (3, 9)), ((1, 2, 3, 9, 7), (8, 9))))
    assert row.input_ids == [1, 2, 3, 9, 7, 8, 9]
    assert row.loss_mask == [0, 0, 1, 1, 0, 1, 1]


def test_a_template_that_rewrites_history_gives_a_row_per_turn() -> None:
    first, second = build_rows(conversation(((1, 2), (3, 9)), ((1, 2, 4, 7), (8, 9))))
    assert first.input_ids == [1, 2, 3, 9]
    assert second.input_ids == [1, 2, 4, 7, 8, 9]
    assert second.loss_mask == [0, 0, 0, 0, 1, 1]


def test_a_third_turn_may_go_on_after_a_rewritten_second() -> None:
    rows = build_rows(conversation(((1,), (2,)), ((5,), (6,)), ((5, 6, 7), (8,))))
    assert [row.input_ids for row in rows] == [[1, 2], [5, 6, 7, 8]]
    assert rows[1].loss_mask == [0, 1, 0, 1]


def test_a_line_that_is_no_conversation_is_named(tmp_path: Path) -> None:
    from harness.corpus.conversations import _read_conversations
    from harness.errors import CheckError

    path = tmp_path / "conversations.jsonl"
    path.write_text(
        conversation(((1,), (2,))).model_dump_json() + '\n{"id": "x", "category": "y"}\n'
    )
    with pytest.raises(CheckError, match=r"conversations\.jsonl:2: turns"):
        list(_read_conversations(path))


class Cut(NamedTuple):
    seq_length: int
    seed: int = 0


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


def test_rows_are_cut_and_what_has_no_loss_is_listed_with_the_reason() -> None:
    found = [
        conversation(((1,) * 10, (2,) * 10)),
        conversation(((1,) * 20, (2,))).model_copy(update={"id": "late"}),
        Unusable(id="bad", reason="wrong_role", detail="tool"),
    ]
    built = build_all(found, VERIFIER, Cut(16), 3, silent)
    (row,) = built.rows
    assert (len(row.input_ids), int(row.loss_mask.sum())) == (16, 6)
    assert [(one.id, one.reason) for one in built.dropped] == [
        ("late", "beyond_length"),
        ("bad", "wrong_role"),
    ]
    assert built.counts == {
        "conversations": 2,
        "rows": 1,
        "tokens": 16,
        "loss_tokens": 6,
        "cut_rows": 1,
        "dropped_rows": 1,
        "dropped_conversations": 1,
    }


def test_nothing_left_says_why() -> None:
    with pytest.raises(WorkError, match=r"1 beyond_length, as in c: the answer begins behind 20"):
        build_all([conversation(((1,) * 20, (2,)))], VERIFIER, Cut(16), 1, silent)


def test_a_token_that_the_verifier_lacks_is_refused() -> None:
    with pytest.raises(CheckError, match="token ids below the verifier's 100, found 100"):
        build_all([conversation(((1,), (100,)))], VERIFIER, Cut(16), 1, silent)


def test_the_plan_of_an_older_folder_is_still_its_plan() -> None:
    assert PrepareConfig().plan() == {"seq_length": 2048, "seed": 0}
    assert PrepareConfig(limit=5).plan() == {"seq_length": 2048, "seed": 0, "limit": 5}
