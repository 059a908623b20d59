"""Errors of training. The guard's fault is `foxhunt_rt.dqn.guard.GuardFault`."""

from __future__ import annotations

from foxhunt_rt.driver.errors import FoxhuntError

__all__ = ["TrainingError"]


class TrainingError(FoxhuntError):
    """Training cannot start or go on; one line, ending with the mend."""
