"""`harness data inspect`: what a stage's folder holds, and samples of it, the answers marked."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Trust
from harness.commands.options import AsJson, OptionalVerifier
from harness.config.load import flatten
from harness.corpus.manifest import load_manifest
from harness.corpus.samples import Choice, Decode, Inspection, Look, look_into, read_samples
from harness.corpus.template import load_tokenizer
from harness.corpus.tokens import require_verifier
from harness.drafter.verifier import Verifier
from harness.render import show_facts, show_json, show_marked, show_text
from harness.settings import load_settings

_ROWS = ("prepare", "extract")


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Any folder of harness data.")],
    *,
    number: Annotated[int, typer.Option(min=0, help="Samples to show.")] = 2,
    first: Annotated[int, typer.Option(min=0, help="The first of them, counted from 0.")] = 0,
    identity: Annotated[str | None, typer.Option("--id", help="The sample of this id.")] = None,
    verifier: OptionalVerifier = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Shows what a folder holds; of rows the text, what is learned coloured (in [[ ]] on a pipe).

    Of a stage under way it shows how far it is.
    """
    look = look_into(folder)
    samples = []
    if look.is_finished and number:
        decode = _load_decode(folder, look, verifier, trust_remote_code=trust_remote_code)
        samples = read_samples(folder, look.stage, Choice(first, number, identity), decode)
    if as_json:
        show_json(Inspection(look=look, samples=tuple(samples)))
        return
    state = "finished" if look.is_finished else "under way"
    show_facts(f"{folder}  {look.stage}, {state}", flatten(look.plan.config) | look.facts)
    for sample in samples:
        facts = [
            sample.category,
            f"{sample.num_tokens} tokens" if sample.num_tokens else "",
            f"{sample.num_loss_tokens} answer tokens" if sample.num_loss_tokens else "",
        ]
        show_text(f"\n{sample.id} ({', '.join(fact for fact in facts if fact)})")
        show_marked((piece.text, piece.has_loss) for piece in sample.pieces)


def _load_decode(
    folder: Path, look: Look, reference: str | None, *, trust_remote_code: bool
) -> Decode | None:
    """The tokenizer of the verifier that the folder was made with."""
    if look.stage not in _ROWS:
        return None
    settings = load_settings()
    manifest = load_manifest(folder, look.plan.stage)
    verifier = Verifier.load(reference or manifest.origins["verifier"], settings)
    require_verifier(manifest, verifier, settings.cache_dir)
    tokenizer = load_tokenizer(verifier.path, trust_remote_code=trust_remote_code)
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
