"""Options that several commands have, each with one meaning and one help text."""

from typing import Annotated

import typer

Drafters = Annotated[
    list[str] | None,
    typer.Option(help="PATH, run:<id>[@<epoch>], models:/<name>@<alias> or hf:<org>/<repo>."),
]
RequiredVerifier = Annotated[
    str, typer.Option(help="A folder, package:<distribution> or hf:<org>/<repo>[@rev].")
]
OptionalVerifier = Annotated[
    str | None, typer.Option(help="A folder, package:<distribution> or hf:<org>/<repo>[@rev].")
]
Prompts = Annotated[
    str | None,
    typer.Option(help="JSONL file, package:<name>, hf:<org>/<set>, or a benchmark folder."),
]
VerifierOfRun = Annotated[
    str | None, typer.Option(help="The verifier; the training run's where not given.")
]
Reference = Annotated[
    str, typer.Argument(metavar="REF", help="PATH, run:<id>[@<epoch>], models:/... or hf:...")
]
NoLoad = Annotated[bool, typer.Option("--no-load", help="Do not load in vLLM what was written.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
References = Annotated[
    list[str],
    typer.Argument(
        metavar="REF...",
        help="Drafters, run:<id> of a training, bench or replay, models:/..., or a result.json.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Compare unlike measurements, too.")]
Against = Annotated[
    str | None,
    typer.Option(help="What all are compared with: champion, or a reference; else the first."),
]
