"""Figures as PNG files: the one place that needs a browser, and does without where there is none.

Kaleido draws with an installed Chrome or Chromium, offline; one browser for all of a call.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)
_SIZE = {"format": "png", "width": 900, "height": 520, "scale": 2}
MISSING = (
    "no PNG of the figures: kaleido found no Chrome or Chromium that starts; "
    "apt-get install chromium, or set BROWSER_PATH"
)


def write_pngs(figures: Mapping[str, Any], folder: Path) -> tuple[Path, ...]:
    """Draws plotly figures into a folder.

    Args:
        figures: By name without suffix.
        folder: Where `<name>.png` are written; it must exist.

    Returns:
        The files; none where no browser is installed or it does not start, which is logged.
    """
    if not figures:
        return ()
    # Late: kaleido takes half a second, and most who import this draw nothing.
    try:
        import kaleido  # noqa: PLC0415
        from kaleido.errors import KaleidoError  # noqa: PLC0415
    except ModuleNotFoundError:
        _LOG.warning("no PNG of the figures: expected the package kaleido, found none")
        return ()

    paths = {name: folder / f"{name}.png" for name in figures}
    jobs = [
        {"fig": figure.to_dict(), "path": str(paths[name]), "opts": _SIZE}
        for name, figure in figures.items()
    ]
    try:
        kaleido.write_fig_from_object_sync(jobs)
    except (RuntimeError, OSError, KaleidoError) as error:
        _LOG.warning("%s (%s)", MISSING, type(error).__name__)
        return ()
    return tuple(path for path in paths.values() if path.is_file())
