"""What training tells whoever watches: plain facts, no formatting. The console of `foxhunt-rt train` is one observer."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Observer", "Progress"]


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training stands, and the latest record of a step. Folds and epochs count from 1."""

    fold: int
    folds: int
    epoch: int
    epochs: int
    step: int  # of the epoch
    steps: int  # of an epoch
    bars_seen: int  # by the collector in this epoch
    bars: int  # it will see in this epoch
    epsilon: float
    alpha_c51: float
    step_us: float
    loss: float
    ce: float
    mse: float
    q_min: float
    q_max: float
    atom_use: float
    td_error: float
    lr: float


class Observer:
    """Does nothing; override what you want to know. Called between launches, so keep it short."""

    def started(self, about: dict[str, Any]) -> None:
        """Before the first fold: bars, bar clock, contract, driver, device, network, folds."""

    def fold_started(self, fold: int, about: dict[str, Any]) -> None:
        """Windows of the fold, reward scale and support."""

    def progressed(self, progress: Progress) -> None:
        """After some steps of an epoch."""

    def epoch_ended(self, fold: int, epoch: int, about: dict[str, Any]) -> None:
        """Training means of the epoch and its validation."""

    def fold_ended(self, fold: int, about: dict[str, Any]) -> None:
        """The test window, touched once, beside the reference policies."""

    def ended(self, result: dict[str, Any]) -> None:
        """The complete result."""

    def close(self) -> None:
        """Always, at the end or after an error."""
