"""Which texts are the same but for a few letters: MinHash finds candidates, Jaccard decides.

A text's pieces are its runs of 5 characters after `normalise`. MinHash (128 permutations) with
locality-sensitive hashing finds nearly all pairs above the threshold; what it finds is counted
exactly, so no pair below the threshold is ever called a duplicate.
"""

from typing import TYPE_CHECKING

from harness.corpus.prompts import normalise

if TYPE_CHECKING:
    from datasketch import MinHash

_PIECE_CHARACTERS = 5
_NUM_PERMUTATIONS = 128
_SCHEME = "affine32"
"""Said, so that a later version's default cannot change what is kept."""


class NearIndex:
    """Texts seen so far, and the first of them that a new one is near to.

    Args:
        threshold: Jaccard similarity of pieces from which two texts are near.
    """

    def __init__(self, threshold: float) -> None:
        # Late: it takes a second that no other stage needs.
        from datasketch import MinHash, MinHashLSH  # noqa: PLC0415

        self._empty = MinHash(num_perm=_NUM_PERMUTATIONS, scheme=_SCHEME)
        self._threshold = threshold
        self._index = MinHashLSH(threshold=threshold, num_perm=_NUM_PERMUTATIONS)
        self._keys: list[str] = []
        self._texts: list[str] = []

    def find(self, text: str) -> str | None:
        """The key of the earliest text that this one is near to."""
        pieces = _pieces(normalise(text))
        return self._find(pieces, self._sign(pieces))

    def add(self, key: str, text: str) -> str | None:
        """Adds a text unless it is near to one that is there; returns that one's key."""
        words = normalise(text)
        pieces = _pieces(words)
        signature = self._sign(pieces)
        if near := self._find(pieces, signature):
            return near
        self._index.insert(len(self._keys), signature)
        self._keys.append(key)
        self._texts.append(words)
        return None

    def _sign(self, pieces: set[str]) -> "MinHash":
        signature = self._empty.copy()
        signature.update_batch([piece.encode() for piece in pieces])
        return signature

    def _find(self, pieces: set[str], signature: "MinHash") -> str | None:
        for number in sorted(self._index.query(signature)):
            if _jaccard(pieces, _pieces(self._texts[number])) >= self._threshold:
                key: str = self._keys[number]
                return key
        return None


def _pieces(words: str) -> set[str]:
    last = max(1, len(words) - _PIECE_CHARACTERS + 1)
    return {words[start : start + _PIECE_CHARACTERS] for start in range(last)}


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)
