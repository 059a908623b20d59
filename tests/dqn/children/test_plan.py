"""plan: the split against NumPy's Philox, loss against float64 autodiff, skill and readiness in closed form, no row both ways."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn import Agent, Learner
from foxhunt_rt.dqn.children.plan import Conviction, Plan
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Replay
from tests.dqn import oracle
from tests.dqn.agent_harness import CONFIG, ENVIRONMENTS, STATE, World, fill
from tests.dqn.children.test_horizons import expected_labels
from tests.dqn.children.test_post_aux import learner_of, trunk
from tests.dqn.feature_harness import check_reset, check_resume, extension, footprint, learner
from tests.dqn.test_whole_step import CASES, Case, chain, transitions
from tests.replay.oracle import philox4x32

ON = ("plan.enabled=true", "plan.length=3", "plan.block_bars=8", "plan.holdout=0.4")
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def held_out(seed: int, key: int, share: float) -> bool:
    """Whether the block, or the episode, of a number is held out: a uniform number of 24 bits."""
    word = philox4x32((key & 0xFFFFFFFF, key >> 32, abi.constant("RNG_PLAN"), 0), (seed & 0xFFFFFFFF, seed >> 32))[0]
    return (word >> 8) / 2**24 < share


def columns(of: Learner) -> dict[str, F64]:
    table = extension(of, Plan).rows.to_numpy().astype(np.float64)
    names = ("loss", "probability", "label", "trained", "error", "held_label", "held", "conviction", "gradient")
    return {name: table[:, i] for i, name in enumerate(names)}


@jax.jit
def loss(weight: Any, bias: Any, x: Any, label: Any, trained: Any) -> Any:
    each = optax.sigmoid_binary_cross_entropy((x @ weight)[:, 0] + bias[0], label)
    return jnp.where(trained, each, 0.0).mean()


@pytest.mark.parametrize("case", [CASES[0], CASES[7]], ids=lambda case: case.name)
def test_split_labels_and_gradients(runtime: Runtime, case: Case) -> None:
    made = learner_of(runtime, case, *ON)
    for _ in range(3):
        made.step()
    made.drain()
    theta = made.layout.unpack(made.adam.theta.to_numpy())
    made.step()
    record = made.drain()[-1]
    rows, index = chain(transitions(case)), made.batch.index.to_numpy()
    total, valid = (a[:, 0] for a in expected_labels(rows, index, (3,), 1.0, len(rows.action)))
    episode = made.replay.rows.to_numpy()["episode"][index]
    kind = np.array([held_out(case.seed, int(e), float(np.float32(0.4))) for e in episode])
    held, trained, label = valid & kind, valid & ~kind, (total > 0).astype(float)
    found = columns(made)
    np.testing.assert_array_equal(found["held"] == 1.0, held)
    np.testing.assert_array_equal(found["trained"] == 1.0, trained)
    np.testing.assert_array_equal(found["label"], np.where(trained, label, 0.0))
    np.testing.assert_array_equal(found["held_label"], np.where(held, label, 0.0))
    assert held.sum() > 3 and trained.sum() > 3 and not valid.all(), "the case has all kinds"

    x = trunk(theta, made.layout, made.batch.state.to_numpy()[:, : case.state_dim])
    weight, bias = (theta[f"plan.{part}"].astype(np.float64) for part in ("weight", "bias"))
    value, gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weight, bias, x, label, trained)
    p = 1.0 / (1.0 + np.exp(-(x @ weight)[:, 0] - bias[0]))
    size = (np.where(trained, p + label, 0.0) / case.batch)[:, None]
    grad = made.layout.unpack(made.grad.grad.to_numpy())
    for part, ref, terms in zip(("weight", "bias"), gradient, (np.abs(x).T @ size, size.sum(0)), strict=True):
        print(oracle.check_gradient(f"plan.{part}", grad[f"plan.{part}"], ref, terms))
    np.testing.assert_allclose(found["probability"], p, rtol=1e-5)
    np.testing.assert_allclose(found["error"], np.where(held, (p - label) ** 2, 0.0), rtol=1e-5)
    assert record["plan_loss"] == pytest.approx(float(value) * case.batch / trained.sum(), rel=1e-4)
    assert record["plan_probability"] == pytest.approx(p.mean(), rel=1e-5)
    assert record["plan_rate"] == pytest.approx(label[trained].mean(), rel=1e-5)
    assert record["plan_held_out"] == pytest.approx(held.mean(), rel=1e-5)
    result = made.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    made.close()


def test_autodiff_is_the_finite_difference() -> None:
    """Of the oracle itself, once."""
    random = np.random.default_rng(0)
    weight, bias, x = random.normal(size=(5, 1)), random.normal(size=1), random.normal(size=(9, 5))
    label, trained = (random.random(9) < 0.5).astype(float), random.random(9) < 0.6
    gradient = np.asarray(jax.jit(jax.grad(loss))(weight, bias, x, label, trained))
    for k in range(5):
        step = np.zeros_like(weight)
        step[k] = 1e-6
        slope = (loss(weight + step, bias, x, label, trained) - loss(weight - step, bias, x, label, trained)) / 2e-6
        assert gradient[k, 0] == pytest.approx(float(slope), rel=1e-6)


def test_no_bar_that_judges_is_ever_trained_on(runtime: Runtime) -> None:
    """Market mode, the same bars in two passes by other environments: what is held out depends on the bars alone, and no window
    that is trained on holds a bar whose return is in a window that judges."""
    bars, e = 600, 4
    config = Config().with_set(["network.hidden=5", "network.atoms=5", "replay.batch=256", "replay.n_step=1", "train.seed=9",
                                "replay.alpha=0", *ON])  # fmt: skip
    replay = Replay(runtime, 1 << 20, 4, mode="market", portfolio_dim=2)
    replay.set_feature_table(runtime.zeros((bars + 1, 2), np.float32, "features"))
    made = Learner(runtime, config, 4, (2,), replay=replay)
    random, staging, zeros = np.random.default_rng(0), replay.staging(e), np.zeros((e, 2), np.float32)
    for shift in (0, 77):  # the second pass is divided otherwise
        for t in range(bars // e):
            at = ((np.arange(e) * (bars // e) + t + shift) % bars).astype(np.int32)
            replay.insert_batch(staging, np.zeros(e, np.int32), random.normal(size=e).astype(np.float32),
                                at == bars - 1, np.full(e, t == bars // e - 1) & (at != bars - 1), feature_row=at,
                                next_feature_row=at + 1, portfolio=zeros, next_portfolio=zeros)  # fmt: skip
    judged, trained = set[int](), set[int]()
    both = 0
    for _ in range(30):
        made.step()
        made.drain()
        found, index = columns(made), made.batch.index.to_numpy()
        first = replay.rows.to_numpy()["feature_row"][index]
        for row, held, learned in zip(first, found["held"], found["trained"], strict=True):
            window = range(int(row) + 1, int(row) + 4)  # the bars whose returns are in the label
            assert not (held and learned)
            (judged if held else trained if learned else set()).update(window)
            both += not held and not learned
    assert not judged & trained and both > 50
    assert 0.2 * bars < len(judged) < 0.6 * bars and len(trained) > 0.3 * bars
    for bar in judged:
        assert held_out(9, bar // 8, float(np.float32(0.4)))
    made.close()


def test_skill_and_readiness_are_those_of_the_held_out_rows(runtime: Runtime) -> None:
    made = learner(runtime, (*ON, "plan.rate=0.2", "plan.ready_steps=3", "plan.lr_factor=30"))
    error = label = held = 0.0
    streak, seen = 0, set[bool]()
    for _ in range(25):
        made.step()
        record = made.drain()[-1]
        found, rate = columns(made), float(np.float32(0.2))
        error += rate * (found["error"].mean() - error)
        label += rate * (found["held_label"].mean() - label)
        held += rate * (found["held"].mean() - held)
        base = label / held
        skill = 1.0 - error / held / (base * (1.0 - base))
        streak = min(3, streak + 1) if record["plan_skill"] > 0 else 0
        assert record["plan_skill"] == pytest.approx(skill, abs=2e-5)
        assert record["plan_readiness"] == (record["plan_skill"] if streak == 3 else 0.0)
        seen.add(record["plan_readiness"] > 0)
    state = extension(made, Plan).state.to_numpy()[0]
    assert state["streak"] == streak and state["readiness"] == np.float32(record["plan_readiness"])
    made.close()


def update(
    runtime: Runtime, state: npt.NDArray[Any], probability: float, rate: float, held: float, m: int = 3
) -> npt.NDArray[Any]:
    """plan_update after a batch in which `held` of the rows are held out, `rate` of these have label 1, and the head says
    `probability` of each."""
    means = np.zeros(abi.constant("PLAN_MEANS"), np.float32)
    means[abi.constant("PLAN_HELD")] = held
    means[abi.constant("PLAN_HELD_LABEL")] = held * rate
    means[abi.constant("PLAN_ERROR")] = held * (rate * (1 - probability) ** 2 + (1 - rate) * probability**2)
    buffer, given = runtime.array(state, "state"), runtime.array(means, "means")
    metrics = runtime.zeros(7, np.float32, "metrics")
    runtime.ungraphed("test").launch("plan_update", (1,), (32,), dict(means=given, state=buffer, metrics=metrics, rate=0.1,
                                                                      ready_steps=m))  # fmt: skip
    found = buffer.to_numpy()
    for each in (buffer, given, metrics):
        each.free()
    return found


def test_readiness_is_earned_step_by_step_and_lost_at_once(runtime: Runtime) -> None:
    """Closed forms: who knows the base rate alone has skill 0, who is surer than right less than that."""
    new = np.zeros(1, abi.dtype("plan_state"))
    constant = new
    for _ in range(10):
        constant = update(runtime, constant, 0.25, 0.25, 0.5)
    assert constant["skill"][0] == pytest.approx(0.0, abs=1e-6) and constant["readiness"][0] == 0.0
    assert update(runtime, new, 0.1, 0.5, 0.5)["skill"][0] == pytest.approx(-0.64, rel=1e-5)  # 1 - (0.25 + 0.16) / 0.25
    certain = new.copy()
    certain["error"], certain["label"], certain["held"] = 0.01, 0.25, 0.5  # base rate 1/2, error 0.02: skill 0.92
    steps = []
    for _ in range(5):
        certain = update(runtime, certain, 0.5, 0.5, 0.0)
        steps.append(float(certain["readiness"][0]))
    assert steps == [0.0] * 5, "a step without evidence is none"
    certain["error"], certain["label"], certain["held"] = 0.01, 0.25, 0.5
    steps = []
    for _ in range(4):
        certain = update(runtime, certain, 0.5, 0.5, 0.01)
        steps.append(float(certain["readiness"][0]))
    assert steps[:2] == [0.0, 0.0] and steps[2] > 0.85 and steps[3] > 0.8
    lost = update(runtime, certain, 1.0, 0.0, 1.0)
    assert lost["skill"][0] < 0.0 == lost["readiness"][0] and lost["streak"][0] == 0
    broken = update(runtime, certain, float("nan"), 0.5, 0.5)
    assert broken["readiness"][0] == 0.0 == broken["streak"][0] and broken["error"][0] == certain["error"][0]
    always = new
    for _ in range(5):
        always = update(runtime, always, 0.999, 1.0, 0.5)  # every label the same: there is nothing to be better at
    assert always["skill"][0] == 0.0 == always["readiness"][0]


def signals(runtime: Runtime, *more: str, noise: float = 0.0) -> npt.NDArray[Any]:
    """Records of a learner whose state's first entry is the next reward but for noise."""
    config = Config().with_set(["network.hidden=16", "network.atoms=5", "replay.capacity=8192", "replay.batch=128",
                                "optim.lr=5e-3", "optim.lr_min=5e-3", "replay.alpha=0", "replay.n_step=1", "plan.enabled=true",
                                "plan.length=1", "plan.rate=0.05", "plan.ready_steps=40", "plan.lr_factor=10",
                                "plan.holdout=0.3", *more])  # fmt: skip
    made = Learner(runtime, config, 2, (2,))
    random, staging = np.random.default_rng(0), made.replay.staging(64)
    signal = random.normal(size=(97, 64)).astype(np.float32)
    for t in range(96):
        state, following = (np.stack([s, np.ones(64, np.float32)], 1) for s in (signal[t], signal[t + 1]))
        reward = (signal[t] + noise * random.normal(size=64)).astype(np.float32)
        made.replay.insert_batch(staging, np.zeros(64, np.int32), reward, np.full(64, t % 4 == 3), np.zeros(64, bool),
                                 state=state, next_state=following)  # fmt: skip
    for _ in range(250):
        made.step()
    records = made.drain()
    made.close()
    return records


