"""Model folders by hub id: out of the local cache, or fetched where a hub can be reached."""

import re
from pathlib import Path

from harness.errors import ConfigError, PrerequisiteError

_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
"""No code and no pickles: neither is ever used."""
_REPOSITORY = re.compile(r"hf:[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")


def fetch_snapshot(repository: str) -> Path:
    """The folder of `<org>/<repo>[@revision]`; its name is the commit.

    Raises:
        ConfigError: That is no hub id.
        PrerequisiteError: It is neither cached nor reachable.
    """
    # Imported here: huggingface_hub costs half a second that no other reference needs.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    name, _, revision = repository.partition("@")
    try:
        path = snapshot_download(name, revision=revision or None, allow_patterns=_PATTERNS)
    except HFValidationError as error:
        raise ConfigError(f"hf:{repository} is no hub id: {error}", "hf:<org>/<repo>") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise PrerequisiteError(
            f"hf:{repository} is not in the local hub cache and could not be fetched: "
            f"{str(error).splitlines()[0]}",
            "download it where a hub is reachable, and give its folder",
        ) from error
    return Path(path)


def require_hub(target: str) -> str:
    """The name under which a hub knows us; asked before anything is exported.

    Args:
        target: `hf:<org>/<name>`.

    Raises:
        ConfigError: That is no hub repository.
        PrerequisiteError: No hub can be reached, or it does not know us.
    """
    from huggingface_hub import HfApi, constants  # noqa: PLC0415
    from huggingface_hub.errors import (  # type: ignore[attr-defined] # noqa: PLC0415
        HfHubHTTPError,
        HTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    if not _REPOSITORY.fullmatch(target) or ".." in target or "--" in target:
        raise ConfigError(
            f"expected a hub repository, hf:<org>/<name>, found {target!r}", "hf:my-org/my-drafter"
        )
    try:
        return str(HfApi().whoami()["name"])
    except (LocalTokenNotFoundError, HfHubHTTPError) as error:
        raise PrerequisiteError(
            f"the hub at {constants.ENDPOINT} does not know us: {str(error).splitlines()[0]}",
            "hf auth login, or set HF_TOKEN to a token that may write",
        ) from error
    except (HTTPError, OfflineModeIsEnabled, OSError) as error:
        raise PrerequisiteError(
            f"no hub is reachable at {constants.ENDPOINT}: {_first_line(error)}",
            "push from where one is; harness export writes the same folder",
        ) from error


def push_folder(folder: Path, target: str, *, message: str, is_private: bool = False) -> str:
    """Uploads a folder as one commit and returns the repository's address.

    Weights and configs of an earlier push that this folder lacks are deleted: a mixture of two
    exports is no drafter.

    Args:
        folder: What an export wrote.
        target: `hf:<org>/<name>`; made when it is missing.
        message: Of the commit.
        is_private: Whether a repository that is made is private.

    Raises:
        PrerequisiteError: The hub refused, or went away.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined] # noqa: PLC0415

    hub, name = HfApi(), target.removeprefix("hf:")
    try:
        made = hub.create_repo(name, private=is_private, exist_ok=True)
        hub.upload_folder(
            repo_id=made.repo_id,
            folder_path=folder,
            commit_message=message,
            delete_patterns=["*.json", "*.safetensors"],
        )
    except (HTTPError, OSError) as error:
        raise PrerequisiteError(
            f"the hub did not take {target}: {_first_line(error)}",
            "check the token's rights and the hub's state, then push again",
        ) from error
    return str(made)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
