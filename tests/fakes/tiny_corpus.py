"""A verifier that runs and a corpus of its own greedy answers, in the real formats, in seconds.

The verifier is random, so its greedy answers run into short cycles: a drafter can learn them.
hidden / heads is 8; drafters trained on it are given another head_dim.
"""

import json
from collections import Counter
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eval.facts import VerifierFacts
from harness.corpus.manifest import Plan, finish_stage
from harness.digests import digest_files
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import load_settings

HIDDEN, HEADS, KV_HEADS, NUM_LAYERS, VOCAB = 24, 3, 3, 6, 96
AUX_LAYER_IDS = (1, 3, 5)
NUM_ROWS, PROMPT_TOKENS, ANSWER_TOKENS = 24, 6, 20


def write_running_verifier(
    folder: Path,
    seed: int = 0,
    *,
    hidden: int = HIDDEN,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    initializer_range: float = 0.3,
) -> Path:
    """A random Llama that transformers can run."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=128,
        initializer_range=initializer_range,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def running_verifier_facts(folder: Path) -> VerifierFacts:
    """Where the parts of such a verifier lie."""
    return VerifierFacts(
        path=folder,
        digest="v" * 64,
        num_layers=NUM_LAYERS,
        embed_key="model.embed_tokens.weight",
        head_key="lm_head.weight",
        norm_key="model.norm.weight",
        rms_norm_eps=1e-6,
    )


def write_nested_verifier(folder: Path, plain: Path) -> Path:
    """The same weights as a wrapper of a type that transformers does not know, in two shards."""
    folder.mkdir(parents=True)
    document = json.loads((plain / "config.json").read_text())
    text = {**document, "architectures": None}
    config = {"model_type": "tiny_omni", "architectures": ["TinyOmni"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    tensors = {f"language_model.{k}": v for k, v in load_file(plain / "model.safetensors").items()}
    tensors["vision_tower.embed_tokens.weight"] = torch.zeros(2, 2)
    shards: dict[str, dict[str, torch.Tensor]] = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
        shards["ab"[number % 2] + ".safetensors"][name] = tensor
    for shard, content in shards.items():
        save_file(content, folder / shard)
    weight_map = {name: shard for shard, content in shards.items() for name in content}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def write_tiny_corpus(
    folder: Path,
    verifier_path: Path,
    *,
    named: Path | None = None,
    is_broken: bool = False,
    num_distinct: int = NUM_ROWS,
) -> Path:
    """A finished extract folder.

    `named` is the verifier that it says it was made with; `is_broken` puts a NaN into every file;
    fewer distinct rows are repeated, so that validation asks for what was trained on.
    """
    model = LlamaForCausalLM.from_pretrained(verifier_path, dtype=torch.float32).eval()
    states_dir, tokens_dir = folder / "hidden_states", folder / "tokens"
    states_dir.mkdir(parents=True)
    rows = [_answer(model, number % num_distinct) for number in range(NUM_ROWS)]
    for number, row in enumerate(rows):
        states = _states(model, row)
        if is_broken:
            states[-2:] = float("nan")
        token_ids = torch.tensor(row)
        save_file(
            {"hidden_states": states, "token_ids": token_ids},
            states_dir / f"hs_{number}.safetensors",
        )
    mask = [0] * PROMPT_TOKENS + [1] * ANSWER_TOKENS
    columns = {
        "id": [f"row {number}" for number in range(NUM_ROWS)],
        "input_ids": rows,
        "loss_mask": [mask] * NUM_ROWS,
        "seq_len": [len(mask)] * NUM_ROWS,
    }
    dataset = Dataset.from_dict(columns)
    dataset.set_format(type="torch")
    dataset.save_to_disk(tokens_dir)
    counts = Counter(token for row in rows for token in row[PROMPT_TOKENS:])
    torch.save(dict(counts), tokens_dir / "token_freq.pt")
    _finish(folder, named or verifier_path)
    return folder


def _answer(model: LlamaForCausalLM, seed: int) -> list[int]:
    ids = _prompt(seed)
    with torch.no_grad():
        for _ in range(ANSWER_TOKENS):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return [int(token) for token in ids[0]]


def _states(model: LlamaForCausalLM, row: list[int]) -> torch.Tensor:
    """[tokens, aux layers + 1, hidden]: inputs of the aux layers, then of the final norm."""
    last: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0][0]))
    with torch.no_grad():
        found = model(torch.tensor([row]), output_hidden_states=True).hidden_states
    hook.remove()
    return torch.stack([*(found[i][0] for i in AUX_LAYER_IDS), last[0]], dim=1).contiguous()


def _finish(folder: Path, verifier_path: Path) -> None:
    settings = load_settings(folder.parent)
    verifier = Verifier.load(str(verifier_path), settings)
    names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
    plan = Plan(
        stage="extract",
        inputs={"tokens": "0" * 64, "verifier": verifier_digest(verifier)},
        config={"aux_layer_ids": list(AUX_LAYER_IDS), "dtype": "float32"},
    )
    tokens = PROMPT_TOKENS + ANSWER_TOKENS
    counts = {
        "conversations": NUM_ROWS,
        "rows": NUM_ROWS,
        "tokens": NUM_ROWS * tokens,
        "loss_tokens": NUM_ROWS * ANSWER_TOKENS,
        "longest_row_tokens": tokens,
    }
    origins = {"verifier": str(verifier_path)}
    finish_stage(folder, plan, counts, digest_files(folder, names), origins)


def write_words(folder: Path) -> None:
    """Gives a verifier a tokenizer whose token i is the word `t<i>`, and a chat template."""
    words = {f"t{number}": number for number in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="t0",
        bos_token=AddedToken("t1", single_word=True),  # else t13 would be t1 and 3
        eos_token=AddedToken("t2", single_word=True),
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    ).save_pretrained(folder)


def prompt_words(number: int) -> str:
    """The prompt of a row of the corpus, in words."""
    return " ".join(f"t{token}" for token in _prompt(number)[0].tolist())


def _prompt(seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (1, PROMPT_TOKENS), generator=random)
