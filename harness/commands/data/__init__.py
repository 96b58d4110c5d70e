"""`harness data`: prompts -> conversations -> tokens -> hidden states, one folder each."""

import typer

from harness.commands.data.check import check
from harness.commands.data.extract import extract
from harness.commands.data.inspect import inspect
from harness.commands.data.prepare import prepare
from harness.commands.data.prompts import prompts
from harness.commands.data.regenerate import regenerate
from harness.commands.data.serve import serve
from harness.commands.data.vocab import vocab

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="prompts -> conversations -> tokens -> hidden states",
)
for _command in (prompts, regenerate, prepare, vocab, extract, serve, check, inspect):
    app.command()(_command)
