"""Kimi-K2.5 in miniature: its nested config, names, MLA and experts, at a few hundred kilobytes.

62 becomes 30 layers and 7,168 hidden becomes 56; hidden / heads is 14, as it is 112 there, and the
drafter's head_dim is 16, as it is 128 there. Random weights, so that greedy answers run in circles.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from transformers.models.kimi_k25 import Kimi_K25Config, Kimi_K25ForConditionalGeneration

from .drafters import HEADS, NUM_LAYERS, VOCAB

HIDDEN, HEAD_DIM = 56, 16
AUX_LAYER_IDS = (2, 15, 27)
SPECIAL = ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>")
_TEMPLATE = (
    "{%- for message in messages -%}<|im_{{ message['role'] }}|> {{ message['role'] }} "
    "<|im_middle|> {{ message['content'] }} <|im_end|> {% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|> assistant <|im_middle|> {%- endif -%}"
)
"""As Kimi's, without `{% generation %}`: answers are found by the tokens, not by the template."""
_TEXT = {
    "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 96,
    "moe_intermediate_size": 24, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "n_shared_experts": 1, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "max_position_embeddings": 512, "rope_theta": 50000.0,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "dtype": "float32",
    "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
_VISION = {
    "patch_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 16,
    "intermediate_size": 16, "pos_emb_height": 4, "pos_emb_width": 4,
}  # fmt: skip


def write_kimi_verifier(folder: Path, seed: int = 0) -> Path:
    """A verifier that transformers runs, with the names and the config of the published one."""
    torch.manual_seed(seed)
    text = {**_TEXT, "initializer_range": 0.25}
    wrapper = {"vision_config": _VISION, "projection_hidden_size": 16}
    model = Kimi_K25ForConditionalGeneration(
        Kimi_K25Config(text_config=text, **wrapper, tie_word_embeddings=False)
    )
    model.float().save_pretrained(folder, max_shard_size="700KB")
    _publish_names(folder)
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "text_config": _TEXT,
        "tie_word_embeddings": False,
        **wrapper,
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)
    return folder


def prompt_line(number: int) -> str:
    """A prompt as JSON: eight words that the tokenizer knows."""
    words = [f"t{(number * 37 + step * 11) % (VOCAB - 30)}" for step in range(8)]
    return json.dumps({"id": f"p{number}", "category": "chat", "prompt": " ".join(words)})


def _publish_names(folder: Path) -> None:
    """transformers 5.19 writes the decoder's layers as `blocks`, the name of the vision tower's."""
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    for shard in sorted(set(index["weight_map"].values())):
        tensors = load_file(folder / shard)
        save_file({_published(name): value for name, value in tensors.items()}, folder / shard)
    index["weight_map"] = {_published(k): shard for k, shard in index["weight_map"].items()}
    index_path.write_text(json.dumps(index))


def _published(name: str) -> str:
    return name.replace("language_model.model.blocks.", "language_model.model.layers.")


def _write_tokenizer(folder: Path) -> None:
    words = {word: number for number, word in enumerate((*SPECIAL, "user", "assistant"))}
    words |= {f"t{number}": len(words) + number for number in range(VOCAB - len(words))}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="t0",
        bos_token="[BOS]",
        eos_token="<|im_end|>",
        additional_special_tokens=[AddedToken(word) for word in SPECIAL],
        chat_template=_TEMPLATE,
    ).save_pretrained(folder)
