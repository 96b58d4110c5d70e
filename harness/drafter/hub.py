"""Model folders by hub id: out of the local cache, or fetched where a hub can be reached."""

from pathlib import Path

from harness.errors import ConfigError, PrerequisiteError

_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
"""No code and no pickles: neither is ever used."""


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
