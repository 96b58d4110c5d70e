"""Trainings that cannot come to anything, refused by what they ask for before anything is read."""

from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.drafter.arithmetic import ONE_PLUS_NORMS
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError
from harness.settings import visible_gpus
from harness.training.verifier_view import require_keys


def require_trainable(verifier: Verifier) -> None:
    """Refuses a verifier that speculators would train wrongly for.

    Raises:
        ConfigError: Names what is in the way.
    """
    if verifier.model_type in ONE_PLUS_NORMS:
        raise ConfigError(
            f"verifier: {verifier.model_type} scales its final norm by 1 + weight, which "
            "speculators' EAGLE-3 training does not: its targets would be wrong"
        )
    require_keys(verifier)


def require_devices(config: TrainConfig) -> None:
    """Refuses a gang with fewer GPUs than processes; on a CPU, processes share the cores.

    Raises:
        ConfigError: Says how many are visible.
    """
    found = len(visible_gpus()) if config.device == "auto" else 0
    if config.nproc > 1 and 0 < found < config.nproc:
        raise ConfigError(
            f"nproc: expected a GPU for each of {config.nproc} processes, found {found} visible",
            "show more of them in CUDA_VISIBLE_DEVICES, or lower nproc",
        )


def require_validation(config: TrainConfig, corpus: Corpus) -> None:
    """Refuses a corpus that leaves nothing to train or to validate on, or has no states for it.

    Raises:
        ConfigError: Says how the rows fall.
    """
    num_train = corpus.num_train_rows(config.val_ratio)
    if not 0 < num_train < corpus.num_rows:
        raise ConfigError(
            f"val_ratio: {config.val_ratio} of {corpus.num_rows} rows leaves {num_train} to train "
            f"on and {corpus.num_rows - num_train} to validate on; both need one",
            "use a larger corpus or another val_ratio",
        )
    if min(num_train, corpus.num_rows - num_train) < config.nproc:
        raise ConfigError(
            f"nproc: each of {config.nproc} processes needs a row to train on and one to validate "
            f"on, found {num_train} and {corpus.num_rows - num_train}",
            "use a larger corpus, another val_ratio, or fewer processes",
        )
    if num_train < corpus.first_row:
        raise ConfigError(
            f"val_ratio: {config.val_ratio} validates from row {num_train} on, the online corpus "
            f"{corpus.dir} stores hidden states from row {corpus.first_row} on",
            "give the val_ratio that it was extracted with, or a smaller one",
        )
    if corpus.is_online and config.states_endpoint is None:
        raise ConfigError(
            f"states_endpoint: expected an address, found none: {corpus.dir} is an online corpus",
            f"start harness data serve {corpus.dir}, and give the address that it prints",
        )
