"""How long work says how far it is; whoever calls decides how that is shown."""

from collections.abc import Callable

ProgressFn = Callable[[str, int, int], None]
"""Told (what is being done, units done, units in all or 0 when unknown)."""