def test_a_head_that_knows_becomes_ready_and_one_that_cannot_never(runtime: Runtime) -> None:
    """Each metric moves as its page says, by its cause."""
    records = signals(runtime)
    assert not records["plan_readiness"][:39].any(), "M steps at least"
    assert records["plan_readiness"][-1] == records["plan_skill"][-1] > 0.6
    assert records["plan_loss"][-1] < 0.4 < records["plan_loss"][0]
    assert records["plan_rate"].mean() == pytest.approx(0.5, abs=0.05)
    assert records["plan_held_out"].mean() == pytest.approx(0.3, abs=0.06)
    chance = signals(runtime, noise=1e4)
    assert not (chance["plan_readiness"] >= 0.1).any() and chance["plan_skill"][-50:].mean() < 0.02
    assert chance["plan_loss"][-50:].mean() > 0.6
    fewer = signals(runtime, "plan.holdout=0.1")
    assert fewer["plan_held_out"].mean() < 0.2


def test_a_head_that_is_not_finite_skips_loses_its_readiness_and_stops_nobody(runtime: Runtime) -> None:
    made = learner(runtime, ON)
    e = extension(made, Plan)
    earned = e.state.to_numpy()
    earned["error"], earned["label"], earned["held"], earned["streak"], earned["readiness"] = 0.01, 0.2, 0.4, 500, 0.9
    e.state.copy_from(earned)
    made.step()
    assert made.drain()[-1]["plan_readiness"] > 0.5
    spoiled = made.params()
    spoiled["plan.bias"][0] = np.nan
    made.load_params(spoiled)
    for _ in range(2):
        made.step()
    record = made.drain()[-1]
    assert record["plan_readiness"] == 0.0 and np.isfinite(record["loss"])
    assert [int(s["skipped"]) for s in made.adam.stats.to_numpy()] == [0, 2]
    made.close()


