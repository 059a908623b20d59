"""popart on the market: the graph that collects keeps the moments of what it collected; the step begins where the fit is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from foxhunt_rt.kernels import abi
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.train.fold import collected
from foxhunt_rt.train.support import fit_support
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data


def test_collection_keeps_the_moments_and_training_begins_at_the_fit(runtime):
    config = small_config("popart.enabled=true", "popart.min_count=100", "popart.max_change=0.001")
    world = World(runtime, small_data(config), config)
    fold, environments = world.folds[0], world.environment.environments
    world.enter(fold, 9)
    world.collector.policy.set_exploration(1.0)
    world.collector.begin(split_window(world.ends, *fold.train, environments))
    world.collector.finish()
    reward, ended = collected(world)
    found = world.replay.returns.to_numpy()[0]
    gamma, g, all_g = np.float64(np.float32(config.loss.gamma)), np.zeros(environments), []
    for r, over in zip(reward.astype(np.float64), ended, strict=True):
        present = over & abi.constant("ENDED_ABSENT") == 0
        g = np.where(present, r + gamma * g, 0.0)
        all_g.append(g[present])
        g = np.where(over != 0, 0.0, g)
    expected = np.concatenate(all_g)
    assert world.replay.inserted <= world.replay.capacity, "nothing was overwritten"
    assert found["count"] == len(expected) and (ended != 0).any()
    assert found["mean"] == pytest.approx(expected.mean(), rel=1e-9)
    assert np.sqrt(found["m2"] / found["count"]) == pytest.approx(expected.std(), rel=1e-9)

    support = fit_support(reward, ended, config)
    world.learner.set(**dataclasses.asdict(support))
    world.learner.step()
    record = world.learner.drain()[-1]
    assert record["popart_sigma"] == pytest.approx(1.0 / support.reward_scale, rel=1.1e-3)
    assert expected.std() * support.reward_scale == pytest.approx(1.0, abs=0.5), "of one magnitude"
    toward = np.sign(expected.std() * support.reward_scale - 1.0)
    assert np.sign(record["popart_scale"] - 1.0) == toward
    world.close()
