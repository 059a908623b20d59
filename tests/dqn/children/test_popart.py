"""popart: moments of the returns against NumPy in float64, the correction of heads against rlax, and K13."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import rlax

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.checkpoint import CheckpointError
from foxhunt_rt.dqn.children.popart import PopArt
from foxhunt_rt.dqn.layout import LayoutError
from foxhunt_rt.dqn.learner_state import read_state, write_state
from foxhunt_rt.dqn.schedule import Control
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Replay, ReplayError
from foxhunt_rt.train.loss_probe import LossProbe
from tests.dqn.test_whole_step import CASES, chain, fill, transitions

CASE = CASES[1]
ON = ("popart.enabled=true", "popart.min_count=64")
HEADS = (*ON, "iql.enabled=true", "iqn.enabled=true", "selectivity.enabled=true", "optim.lr=3e-3")


def learner_of(rt: Runtime, *settings: str, scale: float = 1.0, rows: bool = True) -> Learner:
    """A small learner of odd sizes; its replay filled with rewards times ``scale``."""
    learner = Learner(rt, CASE.config().with_set([*settings]), CASE.state_dim, CASE.branches)
    if rows:
        made = chain(transitions(CASE))
        fill(learner, dataclasses.replace(made, reward=made.reward * scale))
    return learner


def deviation(learner: Learner) -> float:
    """sigma_G by the definition, from the rewards that `learner_of` inserted."""
    rows = chain(transitions(CASE))
    return float(np.std(forward_returns(rows.reward.astype(np.float32).reshape(-1, CASE.environments),
                                        (rows.terminated | rows.truncated).reshape(-1, CASE.environments),
                                        [np.float32(learner.config.loss.gamma)] * CASE.inserts)))  # fmt: skip


def forward_returns(reward: Any, ended: Any, gamma: Any, absent: Any = None) -> npt.NDArray[np.float64]:
    """Every G <- r + gamma G of (T, E) rewards, in float64, environment after environment."""
    absent = np.zeros(reward.shape, bool) if absent is None else absent
    found = []
    for e in range(reward.shape[1]):
        g = 0.0
        for t in range(len(reward)):
            g = 0.0 if absent[t, e] else float(reward[t, e]) + float(gamma[t]) * g
            if not absent[t, e]:
                found.append(g)
            if ended[t, e] or absent[t, e]:
                g = 0.0
    return np.array(found)


@pytest.mark.parametrize("mode", ["vector", "market"])
@pytest.mark.parametrize("environments", [1, 7, 41])
def test_moments_of_returns_as_they_are_collected(runtime: Runtime, mode: str, environments: int) -> None:
    """Count, mean and M2 over both kinds of end, absent environments and a gamma that changes; far from zero, where a sum of
    squares would cancel. Then a clear."""
    steps, e, random = 60, environments, np.random.default_rng(environments)
    market = mode == "market"
    ring = Replay(runtime, 256, 3, mode=mode, portfolio_dim=2 if market else 0, n_step=2)
    control = Control(runtime, Config(), seed=1)
    ring.track_returns(control.buffer)
    staging = ring.staging(e)
    reward = (1e4 + random.normal(size=(steps, e))).astype(np.float32)
    absent = random.random((steps, e)) < 0.1
    terminated, truncated = (random.random((steps, e)) < 0.1) & ~absent, (random.random((steps, e)) < 0.1) & ~absent
    gamma = np.float32(np.where(np.arange(steps) < 30, 0.5, 0.75))
    plan = runtime.plan("insert")
    with plan.child("insert", reads=ring.insert_reads(staging), writes=ring.insert_writes(staging)) as child:
        ring.record_insert(child, staging)
    graph = plan.build(ungraphed=False)

    def pass_over() -> Any:
        for t in range(steps):
            if t in (0, 30):
                control.set(gamma=float(gamma[t]))
            zeros = np.zeros((e, 3), np.float32)
            states: dict[str, Any] = {"state": zeros, "next_state": zeros}
            if market:
                index, own = np.zeros(e, np.int32), np.zeros((e, 2), np.float32)
                states = {"feature_row": index, "next_feature_row": index, "portfolio": own, "next_portfolio": own}
            ring.fill(
                staging, np.zeros(e, np.int32), reward[t], terminated[t], truncated[t], absent=absent[t], **states
            )
            graph.launch()
            ring.note_inserted(staging)
        assert ring.returns is not None
        return ring.returns.to_numpy()[0]

    expected = forward_returns(reward, terminated | truncated, gamma, absent)
    found = pass_over()
    assert found["count"] == len(expected)
    assert found["mean"] == pytest.approx(expected.mean(), rel=1e-12)
    assert found["m2"] == pytest.approx(((expected - expected.mean()) ** 2).sum(), rel=1e-9)
    ring.clear()
    runtime.synchronize()
    assert ring.returns is not None and ring.running is not None
    assert not ring.returns.to_numpy()["count"].any() and not ring.running.to_numpy().any()
    again = pass_over()
    assert again.tobytes() == found.tobytes(), "a cleared ring behaves as a new one"
    graph.close()


def test_tracking_begins_before_the_first_insert(runtime: Runtime) -> None:
    learner = learner_of(runtime)
    with pytest.raises(ReplayError, match="make the learner before anything is inserted"):
        Learner(runtime, CASE.config().with_set([*ON]), CASE.state_dim, CASE.branches, replay=learner.replay)
    assert learner.replay.returns is None and learner.replay.running is None
    learner.close()


def test_sigma_follows_the_deviation_and_divides_the_returns(runtime: Runtime) -> None:
    """From 1 / reward_scale to the deviation of the returns collected, at most max_change a step; batch.ret stays as it is."""
    scale = 0.5
    learner = learner_of(runtime, *ON, f"loss.reward_scale={scale}", "popart.max_change=0.25")
    wanted = deviation(learner)
    sigma, expected = [], 1.0 / scale
    for _ in range(12):
        learner.step()
        sigma.append(learner.drain()[-1]["popart_sigma"])
        before, expected = expected, float(np.clip(wanted, expected / 1.25, expected * 1.25))
        assert sigma[-1] == pytest.approx(expected, rel=1e-6)
        record = learner.last
        assert record is not None and record["popart_scale"] == pytest.approx(expected / before, rel=1e-6)
        raw = learner.batch.ret.to_numpy().astype(np.float64) / scale
        np.testing.assert_allclose(learner.ret.to_numpy(), raw / expected, rtol=1e-6)
        assert learner.return_scale() == pytest.approx(1.0 / expected, rel=1e-9)
    assert sigma[-1] == pytest.approx(wanted, rel=1e-6) and abs(wanted * scale - 1.0) > 0.3, "it moved, and arrived"
    learner.close()


def test_too_few_returns_move_nothing(runtime: Runtime) -> None:
    """Below min_count the step is, to the last bit, that of reward_scale alone."""
    found = []
    for settings in ((), ("popart.enabled=true", "popart.min_count=100000")):
        learner = learner_of(runtime, "loss.reward_scale=0.3", *settings)
        for _ in range(4):
            learner.step()
        record = learner.drain()[-1]
        found.append((learner.adam.theta.to_numpy().tobytes(), learner.replay.priority.to_numpy().tobytes()))
        assert learner.return_scale() == pytest.approx(0.3, rel=1e-6)
        if settings:
            assert record["popart_scale"] == 1.0 and record["popart_sigma"] == pytest.approx(1 / 0.3, rel=1e-6)
        learner.close()
    assert found[0] == found[1]


def test_the_losses_are_those_of_the_normalized_rewards(runtime: Runtime) -> None:
    """Where sigma has arrived, the learner's statistics are those of a learner whose reward_scale is 1 / sigma."""
    one = learner_of(runtime, *ON, "popart.max_change=1", "optim.lr_min=0", "optim.lr=0", "optim.tau_start=0",
                     "optim.tau_end=0", "replay.alpha=0")  # fmt: skip
    two = learner_of(runtime, "optim.lr_min=0", "optim.lr=0", "optim.tau_start=0", "optim.tau_end=0", "replay.alpha=0")
    for _ in range(6):
        one.step()
    one.drain()
    two.set(reward_scale=one.return_scale())
    for _ in range(6):
        two.step()
    two.drain()
    assert (one.batch.index.to_numpy() == two.batch.index.to_numpy()).all()
    for name in ("loss", "ce", "mse", "td_error", "target_mean", "atom_use", "edge_mass"):
        assert one.last is not None and two.last is not None
        assert one.last[name] == pytest.approx(two.last[name], rel=1e-4, abs=1e-6), name
    assert abs(one.return_scale() - 1.0) > 0.3
    one.close()
    two.close()


