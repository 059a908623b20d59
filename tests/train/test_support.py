"""Reward scale and support against sums written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.kernels import abi
from foxhunt_rt.train.errors import TrainingError
from foxhunt_rt.train.support import discounted_returns, fit_support

from .train_harness import small_config

TERMINATED, TRUNCATED, ABSENT = (abi.constant(f"ENDED_{n}") for n in ("TERMINATED", "TRUNCATED", "ABSENT"))


def by_hand(reward, ended, gamma):
    """One step and environment at a time, forwards."""
    steps, environments = reward.shape
    reward = reward.astype(np.float64)
    out = np.zeros(reward.shape)
    for e in range(environments):
        for t in range(steps):
            if ended[t, e] & ABSENT:
                continue
            for k in range(t, steps):
                if ended[k, e] & ABSENT:
                    break
                out[t, e] += gamma ** (k - t) * reward[k, e]
                if ended[k, e]:
                    break
    return out


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_discounted_returns_stop_at_every_kind_of_end(gamma):
    rng = np.random.default_rng(4)
    reward = rng.normal(size=(37, 5)).astype(np.float32)
    ended = rng.choice([0, 0, 0, 0, TERMINATED, TRUNCATED], size=(37, 5)).astype(np.int32)
    ended[30:, 2] = ABSENT
    np.testing.assert_allclose(discounted_returns(reward, ended, gamma), by_hand(reward, ended, gamma), rtol=1e-9)


def test_normalized_returns_have_deviation_one_and_the_support_holds_them():
    rng = np.random.default_rng(5)
    reward = (50.0 * rng.normal(size=(400, 7))).astype(np.float32)
    ended = np.zeros((400, 7), np.int32)
    ended[-1] = TRUNCATED
    config = small_config("loss.gamma=0.9", "train.support_margin=1.5", "train.support_quantile=0.999")
    support = fit_support(reward, ended, config)
    g = by_hand(reward, ended, 0.9) * support.reward_scale
    assert g.std() == pytest.approx(1.0, rel=1e-6)
    assert -support.v_min == support.v_max == pytest.approx(1.5 * np.quantile(np.abs(g), 0.999), rel=1e-6)
    # Nowhere near the bound [r]/(1 - gamma) that used 2 % of the atoms (known failure K13).
    assert support.v_max < 0.5 * np.abs(reward).max() * support.reward_scale / (1 - 0.9)


def test_idle_environments_do_not_dilute_the_scale():
    rng = np.random.default_rng(6)
    reward, ended = rng.normal(size=(50, 3)).astype(np.float32), np.zeros((50, 3), np.int32)
    config = small_config()
    alone = fit_support(reward, ended, config)
    padded = fit_support(np.concatenate([reward, np.zeros((50, 3), np.float32)]),
                         np.concatenate([ended, np.full((50, 3), ABSENT, np.int32)]), config)  # fmt: skip
    assert padded == alone


def test_the_configuration_may_give_it():
    config = small_config("train.support=config", "loss.v_min=-3", "loss.v_max=5", "loss.reward_scale=0.25")
    support = fit_support(np.ones((2, 2), np.float32), np.zeros((2, 2), np.int32), config)
    assert (support.reward_scale, support.v_min, support.v_max) == (0.25, -3.0, 5.0)


def test_returns_that_are_all_the_same_are_refused():
    with pytest.raises(TrainingError, match="nothing to learn"):
        fit_support(np.zeros((9, 2), np.float32), np.zeros((9, 2), np.int32), small_config())
