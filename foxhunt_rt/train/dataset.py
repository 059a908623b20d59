"""What a run trains on: bars, contract, features and folds. Plain NumPy; needs no device, so it is checked before one."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.market.bars import Bars
from foxhunt_rt.market.contract import ContractSpec
from foxhunt_rt.market.features import FeatureTable, build_features
from foxhunt_rt.market.folds import Fold, walk_forward
from foxhunt_rt.market.walks import session_ends, split_window

__all__ = ["DataSet"]


@dataclasses.dataclass(frozen=True)
class DataSet:
    """Made by `prepare`.

    Attributes
    ----------
    bars : Bars
    spec : ContractSpec
    features : FeatureTable
        Not normalized: each fold fits its own normalizer.
    ends : int32 (n,)
        `walks.session_ends`.
    folds : list of Fold
    """

    bars: Bars
    spec: ContractSpec
    features: FeatureTable
    ends: NDArray[np.int32]
    folds: list[Fold]

    @classmethod
    def prepare(cls, bars: Bars, spec: ContractSpec, config: Config) -> DataSet:
        """Features and folds of bars as `load_bars` gives them.

        Raises
        ------
        BarsError
            Too few bars for the folds.
        ConfigError
            More environments than a training window has work for.
        """
        features = build_features(bars, config.market.features, spec)
        ends = session_ends(bars.session)
        train = config.train
        # No target may reach from one window into the next: the longest feature looks back, the furthest target ahead.
        embargo = max(train.embargo, features.horizon + config.reward_horizon)
        folds = walk_forward(len(bars), folds=train.folds, validation_share=train.validation_share,
                             test_share=train.test_share, embargo=embargo, window=train.window)  # fmt: skip
        for fold in folds:
            try:
                split_window(ends, *fold.train, config.market.environments)
            except ValueError as error:
                raise ConfigError(f"market.environments = {config.market.environments}: {error}") from error
        return cls(bars, spec, features, ends, folds)
