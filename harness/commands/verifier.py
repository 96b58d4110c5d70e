"""`harness verifier`: what a verifier is, and one that costs more.

A packaged one is converted when first named.
"""

from pathlib import Path
from typing import Annotated

import typer

from eval.environment import read_synthetic
from harness import render
from harness.commands.options import AsJson
from harness.drafter.pad import pad_verifier
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Verifiers: show their facts, write a padded one."""


@app.command()
def show(
    reference: Annotated[str, typer.Argument(help="A folder, package:<dist> or hf:<org>/<repo>.")],
    as_json: AsJson = False,
) -> None:
    """Shows the facts that a drafter depends on; nothing of the model is executed."""
    settings = load_settings()
    render.log(f"reading {reference}")
    verifier = Verifier.load(reference, settings)
    verifier = verifier.model_copy(update={"digest": verifier_digest(verifier, settings.cache_dir)})
    if as_json:
        render.show_json(verifier)
        return
    heads = f"{verifier.num_attention_heads} (key/value: {verifier.num_key_value_heads})"
    facts = {
        "folder": verifier.path,
        "architecture": ", ".join(verifier.architectures),
        "layers": verifier.num_layers,
        "hidden size": verifier.hidden_size,
        "heads": heads,
        "head_dim": verifier.head_dim if verifier.head_dim is not None else "not given",
        "vocabulary": verifier.vocab_size,
        "auxiliary layers by default": verifier.default_aux_layer_ids,
        "digest": verifier.digest,
        **({"synthetic": read_synthetic(verifier.path)} if verifier.is_synthetic else {}),
    }
    render.show_facts(f"verifier {reference}", facts)


@app.command()
def pad(
    reference: Annotated[str, typer.Argument(help="A folder, package:<dist> or hf:<org>/<repo>.")],
    layers: Annotated[int, typer.Option(help="Layers to add.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    as_json: AsJson = False,
) -> None:
    """Writes a verifier with more layers that change nothing: equal outputs, dearer steps.

    To measure what speculation brings on a deeper model at a known acceptance. Synthetic: its
    config, and every result and run that it is in, say so.
    """
    settings = load_settings()
    render.log(f"reading {reference}")
    verifier = Verifier.load(reference, settings)
    digest = verifier_digest(verifier, settings.cache_dir)
    padded = pad_verifier(verifier, layers, out.absolute(), digest=digest)
    if as_json:
        render.show_json(padded)
        return
    facts = {
        "folder": padded.path,
        "layers": f"{padded.num_real_layers} of {reference}, {padded.num_added_layers} without "
        "effect",
        "of digest": padded.of_digest,
    }
    render.show_facts("synthetic verifier", facts)