@pytest.mark.parametrize("rows", [1, 5])
def test_conviction_is_exactly_one_until_it_is_earned(runtime: Runtime, rows: int) -> None:
    """Known failure K15: an untrained sigmoid scaled every reward."""
    made = learner(runtime, ON, rows=False)
    layout, width = made.layout, made.layout.layers[-1].k_padded
    random = np.random.default_rng(1)
    hidden = np.zeros((rows, width), np.float32)
    hidden[:, : layout.hidden[-1]] = random.normal(size=(rows, layout.hidden[-1]))
    x, state = runtime.array(hidden, "x"), runtime.zeros(1, abi.dtype("plan_state"), "state")
    gate = Conviction(runtime, layout, made.config.plan, state, rows, "conviction")
    plan = runtime.plan("conviction")
    with plan.child("conviction", reads=[x, made.adam.theta, state], writes=[gate.value]) as child:
        gate.record(child, x, made.adam.theta)
    step = plan.build()

    def at(readiness: float) -> F64:
        block = np.zeros(1, abi.dtype("plan_state"))
        block["readiness"] = readiness
        state.copy_from(block)
        step.launch()
        return gate.value.to_numpy().astype(np.float64)

    params = made.params()
    weight, bias = (params[f"plan.{part}"].astype(np.float64) for part in ("weight", "bias"))
    expected = 1.0 / (1.0 + np.exp(-(hidden[:, : layout.hidden[-1]] @ weight)[:, 0] - bias[0]))
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    for readiness in (0.0, below, float("nan"), -1.0):
        assert (at(readiness) == 1.0).all()
    for readiness in (0.5, 1.0):
        np.testing.assert_allclose(at(readiness), expected, rtol=1e-6)
    params["plan.bias"][0] = np.nan
    made.load_params(params)
    assert (at(1.0) == 1.0).all()
    step.close()
    made.close()


