"""Errors of the replay layer: one line each, ending with how to mend it."""

from __future__ import annotations

from foxhunt_rt.driver import FoxhuntError

__all__ = ["ReplayError"]


class ReplayError(FoxhuntError):
    """A replay that cannot be made, filled or drawn from as asked."""
