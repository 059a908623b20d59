"""The plan head's gate in a run: exactly 1 until readiness is earned, then size and training reward, never the reported money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foxhunt_rt import Runtime
from foxhunt_rt.dqn.checkpoint import load_checkpoint
from foxhunt_rt.dqn.children.plan import Plan
from foxhunt_rt.kernels import abi
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.replay import Batch, Replay, ReplayError, saved
from foxhunt_rt.train import WalkForward
from foxhunt_rt.train.evaluate import Served
from foxhunt_rt.train.world import World

from ..dqn.children.test_post_aux import trunk
from ..dqn.feature_harness import extension
from ..dqn.plants import moved
from ..replay.harness import sample, step_block
from .train_harness import small_config, small_data

pytestmark = pytest.mark.usefixtures("quick")  # the environment with red zones: tests/market/test_conviction.py

E = 7
# a plan as long as the n-step window, so that the embargo, and with it the windows, are those of a run without
ON = ("plan.enabled=true", "plan.ready_steps=1000", "plan.length=5", "plan.block_bars=20")
ABSENT, COUNTERFACTUAL = abi.constant("ENDED_ABSENT"), abi.constant("ENDED_COUNTERFACTUAL")


def make(rt: Runtime, *settings: str) -> World:
    config = small_config("replay.capacity=8000", *settings)
    return World(rt, small_data(config), config)


def ready(world: World, readiness: float) -> None:
    """The plan head's state, as if it had earned that."""
    state = np.zeros(1, abi.dtype("plan_state"))
    state["readiness"] = readiness
    extension(world.learner, Plan).state.copy_from(state)


def passed(world: World, readiness: float | None = None, epsilon: float = 0.3) -> NDArray[Any]:
    """The rows of one pass over the first training window."""
    fold = world.folds[0]
    world.enter(fold, 9)
    if readiness is not None:
        ready(world, readiness)
    world.collector.policy.set_exploration(epsilon)
    world.collector.begin(split_window(world.ends, *fold.train, E))
    world.collector.finish()
    return world.replay.rows.to_numpy()[: world.replay.inserted]


@pytest.fixture(scope="module")
def world(quick: None, runtime: Runtime) -> Any:
    made = make(runtime, *ON)
    yield made
    made.close()


def conviction_of(world: World) -> NDArray[np.float32]:
    assert world.replay.conviction is not None
    found: NDArray[np.float32] = world.replay.conviction.to_numpy()[: world.replay.inserted]
    return found


def test_no_row_is_gated_at_initialization(runtime: Runtime, world: World) -> None:
    """Known failure K15: an untrained sigmoid scaled every reward. The first rows, and what is learned from them, are those of a
    learner without the head, bit for bit."""
    off = make(runtime)
    found = []
    for each in (off, world):
        rows = passed(each)
        for _ in range(4):
            each.learner.step()
        each.learner.drain()
        n = each.learner.layout.network_size
        found.append((rows.tobytes(), each.learner.adam.theta.to_numpy()[:n].tobytes()))  # type: ignore[attr-defined]
    assert found[0] == found[1]
    assert (conviction_of(world) == 1.0).all() and world.learner.last["plan_conviction"] == 1.0  # type: ignore[index]
    off.close()


@pytest.mark.parametrize("readiness", [0.0, float(np.nextafter(np.float32(0.5), np.float32(0)))])
def test_a_readiness_below_the_gate_changes_nothing(world: World, readiness: float) -> None:
    expected = passed(world).tobytes()
    assert passed(world, readiness).tobytes() == expected and (conviction_of(world) == 1.0).all()


def test_rows_keep_the_head_s_probability_and_raw_rewards(world: World) -> None:
    rows = passed(world, 0.5)
    conviction = conviction_of(world)
    present = rows["ended"] & ABSENT == 0
    assert (conviction[~present] == 1.0).all() and (~present).any()
    layout, theta = world.learner.layout, world.learner.params()
    portfolio = world.replay.portfolio.to_numpy()[: world.replay.inserted, 0]  # type: ignore[union-attr]
    table = world.tables.features.to_numpy()[rows["feature_row"]]
    x = trunk(theta, layout, np.concatenate([table, portfolio], 1))
    logit = (x @ theta["plan.weight"].astype(np.float64))[:, 0] + theta["plan.bias"][0]
    np.testing.assert_allclose(conviction[present], (1.0 / (1.0 + np.exp(-logit)))[present], rtol=2e-5)
    assert np.ptp(conviction[present]) > 1e-3