def test_off_adds_nothing_and_on_leaves_the_network_alone(runtime: Runtime) -> None:
    core, on = footprint(runtime, ()), footprint(runtime, ("plan.enabled=true",))
    assert on.children - core.children == {"post_aux.plan"} and on.nodes == core.nodes + 4
    found = []
    for settings in ((), ON):
        made = learner(runtime, settings)
        for _ in range(4):
            made.step()
        made.drain()
        found.append(made.adam.theta.to_numpy()[: made.layout.network_size].tobytes())
        made.close()
    assert found[0] == found[1]


def earned(of: Learner) -> None:
    state = extension(of, Plan).state.to_numpy()
    state["error"], state["label"], state["held"], state["streak"], state["readiness"] = 0.1, 0.2, 0.4, 2, 0.5
    extension(of, Plan).state.copy_from(state)


def test_resume_and_reset(runtime: Runtime) -> None:
    check_resume(runtime, (*ON, "plan.lr_factor=10", "plan.ready_steps=3"), prepare=earned)
    check_reset(runtime, (*ON, "plan.lr_factor=10", "plan.ready_steps=3"))
    made = learner(runtime, ON)
    earned(made)
    made.reset(1)
    assert not extension(made, Plan).state.to_numpy().tobytes().strip(b"\0"), "a fold begins without readiness"
    made.close()


