"""A small world of simulated bars, for commands that need the graphs of a configuration but no data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foxhunt_rt.config import Config
    from foxhunt_rt.graph import Runtime
    from foxhunt_rt.train import World

__all__ = ["small_world"]

#: Enough for the windows of the features, the folds and 64 environments.
BARS = 16384


def small_world(rt: Runtime, config: Config) -> World:
    """The world of a configuration on simulated bars: the same graphs as in training, but for the tables' length."""
    from foxhunt_rt.market.contract import PRESETS
    from foxhunt_rt.market.synthetic import simulate
    from foxhunt_rt.train import DataSet, World

    data = DataSet.prepare(simulate(BARS, config.train.seed).bars, PRESETS["SYNTHETIC"], config)
    return World(rt, data, config)
