"""How long work says how far it is; `harness.render` shows it, as a bar or a line."""

from collections.abc import Callable

ProgressFn = Callable[[str, int, int], None]
"""Told (what is being done, units done, units in all or 0 when unknown), as often as one likes.

What changes on the way, such as a pace, follows the name of the stage after " | ".
"""
