"""The verifier's tokenizer and chat template: how text becomes the tokens that the verifier sees.

Prompt and answer are tokenised apart, at the place where the generation prompt ends: that is where
the verifier's own tokens begin, and a token that straddled it would never be generated.
"""

from collections.abc import Iterator, Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError

from harness.corpus.messages import Message, NoConversationError
from harness.drafter.tensors import read_json_object
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError

_BATCH_TEXTS = 256


class RenderedTurn(NamedTuple):
    """One answer in the template's text, with all that comes before it."""

    prompt: str
    answer: str
    """With all that the template puts behind it."""
    num_said: int
    """Characters of `answer` up to the end of what was said."""


class AnsweredTurn(NamedTuple):
    """One answer in tokens, with all that the verifier saw before it."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    """To the end-of-turn token, which is left out where the answer was cut off."""


class ChatTemplate:
    """Renders and tokenises as the verifier's server does.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        stop_ids: Tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids

    @classmethod
    def load(cls, verifier: Verifier, *, trust_remote_code: bool = False) -> "ChatTemplate":
        """The template in the verifier's folder.

        Raises:
            ConfigError: The tokenizer does not load, or has no chat template.
        """
        tokenizer = load_tokenizer(verifier.path, trust_remote_code=trust_remote_code)
        if getattr(tokenizer, "chat_template", None) is None:
            raise ConfigError(
                f"verifier {verifier.reference}: expected a tokenizer with a chat template, found "
                f"none in {verifier.path}",
                "take the instruct version, or put its chat_template.jinja into the folder",
            )
        return cls(tokenizer, _read_stop_ids(verifier.path, tokenizer))

    @property
    def num_tokens_per_turn(self) -> int:
        """Tokens that the template puts around a question, a default system prompt included."""
        word = "hello"
        whole = self.encode([self._render([Message("user", word)], is_asking=True)])[0]
        return len(whole) - len(self.encode([word])[0])

    def count_tokens(self, texts: Sequence[str]) -> Iterator[int]:
        """Tokens of each text, the template's left out."""
        return (len(ids) for ids in self.encode(texts))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of rendered texts; no token is put in front."""
        found: list[list[int]] = []
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = list(texts[start : start + _BATCH_TEXTS])
            options = {"add_special_tokens": False, "return_attention_mask": False}
            found += self._tokenizer(batch, **options)["input_ids"]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def split(self, messages: Sequence[Message], *, is_cut: bool) -> list[RenderedTurn]:
        """Prompt and answer text of each answer of a conversation, as the template renders them.

        Args:
            messages: The conversation.
            is_cut: Whether its last answer was cut off: it then ends with its last word.

        Raises:
            NoConversationError: The template refuses the conversation, writes an answer in other
                words, or does not end a prompt where an answer begins.
        """
        answers = [at for at, said in enumerate(messages) if said.role == "assistant"]
        turns = [self._split_at(messages, at) for at in answers]
        if is_cut and turns:
            turns[-1] = turns[-1]._replace(answer=turns[-1].answer[: turns[-1].num_said])
        return turns

    def tokenise(self, turns: Sequence[RenderedTurn]) -> list[AnsweredTurn]:
        """Texts to tokens, each answer to its first end-of-turn token or its last word."""
        prompts = self.encode([turn.prompt for turn in turns])
        answers = self.encode([turn.answer for turn in turns])
        return [
            AnsweredTurn(prompt, self._end(answer, turn))
            for prompt, answer, turn in zip(prompts, answers, turns, strict=True)
        ]

    def _split_at(self, messages: Sequence[Message], at: int) -> RenderedTurn:
        asked = self._render(messages[:at], is_asking=True)
        whole = self._render(messages[: at + 1], is_asking=False)
        boundary = len(asked)
        if not whole.startswith(asked):
            boundary = self._find_boundary(messages[:at], asked, whole)
        answer, said = whole[boundary:], messages[at].content.strip()
        place = answer.rfind(said)
        if place < 0:
            raise NoConversationError("template", "the template rewrites the answer's text")
        return RenderedTurn(whole[:boundary], answer, place + len(said))

    def _find_boundary(self, before: Sequence[Message], asked: str, whole: str) -> int:
        """Where the answer begins if the generation prompt itself is written another way.

        Source: speculators 0.9.0, data_generation/preprocessing.py, `_render_boundary_rows`.
        """
        boundary = len(commonprefix((asked, whole)))  # noqa: RUF071 - characters, not paths
        history = self._render(before, is_asking=False)
        if not whole.startswith(history) or boundary < len(history):
            raise NoConversationError(
                "template", "the template renders what came before an answer in another way"
            )
        return boundary

    def _render(self, messages: Sequence[Message], *, is_asking: bool) -> str:
        documents = [message.document() for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                documents, tokenize=False, add_generation_prompt=is_asking
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise NoConversationError("template", f"the template refuses it: {error}") from error
        return text

    def _end(self, ids: list[int], turn: RenderedTurn) -> list[int]:
        for place, token in enumerate(ids):
            if token in self._stop_ids:
                return ids[: place + 1]
        is_bare = turn.num_said == len(turn.answer)
        return ids if is_bare else self.encode([turn.answer[: turn.num_said]])[0]


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a verifier's folder.

    Raises:
        ConfigError: It does not load.
    """
    # Late: transformers takes seconds.
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raises Exception itself
        raise ConfigError(
            f"{folder}: expected a tokenizer that transformers loads, found: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "check tokenizer.json and tokenizer_config.json; a tokenizer that is code needs "
            "trust_remote_code",
        ) from error


def special_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """Every token that stands for itself and not for text, those that end an answer included."""
    added = tokenizer.added_tokens_decoder
    marked = {number for number, token in added.items() if token.special}
    return _read_stop_ids(folder, tokenizer) | marked | frozenset(tokenizer.all_special_ids)


def _read_stop_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """Tokens at which vLLM ends an answer: those of generation_config.json and the tokenizer's."""
    path = folder / "generation_config.json"
    configured = read_json_object(path).get("eos_token_id") if path.is_file() else None
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if isinstance(i, int))
