"""Points of curves on their way to the store: written beside the training, kept if it is away."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from harness.errors import TrackingError
from harness.tracking.records import Metric


class Spool:
    """Gathers points and writes them in the background, in their order.

    A store that hangs or is away holds up nobody: points gather, and are written when it answers.
    What a write that failed had written of its points already is written again.

    Args:
        write: Writes points to the store; raises TrackingError when it cannot.
    """

    def __init__(self, write: Callable[[Sequence[Metric]], None]) -> None:
        self._send = write
        self._points: list[Metric] = []
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def add(self, points: Iterable[Metric]) -> None:
        """Keeps points until they are written."""
        with self._lock:
            self._points += points

    def push(self) -> None:
        """Starts to write what has gathered, unless a write is still under way."""
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._try_to_write, daemon=True)
            self._writer.start()

    def drain(self) -> None:
        """Writes all that is left before it returns.

        Raises:
            TrackingError: The store cannot be written; the points are kept.
        """
        if self._writer is not None:
            self._writer.join()
        self._write()

    def _try_to_write(self) -> None:
        with contextlib.suppress(TrackingError):  # the next push tries again
            self._write()

    def _write(self) -> None:
        with self._lock:
            points = list(self._points)
        if points:
            self._send(points)
            with self._lock:
                del self._points[: len(points)]
