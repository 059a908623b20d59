"""Collection and evaluation with a network that looks back: both see the windows that replay gives to training."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.kernels import abi
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.replay import Batch
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data

WINDOW = 6


@pytest.fixture(scope="module")
def world(runtime):
    config = small_config("temporal.enabled=true", f"network.window={WINDOW}", "temporal.heads=2", "temporal.head_dim=3",
                          "temporal.state_dim=5")  # fmt: skip
    world = World(runtime, small_data(config), config)
    yield world
    world.close()


def begin(world):
    fold = world.folds[0]
    world.enter(fold, 9)
    world.collector.policy.set_exploration(0.0)
    world.collector.begin(split_window(world.ends, *fold.train, world.environment.environments))


def test_the_collector_acts_on_the_windows_that_training_draws(runtime, world):
    begin(world)
    replay, e = world.replay, world.environment.environments
    batch = Batch.allocate(runtime, e, world.learner.layout.state_dim, WINDOW)
    lengths = set()
    for _ in range(30):  # past the end of a session
        world.collector.launch()
        position = replay.read_state().position
        batch.index.copy_from(np.arange(position - e, position, dtype=np.int32))
        acted_on = world.collector.history.windows
        batch.state.copy_from(np.ascontiguousarray(acted_on.states.to_numpy()[:, -1]))
        replay.record_windows(runtime.ungraphed("test.looking_back"), batch)
        np.testing.assert_array_equal(batch.window.states.to_numpy(), acted_on.states.to_numpy())
        np.testing.assert_array_equal(batch.window.length.to_numpy(), acted_on.length.to_numpy())
        lengths |= set(acted_on.length.to_numpy().tolist())
    assert len(lengths) > 2, lengths


def test_an_evaluation_decides_as_collection_does(world):
    """The same parameters, greedy: the same action at every bar of the sessions that one walk of the pass takes whole."""
    begin(world)
    world.collector.finish()
    first, stop = world.folds[0].train
    rows = world.replay.rows.to_numpy()[: world.replay.inserted]
    rows = rows[rows["ended"] & abi.constant("ENDED_ABSENT") == 0]
    collected = dict(zip(rows["feature_row"].tolist(), rows["action"].tolist(), strict=True))
    world.evaluator.params.copy_from(world.learner.adam.theta.to_numpy())
    results = world.evaluator.record(world.ends, first, stop)
    walks = split_window(world.ends, first, stop, world.environment.environments)
    cut = set(np.unique(world.ends[walks.start])) | set(np.unique(world.ends[walks.end - 1]))
    bars = [b for b in range(first, stop - 1) if world.ends[b] > b and world.ends[b] not in cut]
    assert len(bars) > 200
    np.testing.assert_array_equal([results["action"][b + 1 - first] for b in bars], [collected[b] for b in bars])
    assert len({collected[b] for b in bars}) > 1
