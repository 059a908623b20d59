"""The loss on fixed rows against NumPy in float64, from the parameters and the rows alone."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.market.actions import BRANCHES, decode_actions
from foxhunt_rt.market.walks import split_window
from foxhunt_rt.train.world import World

from .train_harness import small_config, small_data

V_MIN, V_MAX, SCALE = -2.0, 2.5, 0.004


@pytest.fixture(scope="module")
def world(runtime):
    config = small_config("loss.label_smoothing=0.03")
    world = World(runtime, small_data(config), config)
    fold = world.folds[0]
    world.enter(fold, 21)
    world.collector.policy.set_exploration(1.0)
    world.collector.begin(split_window(world.ends, *fold.train, 7))
    world.collector.finish()
    world.learner.set(reward_scale=SCALE, v_min=V_MIN, v_max=V_MAX)
    world.probe.draw(5)
    yield world
    world.close()


def log_probabilities(layout, flat, states):
    """log p (rows, branch, action, atom) by branch: dueling over branches, written out."""
    t = {name: x.astype(np.float64) for name, x in layout.unpack(flat).items()}
    x = states[:, : layout.state_dim].astype(np.float64)
    for i in range(len(layout.hidden)):
        x = np.maximum(x @ t[f"trunk.{i}.weight"] + t[f"trunk.{i}.bias"], 0.0)
    value = (x @ t["value.weight"] + t["value.bias"])[:, None, :]
    out = []
    for b, n in enumerate(layout.branches):
        a = (x @ t[f"branch.{b}.weight"] + t[f"branch.{b}.bias"]).reshape(len(x), n, layout.atoms)
        logits = value + a - a.mean(axis=1, keepdims=True)
        logits -= logits.max(axis=-1, keepdims=True)
        out.append(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))
    return out


def project(p, ret, discount, atoms):
    """C51's projection, one row and atom at a time (Bellemare 2017, algorithm 1)."""
    z = np.linspace(V_MIN, V_MAX, atoms)
    out = np.zeros_like(p)
    for i in range(len(p)):
        for j in range(atoms):
            at = (min(max(ret[i] + discount[i] * z[j], V_MIN), V_MAX) - V_MIN) / (V_MAX - V_MIN) * (atoms - 1)
            low = min(int(np.floor(at)), atoms - 2)
            out[i, low] += p[i, j] * (low + 1 - at)
            out[i, low + 1] += p[i, j] * (at - low)
    return out


def by_hand(world, theta, target):
    layout, batch, atoms = world.learner.layout, world.probe.batch, world.learner.layout.atoms
    z = np.linspace(V_MIN, V_MAX, atoms)
    online = log_probabilities(layout, theta, batch.state.to_numpy())
    frozen = [np.exp(lp) for lp in log_probabilities(layout, target, batch.next_state.to_numpy())]
    action = decode_actions(batch.action.to_numpy())
    ret, discount = batch.ret.to_numpy().astype(np.float64), batch.discount.to_numpy().astype(np.float64)
    rows = np.arange(len(ret))
    ce, mse = np.zeros(len(ret)), np.zeros(len(ret))
    for b in range(len(BRANCHES)):
        best = (frozen[b] @ z).argmax(axis=1)
        m = project(frozen[b][rows, best], ret, discount, atoms)
        smooth = (1 - 0.03) * m + 0.03 / atoms
        lp = online[b][rows, action[:, b]]
        ce -= (smooth * lp).sum(axis=1) / len(BRANCHES)
        mse += (np.exp(lp) @ z - m @ z) ** 2 / len(BRANCHES)
    return {"mse": mse.mean(), "ce": ce.mean()}


def networks(world):
    layout = world.learner.layout
    return [layout.pack({k: 3.0 * v for k, v in layout.init(seed).items()}) for seed in (1, 2)]


def test_both_parts_agree_with_numpy(world):
    theta, target = networks(world)
    found, expected = world.probe.measure(theta, target), by_hand(world, theta, target)
    assert found["ce"] == pytest.approx(expected["ce"], rel=2e-5)
    assert found["mse"] == pytest.approx(expected["mse"], rel=2e-4)


def test_rows_and_targets_stay_whatever_network_is_asked(world):
    theta, target = networks(world)
    rows = [b.to_numpy() for b in world.probe.batch.sampled]
    first = world.probe.measure(theta, target)
    world.probe.measure(target, theta)
    assert world.probe.measure(theta, target) == first
    for before, buffer in zip(rows, world.probe.batch.sampled, strict=True):
        np.testing.assert_array_equal(before, buffer.to_numpy())


def test_the_rows_spread_over_the_whole_collection(world):
    index = world.probe.batch.index.to_numpy()
    rows = world.replay.inserted
    assert index.min() < 0.05 * rows
    assert index.max() > 0.95 * rows
    assert len(np.unique(index)) == len(index)


def test_a_network_that_fits_the_targets_better_scores_lower(world):
    """A few training steps against its own target lower the cross-entropy: the probe points the right way."""
    learner = world.learner
    learner.set(alpha_c51=1.0)
    first = learner.adam.theta.to_numpy()
    for _ in range(60):
        learner.step()
    learner.drain()
    target = learner.adam.target.to_numpy()
    assert world.probe.measure(learner.adam.theta.to_numpy(), target)["ce"] < world.probe.measure(first, target)["ce"]