def parts(learner: Learner, group: str = "iql_v") -> dict[str, npt.NDArray[np.float32]]:
    """Tensors of a group in theta, target and both moments."""
    begin, stop = learner.layout.group_range(group)
    return {n: getattr(learner.adam, n).to_numpy()[begin:stop] for n in ("theta", "target", "m", "v")}


def test_corrected_heads_say_the_same_in_raw_reward(runtime: Runtime) -> None:
    """theta and target against rlax's popart with its shift at 0; moments by the gradient of a squared loss; nothing else
    changes; outputs times sigma are what they were, to f32 rounding."""
    learner = learner_of(runtime, *HEADS, "popart.max_change=0.5")
    learner.step()
    old = float(learner.drain()[-1]["popart_sigma"])
    before, rest, quantiles = parts(learner), parts(learner, "selectivity"), parts(learner, "iqn")
    network = learner.adam.theta.to_numpy()[: learner.layout.network_size]
    x = learner.forward.hidden[-1].to_numpy()[0].astype(np.float64)

    # the child alone, as recorded, for the step that comes next
    step = learner.step_block.to_numpy()
    step["step"] += 1
    learner.step_block.copy_from(step)
    child = next(c for c in learner.graph.children if c.name == "popart")
    op: Any = child.ops[0]
    runtime.ungraphed("test.popart").launch(op.kernel, op.grid, op.block, op.fields)
    runtime.synchronize()
    sigma, scale = op.fields["metrics"].to_numpy()
    assert scale == pytest.approx(sigma / old, rel=1e-6) and abs(scale - 1.0) > 0.05
    after = parts(learner)

    # rlax: two targets +-sigma with a step of a half each make the scale sigma and the shift 0
    _, update = rlax.popart(num_outputs=1, step_size=0.5, scale_lb=1e-6, scale_ub=1e6)
    width = learner.layout.hidden[-1]
    padded = before["theta"].size // 16 - 1
    for name in ("theta", "target"):
        weight = before[name][: padded * 16].reshape(padded, 16)[:width, :1]
        bias = before[name][padded * 16 :][:1]
        state = rlax.PopArtState(np.zeros(1), np.array([old]), np.array([old**2]))
        params, new = update({"w": weight, "b": bias}, state, np.array([sigma, -sigma]), np.array([0, 0]))
        assert float(new.scale[0]) == pytest.approx(sigma, rel=1e-5) and abs(float(new.shift[0])) < 1e-6
        found = after[name][: padded * 16].reshape(padded, 16)[:width, :1]
        np.testing.assert_allclose(found, np.asarray(params["w"]), rtol=2e-5)
        np.testing.assert_allclose(after[name][padded * 16 :][:1], np.asarray(params["b"]), rtol=2e-5)
        raw = [(x[:, :width] @ w.astype(np.float64)[:, 0] + b.astype(np.float64)[0]) * s for w, b, s in (
            (weight, bias, old), (found, after[name][padded * 16 :][:1], float(sigma)))]  # fmt: skip
        terms = np.abs(x[:, :width]) @ np.abs(weight[:, 0]) * old + abs(float(bias[0])) * old
        assert (np.abs(raw[0] - raw[1]) <= 4e-7 * terms).all()
    rho = old / float(sigma)
    np.testing.assert_allclose(after["m"], before["m"] * rho, rtol=1e-6)
    np.testing.assert_allclose(after["v"], before["v"] * rho**2, rtol=1e-6)
    assert np.abs(before["m"]).max() > 0.0 and before["v"].max() > 0.0
    segments = {g.name: g for g in learner.layout.group_segments["iqn"]}
    first = learner.layout.group_range("iqn")[0]
    for name, array in parts(learner, "iqn").items():
        for tensor, segment in segments.items():
            where = slice(segment.offset - first, segment.stop - first)
            factor = (rho**2 if name == "v" else rho) if tensor.startswith("iqn.head") else 1.0
            np.testing.assert_allclose(
                array[where], quantiles[name][where] * factor, rtol=1e-6, err_msg=f"{name} {tensor}"
            )
    for name, array in parts(learner, "selectivity").items():
        assert (array == rest[name]).all(), "its labels are raw"
    assert (learner.adam.theta.to_numpy()[: learner.layout.network_size] == network).all(), (
        "a softmax has no such correction"
    )
    learner.close()


