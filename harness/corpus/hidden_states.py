"""A finished corpus as whoever trains, replays or compares knows it.

`tokens/` is what `harness data prepare` wrote, `hidden_states/` holds a file a row, in the layout
of speculators 0.9.0's offline reader (`harness.corpus.storage`).
"""

from pathlib import Path

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.corpus.manifest import check_files, load_manifest
from harness.drafter.verifier import Verifier
from harness.errors import CheckError

TOKENS_DIR = "tokens"
STATES_DIR = "hidden_states"


def state_name(row: int) -> str:
    """Name of a row's file in `hidden_states/`, as speculators' trainer looks for it."""
    return f"hs_{row}.safetensors"


class Corpus(Frozen):
    """A finished corpus: everything a training needs to know of it."""

    dir: Path
    tokens_dir: Path
    """`data_path` of speculators' trainer."""
    hidden_states_dir: Path
    digest: str
    num_conversations: int
    num_rows: int
    num_tokens: int
    num_loss_tokens: int
    longest_row_tokens: int
    verifier_reference: str
    verifier_digest: str
    aux_layer_ids: tuple[int, ...]
    dtype: str
    first_row: int = 0
    """The first row whose states are stored; those before it come from a server in training."""

    @property
    def is_online(self) -> bool:
        """Whether a training needs a server for hidden states (`harness data serve`)."""
        return self.first_row > 0

    @classmethod
    def load(
        cls, folder: Path, *, deep: bool = True, progress: ProgressFn | None = None
    ) -> "Corpus":
        """Reads a finished corpus and checks its files, with `deep` byte by byte.

        Raises:
            ConfigError: No finished corpus there.
            CheckError: A file is missing or changed; names the file and the stage.
        """
        manifest = load_manifest(folder, "extract")
        check_files(folder, manifest, deep=deep, progress=progress)
        counts = manifest.counts
        return cls(
            dir=folder.resolve(),
            tokens_dir=folder.resolve() / TOKENS_DIR,
            hidden_states_dir=folder.resolve() / STATES_DIR,
            digest=manifest.digest,
            num_conversations=counts["conversations"],
            num_rows=counts["rows"],
            num_tokens=counts["tokens"],
            num_loss_tokens=counts["loss_tokens"],
            longest_row_tokens=counts["longest_row_tokens"],
            verifier_reference=manifest.origins["verifier"],
            verifier_digest=manifest.inputs["verifier"],
            aux_layer_ids=tuple(manifest.config["aux_layer_ids"]),
            dtype=manifest.config["dtype"],
            first_row=int(manifest.config.get("first_row", 0)),
        )

    def num_train_rows(self, val_ratio: float) -> int:
        """Rows, the first ones, that a training with this `val_ratio` trains on."""
        return int(self.num_rows * (1 - val_ratio))

    def require_verifier(self, verifier: Verifier, digest: str) -> None:
        """Refuses to be used beside a verifier whose hidden states these are not.

        Raises:
            CheckError: Names both verifiers by reference and digest.
        """
        if self.verifier_digest != digest:
            raise CheckError(
                f"expected a corpus of the verifier {verifier.reference} (digest {digest[:12]}), "
                f"found {self.dir}, which was made with {self.verifier_reference} "
                f"(digest {self.verifier_digest[:12]})",
                "name the verifier of the corpus, or extract the corpus again with this one",
            )
