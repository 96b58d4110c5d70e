"""`harness verifier`: what a verifier is; a packaged one is converted when first named."""

from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Verifiers: show their facts."""


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
    }
    render.show_facts(f"verifier {reference}", facts)
