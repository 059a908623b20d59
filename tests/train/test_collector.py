"""Collection sees every bar of the training window, each decision once, and acts as it is told."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.kernels import abi
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.train.collector import bars_of
from foxhunt_rt.train.fold import collected
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data


@pytest.fixture(scope="module")
def world(runtime):
    config = small_config()
    world = World(runtime, small_data(config), config)
    yield world
    world.close()


def passed(world, epsilon=1.0, seed=9):
    """The rows (inserts, E) of one pass over the first training window."""
    fold = world.folds[0]
    world.enter(fold, seed)
    world.collector.policy.set_exploration(epsilon)
    world.collector.begin(split_window(world.ends, *fold.train, world.environment.environments))
    world.collector.finish()
    rows = world.replay.rows.to_numpy()[: world.replay.inserted]
    return rows.reshape(-1, world.environment.environments)


def test_a_pass_takes_every_decision_of_the_window_once(world):
    first, stop = world.folds[0].train
    rows = passed(world)
    present = rows["ended"] & abi.constant("ENDED_ABSENT") == 0
    seen = np.sort(rows["feature_row"][present])
    bars = np.arange(first, stop - 1)
    np.testing.assert_array_equal(seen, bars[world.ends[bars] > bars])
    np.testing.assert_array_equal(rows["next_feature_row"][present], rows["feature_row"][present] + 1)


def test_the_bars_seen_are_the_whole_window(world):
    first, stop = world.folds[0].train
    rows = passed(world)
    present = rows["ended"] & abi.constant("ENDED_ABSENT") == 0
    seen = np.union1d(rows["feature_row"][present], rows["next_feature_row"][present])
    np.testing.assert_array_equal(seen, np.arange(first, stop))
    np.testing.assert_array_equal(bars_of(world.ends, first, stop), np.arange(first, stop))


def test_a_bar_alone_in_its_session_is_not_counted_as_seen():
    ends = np.array([2, 2, 2, 3, 6, 6, 6], np.int32)  # bar 3 is a session of its own
    np.testing.assert_array_equal(bars_of(ends, 0, 7), [0, 1, 2, 4, 5, 6])


def test_the_host_counts_decisions_as_the_device_takes_them(world):
    rows = passed(world)
    present = rows["ended"] & abi.constant("ENDED_ABSENT") == 0
    assert world.collector.decisions == world.collector.total == present.sum()
    assert world.collector.launched == world.collector.launches


def test_exploration_is_what_was_asked_for(world):
    actions = passed(world, epsilon=1.0)["action"]
    assert len(np.unique(actions)) == 108
    greedy = passed(world, epsilon=0.0)
    again = passed(world, epsilon=0.0)
    np.testing.assert_array_equal(greedy["action"], again["action"])
    assert len(np.unique(greedy["action"])) < 108


def test_rewards_come_back_in_time_order(world):
    rows = passed(world)
    reward, ended = collected(world)
    np.testing.assert_array_equal(reward, rows["reward"])
    np.testing.assert_array_equal(ended, rows["ended"])


def test_a_ring_smaller_than_the_pass_gives_its_last_inserts(runtime):
    config = small_config("replay.capacity=700")
    world = World(runtime, small_data(config), config)
    try:
        fold = world.folds[0]
        world.enter(fold, 9)
        world.collector.begin(split_window(world.ends, *fold.train, 7))
        world.collector.finish()
        reward, ended = collected(world)
        assert reward.shape == ended.shape == (100, 7)
        # The last insert holds the last decision of each walk, or nobody's.
        assert (ended[-1] != 0).all()
    finally:
        world.close()
