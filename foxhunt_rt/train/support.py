"""Reward scale and support of the return distribution, from returns that a random policy collected before training.

    G_t     = sum_k gamma^k r_{t+k}             discounted return of each step, within an episode
    scale   = 1 / std(G)                        normalized returns have deviation 1: no mean shift, it would move the optimum
    support = +- margin * q(|G| * scale)        q: a high quantile (0.999), fixed for the fold

gamma is the largest that the fold may come to (`Config.largest_gamma`).

[r]/(1 - gamma) would be an upper bound that no return comes near: an earlier system used 2 % of its atoms (known
failure K13). The margin is room for a policy that trades larger and better than the random one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import Config
from foxhunt_rt.kernels import abi
from foxhunt_rt.train.errors import TrainingError

__all__ = ["Support", "discounted_returns", "fit_support"]


@dataclasses.dataclass(frozen=True)
class Support:
    """Fixed for a fold.

    Attributes
    ----------
    reward_scale : float
        Normalized reward = money * reward_scale.
    v_min, v_max : float
        First and last atom, in normalized reward.
    """

    reward_scale: float
    v_min: float
    v_max: float


def discounted_returns(reward: NDArray[Any], ended: NDArray[Any], gamma: float) -> NDArray[np.float64]:
    """G of every step: float64 (T, E) from rewards and ENDED_* words (T, E), rows in time order.

    A truncated episode, and the last row, are cut: what would follow is not known and counts as 0. Steps of an idle
    environment (ENDED_ABSENT) get 0.
    """
    absent = ended & abi.constant("ENDED_ABSENT") != 0
    present = ended & (abi.constant("ENDED_TERMINATED") | abi.constant("ENDED_TRUNCATED")) == 0
    r = np.where(absent, 0.0, reward.astype(np.float64))
    keep = np.where(present & ~absent, gamma, 0.0)
    g = np.zeros(r.shape)
    tail = np.zeros(r.shape[1])
    for t in range(len(r) - 1, -1, -1):
        tail = r[t] + keep[t] * tail
        g[t] = tail
    return g


def fit_support(reward: NDArray[Any], ended: NDArray[Any], config: Config) -> Support:
    """The scale and support that `config.train.support` asks for.

    Parameters
    ----------
    reward : float (T, E)
        Money, raw, of the random policy.
    ended : int (T, E)
        ENDED_* bits.
    config : Config
        ``train.support``: ``returns``, or ``config`` for ``loss.reward_scale``, ``loss.v_min`` and ``loss.v_max`` as given.

    Raises
    ------
    TrainingError
        No return differs from another, so nothing can be learned.
    """
    if config.train.support == "config":
        return Support(config.loss.reward_scale, config.loss.v_min, config.loss.v_max)
    present = ended & abi.constant("ENDED_ABSENT") == 0
    g = discounted_returns(reward, ended, config.largest_gamma)[present]
    deviation = float(g.std()) if g.size else 0.0
    if not np.isfinite(deviation) or deviation == 0.0:
        raise TrainingError("every return of the random policy is the same, so there is nothing to learn; check the bars and "
                            "the costs (market.*)")  # fmt: skip
    # f32, as the device holds them, so that what is printed is what is used
    scale = float(np.float32(1.0 / deviation))
    bound = float(
        np.float32(config.train.support_margin * np.quantile(np.abs(g) * scale, config.train.support_quantile))
    )
    return Support(scale, -bound, bound)
