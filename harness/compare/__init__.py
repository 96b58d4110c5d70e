"""Drafters side by side: what was measured of them, in what they differ, who is faster."""
