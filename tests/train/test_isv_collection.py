"""isv on the market: rows hold the vector of their collection, evaluation has that of the parameters it judges."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.dqn.checkpoint import load_checkpoint
from foxhunt_rt.dqn.children.isv import COMPONENTS
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.train import WalkForward
from foxhunt_rt.train.evaluate import Served
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data

COLUMNS = len(COMPONENTS)


@pytest.fixture(scope="module")
def world(runtime):
    config = small_config("isv.enabled=true")
    made = World(runtime, small_data(config), config)
    yield made
    made.close()


def test_rows_hold_the_vector_of_their_launch_and_of_the_next(world):
    world.enter(world.folds[0], 9)
    assert not world.replay.context.to_numpy().any(), "a fold begins with zeros"
    learner, collector, environments = world.learner, world.collector, world.environment.environments
    collector.begin(split_window(world.ends, *world.folds[0].train, environments))
    held = []
    for _ in range(9):
        held += [world.replay.context.to_numpy()] * collector.steps
        collector.launch()
        width = world.tables.state_width
        np.testing.assert_array_equal(collector.action.to_numpy() >= 0, True)
        if world.replay.ready(learner.drawn.size):
            learner.step()
    learner.drain()
    assert len({v.tobytes() for v in held}) >= 8, "a step behind nearly every launch"
    count = len(held) * environments
    rows = world.replay.rows.to_numpy()[:count].reshape(-1, environments)
    stored = world.replay.portfolio.to_numpy()[:count].reshape(-1, environments, 2, 4 + COLUMNS)
    ended = rows["ended"] != 0
    for t in range(len(held) - 1):
        np.testing.assert_array_equal(stored[t, :, 0, 4:], np.broadcast_to(held[t], (environments, COLUMNS)))
        expected = np.where(ended[t][:, None], held[t], held[t + 1])
        np.testing.assert_array_equal(stored[t, :, 1, 4:], expected)
    assert ended.any() and not ended.all()
    state, index = learner.batch.state.to_numpy(), learner.batch.index.to_numpy()
    np.testing.assert_array_equal(state[:, width : width + COLUMNS], np.array(held)[index // environments])
    assert not state[:, width + COLUMNS :].any()


def test_an_evaluation_acts_by_the_vector_it_was_given(world):
    fold, evaluator = world.folds[0], world.evaluator
    theta, window = world.learner.served().to_numpy(), world.window(*fold.validate)
    found = []
    for context in (np.zeros(COLUMNS, np.float32), np.ones(COLUMNS, np.float32), np.zeros(COLUMNS, np.float32)):
        evaluator.serve(Served(theta, context=context))
        found.append(evaluator.judge(window).equity)
        np.testing.assert_array_equal(evaluator.context.to_numpy(), context)
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1]), "the columns reach the network"


def test_checkpoints_of_a_run_hold_the_vector_of_their_parameters(runtime, tmp_path):
    config = small_config("isv.enabled=true", "train.folds=1")
    run = WalkForward(runtime, small_data(config), config, runs=tmp_path, name="isv")
    run.run()
    best, whole = (load_checkpoint(run.folder.checkpoint(f"fold1{kind}"))[0]["context"] for kind in ("-best", ""))
    np.testing.assert_array_equal(whole, run.world.replay.context.to_numpy())
    assert whole.shape == best.shape == (COLUMNS,) and best.all()
    run.close()
