"""`harness data serve`: hidden states for trainings on an online corpus, as they are asked for."""

import time
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Trust
from harness.commands.options import OptionalVerifier
from harness.corpus.extraction import captured_ids
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.manifest import hold_folder, load_manifest
from harness.corpus.tokens import require_verifier
from harness.drafter.verifier import Verifier
from harness.render import log
from harness.settings import load_settings

_LOOK_S = 1.0


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an extraction.")],
    *,
    verifier: OptionalVerifier = None,
    port: Annotated[int | None, typer.Option(help="Of the server; a free one if left out.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs of one verifier.")] = 1,
    trust_remote_code: Trust = False,
) -> None:
    """Starts vLLM with the layers of a corpus, and runs until it is interrupted.

    Next: harness train FILE --set states_endpoint=http://127.0.0.1:PORT
    """
    # torch and vLLM's connector take seconds, which --help need not wait for.
    from harness.corpus.servedstates import serve_states  # noqa: PLC0415

    settings = load_settings()
    manifest = load_manifest(folder, "extract")
    loaded = Verifier.load(verifier or manifest.origins["verifier"], settings)
    require_verifier(manifest, loaded, settings.cache_dir)
    config = ExtractConfig(
        dtype=manifest.config["dtype"],
        max_model_len=manifest.counts["longest_row_tokens"] + 1,
        tensor_parallel_size=tensor_parallel_size,
        trust_remote_code=trust_remote_code,
    )
    layers = captured_ids(manifest, loaded)
    log(f"starting vLLM with the layers {', '.join(map(str, layers))}; its log is server.log")
    log_path = folder / "server.log"
    with hold_folder(folder), serve_states(loaded, layers, config, log_path, port) as states:
        log(f"hidden states at {states.server.base_url}")
        while True:
            time.sleep(_LOOK_S)
            states.server.require_alive()
