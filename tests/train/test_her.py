"""Hindsight in the market: the goal slot of the environment's states, rewards towards a goal, relabelled rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.config import ConfigError
from foxhunt_rt.dqn.children.her import Her
from foxhunt_rt.kernels import abi
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data

TARGET = 0.01  # of the scale of profits: a random policy comes by it


@pytest.fixture(scope="module")
def worlds(runtime: Any) -> Any:
    """With a goal slot, without, and with one and what collection adds: a random pass over the training window of each."""
    made = []
    added = ("market.counterfactual.enabled=true", "market.counterfactual.share=1", "market.mirror.enabled=true")
    for on, more in (("true", ()), ("false", ()), ("true", added)):
        config = small_config(f"her.enabled={on}", "her.rows=23", f"her.target={TARGET}", "replay.n_step=3", *more)
        world = World(runtime, small_data(config), config)
        fold = world.folds[0]
        world.enter(fold, 9)
        world.collector.policy.set_exploration(1.0)
        world.collector.begin(split_window(world.ends, *fold.train, world.environment.environments))
        world.collector.finish()
        made.append(world)
    yield made
    for world in made:
        world.close()


def stored(world: World) -> tuple[Any, Any]:
    """Rows (T, E), and portfolios (T, E, 2, P)."""
    n, e = world.replay.inserted, world.collector.staging.environments
    assert n <= world.replay.capacity and world.replay.portfolio is not None
    rows, portfolio = world.replay.rows.to_numpy()[:n], world.replay.portfolio.to_numpy()[:n]
    return rows.reshape(-1, e), portfolio.reshape(-1, e, *portfolio.shape[1:])


def test_rewards_count_the_return_up_to_the_goal(worlds: Any) -> None:
    """Achieved is the episode's return; what it is above the goal earns nothing. The rest is as without a goal."""
    (rows, portfolio), (plain, plain_portfolio) = stored(worlds[0]), stored(worlds[1])
    np.testing.assert_array_equal(rows["action"], plain["action"])
    np.testing.assert_array_equal(portfolio[..., :4], plain_portfolio)
    scale, present = worlds[0].environment.model.pnl_scale, rows["ended"] & 4 == 0
    assert (portfolio[present][..., 5] == np.float32(TARGET)).all() and not portfolio[~present].any()
    capped, seen = 0, 0
    for e in range(rows.shape[1]):
        equity = 0.0
        for t in np.flatnonzero(present[:, e]):
            after = equity + float(plain["reward"][t, e])  # without a goal the reward is the net change of equity
            assert portfolio[t, e, 0, 4] == pytest.approx(equity / scale, rel=1e-4, abs=1e-5)
            assert portfolio[t, e, 1, 4] == pytest.approx(after / scale, rel=1e-4, abs=1e-5)
            wanted = min(after, TARGET * scale) - min(equity, TARGET * scale)
            assert rows["reward"][t, e] == pytest.approx(wanted, rel=1e-4, abs=2e-2)
            capped, seen = capped + (after > TARGET * scale), seen + 1
            equity = 0.0 if rows["ended"][t, e] else after
    assert capped > 20 and seen > 500


def test_observations_are_what_the_ring_stores(worlds: Any) -> None:
    world = worlds[0]
    width = world.tables.feature_count
    assert (
        world.tables.goal_columns
        == (width + 4, width + 5)
        == (world.learner.layout.state_dim - 2, world.learner.layout.state_dim - 1)
    )
    world.environment.reset(split_window(world.ends, *world.folds[0].train, world.environment.environments))
    user, state = world.runtime.ungraphed("test"), world.collector.state
    world.environment.record_observe(user, state)
    begun = state.to_numpy()
    assert (begun[:, width + 4] == 0.0).all() and (begun[:, width + 5] == np.float32(TARGET)).all()
    for _ in range(9):  # the observation after a step is the row of the next
        world.environment.record_step(user, world.collector.action, world.collector.staging, state)
        before = state.to_numpy()
        world.environment.record_step(user, world.collector.action, world.collector.staging, state)
        staged = world.collector.staging.portfolio.to_numpy()
        np.testing.assert_array_equal(before[:, width : width + 6], staged)
    assert not before[:, width + 6 :].any()


@pytest.mark.parametrize("which", [0, 2], ids=["taken", "counterfactual and mirrored too"])
def test_relabelled_rows_of_the_market(worlds: Any, which: int) -> None:
    world = worlds[which]
    rows, portfolio = stored(world)
    e, scale = rows.shape[1], world.environment.model.pnl_scale
    flat, own = rows.reshape(-1), portfolio.reshape(-1, 2, 6).astype(np.float64)
    learner = world.learner
    for _ in range(3):
        learner.step()
    record = learner.drain()[-1]
    her = next(x for x in learner.extensions if isinstance(x, Her))
    batch = learner.rows.rows(learner.drawn.size, learner.rows.size)
    index, donor, state, ret = (b.to_numpy() for b in (batch.index, her.donor, batch.state, batch.ret))
    gamma, unit, not_taken = learner.config.loss.gamma, learner.config.loss.reward_scale, 0
    for k, first in enumerate(index):
        between = np.arange(first, donor[k], e)
        assert (donor[k] - first) % e == 0 and not flat["ended"][between].any()
        not_taken += bool(flat["ended"][first] & abi.constant("ENDED_COUNTERFACTUAL"))
        goal, total = own[donor[k], 1, 4], 0.0
        for j in range(3):
            at = first + j * e
            was, now = own[at, 0, 4], own[at, 1, 4]
            excess = [max(0.0, now - g) - max(0.0, was - g) for g in (float(np.float32(TARGET)), goal)]
            total += gamma**j * unit * (float(flat["reward"][at]) + scale * (excess[0] - excess[1]))
            if flat["ended"][at]:
                break
        assert ret[k] == pytest.approx(total, rel=1e-4, abs=1e-3 * unit * scale)
        assert state[k, learner.layout.state_dim - 1] == np.float32(goal)
    assert record["her_offset"] > 1.0 and (not_taken > 3) == (which == 2)
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)


def test_a_new_scale_of_profits_reaches_the_kernel(worlds: Any) -> None:
    """The unit of the achieved column changes from fold to fold without a new graph."""
    environment = worlds[0].environment
    model = environment.model
    assert environment.pnl_scale.to_numpy() == [model.pnl_scale]
    environment.set_model(dataclasses.replace(model, pnl_scale=123.0))
    assert environment.pnl_scale.to_numpy() == [123.0]
    environment.set_model(model)


def test_columns_beside_those_of_the_market_are_refused(runtime: Any) -> None:
    config = small_config("her.enabled=true", "her.goal_column=3")
    with pytest.raises(ConfigError, match="the market's own here; leave them out"):
        World(runtime, small_data(config), config)