def test_training_returns_are_scaled_and_labels_are_not(runtime: Runtime, world: World) -> None:
    rows = passed(world, 0.5)
    conviction, replay = conviction_of(world).astype(np.float64), world.replay
    batch = Batch.allocate(runtime, 64, replay.state_dim)
    got = sample(replay, batch, step_block(runtime, gamma=0.9, reward_scale=0.25))
    expected, raw = [], []
    for i in got["index"]:
        total = unscaled = 0.0
        for k in range(replay.n_step):
            at = int(i) + k * E
            total += 0.9**k * float(rows["reward"][at]) * 0.25 * conviction[at]
            unscaled += 0.9**k * float(rows["reward"][at]) * 0.25
            if rows["ended"][at]:
                break
        expected.append(total)
        raw.append(unscaled)
    np.testing.assert_allclose(got["ret"], expected, rtol=1e-4, atol=1e-4)
    assert np.abs(np.array(raw) - expected).max() > 1.0

    world.learner.step()
    record = world.learner.drain()[-1]
    index = world.learner.batch.index.to_numpy()  # type: ignore[attr-defined]
    assert record["plan_conviction"] == pytest.approx(conviction[index].mean(), rel=1e-5)
    moved("plan_conviction", 1.0, record["plan_conviction"])  # the test above: 1 without
    table = extension(world.learner, Plan).rows.to_numpy()
    names = [abi.constant(f"PLAN_{name}") for name in ("LABEL", "HELD_LABEL", "TRAINED", "HELD")]
    label, held_label, trained, held = (table[:, c] for c in names)
    used = (trained + held).astype(bool)
    length = world.config.plan.length
    paid = np.array([rows["reward"][int(i) + np.arange(length) * E].astype(np.float64).sum() > 0 for i in index[used]])
    np.testing.assert_array_equal((label + held_label)[used] == 1.0, paid)
    assert used.sum() > 3


def test_the_ring_resumes_with_it(runtime: Runtime, world: World) -> None:
    passed(world, 0.5)
    tensors, counts = saved.read_contents(world.replay)
    assert np.ptp(tensors["conviction"]) > 0
    other = make(runtime, *ON)
    other.enter(other.folds[0], 9)
    saved.write_contents(other.replay, tensors, counts)
    got = [
        sample(each.replay, Batch.allocate(runtime, 200, each.replay.state_dim), step_block(runtime))
        for each in (world, other)
    ]
    np.testing.assert_array_equal(got[0]["ret"], got[1]["ret"])
    plain = make(runtime)
    assert saved.describe(plain.replay) != saved.describe(other.replay)
    plain.close()
    other.close()


def test_evaluation_takes_the_readiness_that_is_served(world: World) -> None:
    """Below the gate the same bits as without; above it smaller sizes. What is reported is the money of the fills."""
    world.enter(world.folds[0], 9)
    window, tick = world.window(0, 900), world.data.spec.tick_value
    theta = world.learner.params()
    theta["plan.bias"][0] = -0.4  # a share of some 0.4
    world.learner.load_params(theta)
    found = {}
    for readiness in (0.0, 0.49, 0.5, 1.0):
        ready(world, readiness)
        served = Served.of(world.learner)
        assert served.plan is not None and served.plan["readiness"] == np.float32(readiness)
        ready(world, 0.7)  # the learner goes on; what was served stays
        world.evaluator.serve(served)
        found[readiness] = world.evaluator.record(window.ends, window.first, window.stop)
    assert found[0.0].tobytes() == found[0.49].tobytes() and found[0.5].tobytes() == found[1.0].tobytes()
    gated, whole = found[0.5], found[0.0]
    assert np.abs(gated["position"]).max() <= 2 < np.abs(whole["position"]).max()
    for r in (gated, whole):
        paid = r["contracts"] * r["price"] + r["exit_contracts"] * r["exit_price"]
        fees = world.data.spec.fee * (np.abs(r["contracts"]) + np.abs(r["exit_contracts"])).sum()
        assert r["net"].sum() == pytest.approx(-tick * paid.sum() - fees, rel=1e-6)


def test_checkpoints_hold_the_readiness_and_a_fold_begins_without(runtime: Runtime, tmp_path: Path) -> None:
    config = small_config(*ON, "train.folds=1")
    run = WalkForward(runtime, small_data(config), config, runs=tmp_path)
    run.run()
    assert run.folder is not None
    for name in ("fold1", "fold1-best"):
        tensors, _, _ = load_checkpoint(run.folder.checkpoint(name))
        assert tensors["plan.readiness"] == [0.0] and np.isfinite(tensors["plan.skill"]).all()
        state = saved.structured(tensors["plan.state"], abi.dtype("plan_state"))
        assert state["skill"][0] == tensors["plan.skill"][0] and state["held"][0] > 0.0
    ready(run.world, 0.9)
    run.world.enter(run.world.folds[0], 1)
    assert extension(run.world.learner, Plan).state.to_numpy()["readiness"] == [0.0]
    run.close()


def test_off_adds_nothing_to_collection_and_evaluation(runtime: Runtime, world: World) -> None:
    off = make(runtime)
    assert off.replay.conviction is None and off.evaluator.gate is None and off.collector.staging.conviction is None
    steps = off.config.train.collect_steps
    for one, other in ((off.collector.graph, world.collector.graph), (off.evaluator.graph, world.evaluator.graph)):
        assert other.info()["nodes"] - one.info()["nodes"] == steps  # one a step
        assert not any("conviction" in b.label or "plan" in b.label for b in one.buffers())
    off.close()


def test_a_ring_that_cannot_keep_it_says_so(runtime: Runtime) -> None:
    with pytest.raises(ReplayError, match="mode='market'"):
        Replay(runtime, 256, 3).track_conviction()
    ring = Replay(runtime, 256, 3, mode="market", portfolio_dim=1)
    ring.track_conviction()
    with pytest.raises(ReplayError, match="once, before anything"):
        ring.track_conviction()