def test_gradient_of_a_squared_loss_scales_as_the_moments_do() -> None:
    """The derivation, in numbers: with targets, weights and bias in a unit that is larger, dloss/dw shrinks as they do."""
    random = np.random.default_rng(0)
    x, w, t, rho = random.normal(size=(9, 4)), random.normal(size=4), random.normal(size=9), 0.37

    def gradient(weights: Any, targets: Any) -> Any:
        u = targets - x @ weights
        return (-2.0 * np.where(u < 0.0, 0.3, 0.7) * u) @ x / len(u)

    np.testing.assert_allclose(gradient(rho * w, rho * t), rho * gradient(w, t), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_larger_rewards_raise_sigma(runtime: Runtime, scale: float) -> None:
    learner = learner_of(runtime, *ON, "popart.max_change=1", scale=scale)
    for _ in range(12):
        learner.step()
    records = learner.drain()
    assert records["popart_sigma"][-1] == pytest.approx(scale * deviation(learner), rel=1e-5)
    assert (records["popart_scale"][0] > 1.0) == (scale * deviation(learner) > 1.0)
    assert records["popart_scale"][-1] == 1.0, "the same returns: nothing moves any more"
    learner.close()


def test_known_failure_k13_small_rewards_use_the_support(runtime: Runtime) -> None:
    """Rewards of +-1e-3 on a support of +-10: a few per cent of the atoms without, above a quarter with."""
    use, e, length = [], 16, 16
    for settings in ((), ("popart.enabled=true", "popart.max_change=0.1")):
        learner = Learner(runtime, Config().with_set([
            "network.hidden=16", "network.atoms=51", "replay.capacity=4096", "replay.batch=32", "replay.n_step=5",
            "loss.v_min=-10", "loss.v_max=10", "loss.gamma=0.95", "loss.grad_budget=0", "optim.lr=1e-2", "optim.tau_start=0.1",
            "optim.tau_end=0.1", *settings]), 1, (2,))  # fmt: skip
        learner.set(alpha_c51=1.0)
        random = np.random.default_rng(0)
        staging = learner.replay.staging(e)
        state = random.normal(size=(e, 1)).astype(np.float32)
        for t in range(128):  # a slow signal that pays its sign, cut into sessions
            following = (0.97 * state + 0.25 * random.normal(size=(e, 1))).astype(np.float32)
            learner.replay.insert_batch(staging, random.integers(0, 2, e).astype(np.int32),
                                        np.sign(state[:, 0]).astype(np.float32) * np.float32(1e-3), np.zeros(e, bool),
                                        np.full(e, t % length == length - 1), state=state, next_state=following)  # fmt: skip
            state = following
        for _ in range(300):
            learner.step()
        records = learner.drain()
        use.append(float(records["atom_use"][-50:].mean()))
        learner.close()
    print(f"atom use without popart {use[0]:.3f}, with {use[1]:.3f}")
    assert use[0] < 0.10 and use[1] > 0.25


def test_off_adds_nothing_and_on_one_child(runtime: Runtime) -> None:
    off, on = learner_of(runtime), learner_of(runtime, *ON)
    names = [[child.name for child in learner.graph.children] for learner in (off, on)]
    assert names[1] == [*names[0][:2], "popart", *names[0][2:]] and names[0][:3] == [
        "counters",
        "per_sample",
        "forward",
    ]
    assert on.graph.children[2].kernels == ["popart"]
    assert off.ret is off.batch.ret and not off.extensions and off.replay.returns is None
    assert on.graph.info()["nodes"] == off.graph.info()["nodes"] + 1
    found = []
    for settings in ((), ON):
        with Runtime(runtime.device.ordinal) as own:
            learner = learner_of(own, *settings)
            found.append({entry.module.name for entry in own.ledger.entries()})
            learner.close()
    assert not any("popart" in name or "replay_returns" in name for name in found[0]), found[0]
    off.close()
    on.close()


def test_the_same_bits_however_it_runs(runtime: Runtime) -> None:
    for settings in (HEADS, (*HEADS, "train.steps_per_launch=3")):
        learner = learner_of(runtime, *settings)
        learner.step()
        learner.drain()
        result = learner.graph.verify(steps=3)
        assert result.bitwise_equal, str(result)
        learner.close()


def contents(of: Learner) -> dict[str, bytes]:
    found = {name: buffer.to_numpy().tobytes() for name, buffer in of.persistent().items()}
    assert of.replay.returns is not None and of.replay.running is not None
    return {**found, "priority": of.replay.priority.to_numpy().tobytes(),
            "returns": of.replay.returns.to_numpy().tobytes(), "running": of.replay.running.to_numpy().tobytes()}  # fmt: skip


def test_resumes_bit_for_bit_and_goes_on_collecting(runtime: Runtime) -> None:
    """Seven steps, an odd number: the parity of the slots goes along; so do the returns of episodes that are going on."""
    one = learner_of(runtime, *HEADS)
    for _ in range(7):
        one.step()
    tensors, facts = read_state(one)
    two = learner_of(runtime, *HEADS, rows=False)
    write_state(two, tensors, facts)
    assert contents(one) == contents(two)
    for learner in (one, two):
        fill(learner, chain(transitions(CASE)))
        for _ in range(4):
            learner.step()
        learner.drain()
    assert contents(one) == contents(two)
    for settings in (("iql.enabled=true", "selectivity.enabled=true"), (*HEADS, "popart.max_change=0.5")):
        other = learner_of(runtime, *settings, rows=False)
        with pytest.raises(CheckpointError, match="popart"):
            write_state(other, tensors, facts)
        other.close()
    one.close()
    two.close()


def test_without_the_ring_sigma_stays_and_the_moments_begin_anew(runtime: Runtime) -> None:
    one = learner_of(runtime, *ON)
    for _ in range(5):
        one.step()
    tensors, facts = read_state(one, replay=False)
    two = learner_of(runtime, *ON)
    write_state(two, tensors, facts)
    assert two.return_scale() == one.return_scale()
    assert two.replay.returns is not None and two.replay.returns.to_numpy()["count"][0] == 0
    one.close()
    two.close()


def test_a_reset_is_a_new_start(runtime: Runtime) -> None:
    learner, found = learner_of(runtime, *HEADS), []
    for _ in range(2):
        for _ in range(5):
            learner.step()
        learner.drain()
        found.append(contents(learner))
        learner.reset(CASE.seed)
        assert learner.return_scale() == learner.config.loss.reward_scale
        fill(learner, chain(transitions(CASE)))
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []
    learner.close()


def test_labels_of_the_heads_stay_raw(runtime: Runtime) -> None:
    """Selectivity and risk are told what the return was before popart, bit for bit, and the ring keeps the raw reward."""
    found = []
    for settings in ((), ("popart.enabled=true", "popart.min_count=64", "popart.max_change=1")):
        learner = learner_of(runtime, "risk.enabled=true", "replay.alpha=0", *settings)
        for _ in range(4):
            learner.step()
        learner.drain()
        found.append((learner.batch.ret.to_numpy(), learner.replay.rows.to_numpy()["reward"]))
        risk = next(c for c in learner.graph.children if c.name == "post_aux.risk")
        op: Any = risk.ops[0]
        assert op.fields["ret"] is learner.batch.ret
        learner.close()
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_loss_probe_asks_in_the_unit_of_now(runtime: Runtime) -> None:
    learner = learner_of(runtime, *ON, "popart.max_change=1", "loss.reward_scale=0.5")
    probe = LossProbe(runtime, learner, 32)
    probe.draw(3)
    raw = probe.raw.copy()
    for _ in range(8):
        learner.step()
    learner.drain()
    probe.measure(learner.adam.theta.to_numpy(), learner.adam.target.to_numpy())
    np.testing.assert_allclose(probe.batch.ret.to_numpy(), raw / deviation(learner), rtol=1e-5)
    learner.close()


def test_scaled_tensors_must_exist() -> None:
    from foxhunt_rt.dqn import ParameterGroup, Tensor

    with pytest.raises(LayoutError, match="output_scaled names bias: its tensors are weight"):
        ParameterGroup("a", (Tensor("weight", (3, 1), True, 1.0),), 1.0, 1.0, ("bias",))


def test_slots_of_the_state_are_those_of_the_kernel() -> None:
    assert abi.dtype("popart_state").names == ("sigma_even", "sigma_odd") and PopArt.metrics == (
        "popart_sigma",
        "popart_scale",
    )