def test_an_agent_has_both_heads_and_scales_nothing(runtime: Runtime) -> None:
    """Vector mode: labels from the rewards observed, an environment absent now and then; a readiness changes no return."""
    settings = CONFIG.with_set(["horizons.enabled=true", "horizons.lengths=1,4", "plan.enabled=true", "plan.length=2"])
    found = []
    for readiness in (0.0, 1.0):
        with Agent(STATE, [3], settings, runtime, environments=ENVIRONMENTS) as agent:
            state = np.zeros(1, abi.dtype("plan_state"))
            state["readiness"] = readiness
            extension(agent.learner, Plan).state.copy_from(state)
            fill(agent, World())
            agent.step()
            record = agent.learner.drain()[-1]
            assert record["plan_conviction"] == 1.0 and 0.0 < record["horizons_valid"] < 1.0
            assert record["plan_held_out"] >= 0.0 and np.isfinite([record["plan_loss"], record["horizons_loss"]]).all()
            found.append(agent.learner.batch.ret.to_numpy().tobytes())  # type: ignore[attr-defined]
    assert found[0] == found[1]


def test_sizes_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"plan\.block_bars = 10 is under plan\.length = 20; give at least that"):
        Config().with_set(["plan.block_bars=10"])
    with pytest.raises(ConfigError, match=r"train\.embargo = 19 .* 20"):
        Config().with_set(["plan.enabled=true", "train.embargo=19"])


def test_four_ways_give_the_same_bits(runtime: Runtime) -> None:
    made = learner(runtime, (*ON, "train.steps_per_launch=3"))
    earned(made)
    made.step()
    made.drain()
    result = made.graph.verify(steps=5)
    assert result.bitwise_equal and len(result.modes) == 4, str(result)
    planted_at = made.graph.verify(steps=2, plant="post_aux.plan")
    assert not planted_at.bitwise_equal and planted_at.child == "post_aux.plan"
    made.close()
