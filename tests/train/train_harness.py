"""A small training problem: seconds on a CPU, odd sizes everywhere."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from foxhunt_rt.config import Config
from foxhunt_rt.market.bars import Bars
from foxhunt_rt.market.contract import PRESETS
from foxhunt_rt.market.synthetic import simulate
from foxhunt_rt.train import DataSet

SETTINGS = ("network.hidden=24,17", "network.atoms=13", "replay.batch=19", "replay.capacity=5000", "market.environments=7",
            "train.folds=2", "train.epochs=2", "train.steps_per_epoch=11", "train.collect_steps=5", "train.probe_rows=33",
            "train.validation_share=0.1", "train.test_share=0.1",
            "market.features.volatility_windows=8,32", "market.features.extreme_windows=16", "market.features.macd_fast=4",
            "market.features.macd_slow=9", "market.features.rsi_period=4", "market.features.volume_window=16",
            "market.features.return_lags=1,5")  # fmt: skip
BARS = 2001


def small_config(*extra: str) -> Config:
    """The smoke profile made smaller."""
    return Config.profile("smoke").with_set([*SETTINGS, *extra])


def small_data(config: Config, bars: Bars | None = None) -> DataSet:
    """Simulated bars, cut into sessions of 137."""
    return DataSet.prepare(bars or small_bars(), PRESETS["SYNTHETIC"], config)


def small_bars() -> Bars:
    """2,001 bars in 15 sessions, the last one shorter."""
    session = (np.arange(BARS) // 137).astype(np.int32)
    return dataclasses.replace(simulate(BARS, 5).bars, session=session)


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what may differ between two equal runs."""
    found = copy.deepcopy(result)
    for name in ("wall_s", "step_us_median", "run"):
        found.pop(name, None)
    for fold in found["detail"]:
        for epoch in fold["epochs"]:
            epoch.pop("step_us_median")
    return found
