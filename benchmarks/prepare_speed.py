"""Tokens per second of one core that `harness data prepare` turns into rows and statistics.

    python benchmarks/prepare_speed.py --conversations FILE.jsonl.gz --verifier REF [--limit 2000]

The processor's time of this process is counted, not the clock's: other work on the machine takes
none of it. Twice: answers as text, which the chat template renders and the tokenizer splits; and
token ids as `harness data regenerate` keeps them. Aim: at least 20,000.
"""

import argparse
import tempfile
import time
from pathlib import Path

from harness.corpus.conversations import CONVERSATIONS_NAME, Conversation
from harness.corpus.dialogues import read_dialogues
from harness.corpus.manifest import Plan, finish_stage
from harness.corpus.template import ChatTemplate
from harness.corpus.tokens import PrepareConfig, prepare
from harness.digests import digest_files
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import load_settings, quiet_libraries


def main() -> None:
    """Measures both and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=Path, required=True)
    parser.add_argument("--verifier", required=True)
    parser.add_argument("--limit", type=int, default=2000)
    flags = parser.parse_args()
    quiet_libraries()
    verifier = Verifier.load(flags.verifier, load_settings())
    config = PrepareConfig(limit=flags.limit)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # The first call imports transformers, datasets and torch: seconds that are not its work.
        prepare(
            flags.conversations, verifier, folder / "first", PrepareConfig(limit=1),
            progress=lambda *_: None,
        )  # fmt: skip
        measure("text", flags.conversations, verifier, folder / "text", config)
        kept = keep_tokens(flags.conversations, verifier, folder / "conversations", flags.limit)
        measure("token ids", kept, verifier, folder / "ids", config)


def measure(
    name: str, source: Path, verifier: Verifier, out_dir: Path, config: PrepareConfig
) -> None:
    """Prepares once and prints the pace."""
    began, began_s = time.process_time(), time.monotonic()
    counts = prepare(source, verifier, out_dir, config, progress=lambda *_: None).counts
    cpu_s, wall_s = time.process_time() - began, time.monotonic() - began_s
    print(
        f"{name}: {counts['conversations']} conversations, {counts['tokens']} tokens, "
        f"{cpu_s:.2f} s of one core ({wall_s:.1f} s by the clock): "
        f"{counts['tokens'] / cpu_s:,.0f} tokens/s per core"
    )


def keep_tokens(path: Path, verifier: Verifier, folder: Path, limit: int) -> Path:
    """The same conversations as a finished regeneration."""
    folder.mkdir()
    found = read_dialogues(path, ChatTemplate.load(verifier), limit)
    said = [one for one in found if isinstance(one, Conversation)]
    lines = "".join(one.model_dump_json(exclude_none=True) + "\n" for one in said)
    (folder / CONVERSATIONS_NAME).write_text(lines)
    inputs = {"prompts": "none", "verifier": verifier_digest(verifier)}
    plan = Plan(stage="regenerate", inputs=inputs, config={})
    counts = {"conversations": len(said)}
    files = digest_files(folder, (CONVERSATIONS_NAME,))
    finish_stage(folder, plan, counts, files, {"verifier": verifier.reference})
    return folder


if __name__ == "__main__":
    main()
