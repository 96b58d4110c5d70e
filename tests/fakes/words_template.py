"""A real transformers tokenizer that counts words, with a chat template, built in memory."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from harness.corpus.conversations import Conversation, Turn
from harness.corpus.messages import Message
from harness.corpus.template import ChatTemplate
from harness.corpus.trainrows import Row, build_rows

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Drops what was thought in earlier turns, as Kimi's, DeepSeek's and Qwen's templates do."""
_SPECIAL = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>")


def build_tokenizer(template: str | None = CHATML, *, words: str = "") -> PreTrainedTokenizerFast:
    """Letters, spaces and line ends are tokens, and each of `words`; 3 is the end of a turn."""
    letters = [chr(code) for code in range(32, 127)]
    known = [*_SPECIAL, "\n", *letters, *words.split()]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(known))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = Split("", "isolated")
    found = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=" ", eos_token="<|end|>", chat_template=template
    )
    found.add_special_tokens({"additional_special_tokens": list(_SPECIAL)})
    return found


def build_template(template: str = CHATML) -> ChatTemplate:
    """The template over that tokenizer."""
    tokenizer = build_tokenizer(template)
    return ChatTemplate(tokenizer, frozenset({tokenizer.convert_tokens_to_ids("<|end|>")}))


def rows_of(
    template: ChatTemplate, messages: Sequence[Message], *, is_cut: bool = False
) -> list[Row]:
    """The rows of a dialogue whose answers are split as a server would make them."""
    answered = template.tokenise(template.split(messages, is_cut=is_cut))
    turns = tuple(
        Turn(
            question="q",
            answer="a",
            prompt_token_ids=tuple(turn.prompt_token_ids),
            token_ids=tuple(turn.token_ids),
            finish_reason="stop",
        )
        for turn in answered
    )
    return build_rows(Conversation(id="c", category="c", turns=turns))
