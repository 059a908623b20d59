"""adaptive_gamma: the discount follows how many atoms the network uses (docs/step/epoch.md). No kernel of its own: the decision
is the host's, between epochs, and reaches the device in stream order with the control block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foxhunt_rt.config import AdaptiveGammaConfig
from foxhunt_rt.dqn.children.epoch_stats import last_batch
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.driver import DeviceBuffer


def next_direction(direction: int, use: float, edge: float, config: AdaptiveGammaConfig, edge_limit: float) -> int:
    """1: the horizon grows, -1: it shrinks, 0: it stays. A direction once taken is kept until the middle of the range, so that
    noise at a bound does not turn it about (hysteresis, as a Schmitt trigger has it)."""
    middle = 0.5 * (config.use_low + config.use_high)
    if edge > edge_limit:  # returns that the support cannot hold
        return -1
    if (direction > 0 and use < middle) or (direction < 0 and use > middle):
        return direction
    if use > config.use_high:
        return -1
    return 1 if use < config.use_low and edge <= 0.5 * edge_limit else 0


def next_gamma(gamma: float, direction: int, config: AdaptiveGammaConfig) -> float:
    """1 / (1 - gamma), the horizon in steps, times or over 1 + rate; within the bounds."""
    horizon = (1.0 + config.rate) ** direction / (1.0 - gamma)
    return min(max(1.0 - 1.0 / horizon, config.low), config.high)


class AdaptiveGamma(Extension):
    """The discount of the epochs to come, from the atom use of the epoch that ended."""

    name = "adaptive_gamma"

    def __init__(self, config: AdaptiveGammaConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        self._settings = step.settings
        self.direction = step.runtime.zeros(1, np.int32, "adaptive_gamma.direction")

    def end_epoch(self, epoch: int, others: Sequence[Extension]) -> None:
        found, options = last_batch(others), self._settings.config
        direction = next_direction(
            int(self.direction.to_numpy()[0]), found.atom_use, found.edge_mass, self.config, options.guard.edge_mass
        )
        self.direction.copy_from(np.array([direction], np.int32))
        if (gamma := next_gamma(options.loss.gamma, direction, self.config)) != options.loss.gamma:
            self._settings.set(gamma=gamma)

    def reset(self) -> None:
        self.direction.fill(0)

    def persistent(self) -> dict[str, DeviceBuffer]:
        return {"direction": self.direction}

    def report(self) -> dict[str, Any]:
        return {"gamma": self._settings.config.loss.gamma, "direction": int(self.direction.to_numpy()[0])}


__all__ = ["AdaptiveGamma", "next_direction", "next_gamma"]
