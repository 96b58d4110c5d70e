"""How fast an extraction is, and how long the rest will take."""

import time

from eval.progress import ProgressFn
from harness.digests import FileDigest


class Pace:
    """Tokens done, tokens a second, and what is left."""

    def __init__(
        self, rows: list[list[int]], done: dict[int, FileDigest], progress: ProgressFn
    ) -> None:
        self._total = sum(map(len, rows))
        self._before = sum(len(rows[row]) for row in done)
        self._made = 0
        self._progress = progress
        self._began_s = time.monotonic()

    @property
    def tokens_per_s(self) -> float:
        """Of this call."""
        return self._made / max(time.monotonic() - self._began_s, 1e-9)

    @property
    def left_s(self) -> float:
        """Seconds to the end at this pace; 0 as long as nothing was made."""
        left = self._total - self._before - self._made
        return left / self.tokens_per_s if self._made else 0.0

    def add(self, num_tokens: int) -> None:
        """Counts tokens that are made."""
        self._made += num_tokens

    def tell(self) -> None:
        """Says how far it is."""
        text = "extracting"
        if self._made:
            text += f" | {self.tokens_per_s:.0f} tokens/s, {self.left_s / 60:.0f} min left"
        self._progress(text, self._before + self._made, self._total)
