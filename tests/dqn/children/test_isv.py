"""isv: the vector against what the records say and float64, the rows that hold it, and what acts by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn import Agent, CheckpointError
from foxhunt_rt.dqn.children.isv import COMPONENTS, Isv
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.learner_state import check_state, read_state
from foxhunt_rt.replay import Replay

from .. import feature_harness as harness
from .. import oracle
from ..agent_harness import CONFIG, ENVIRONMENTS, STATE, World
from ..feature_harness import CASE
from ..test_whole_step import Taken, chain, check_gradient, settings_of, transitions

ON = ("isv.enabled=true",)
COLUMNS = len(COMPONENTS)


def vector(learner: Learner) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = harness.extension(learner, Isv).vector.to_numpy()
    return found


def entropy(learner: Learner, theta: dict[str, Any]) -> float:
    """Mean entropy of the distributions of the actions taken, in float64 from the parameters before the step."""
    batch = learner.batch
    settings = oracle.Settings(CASE.branches, CASE.atoms, 0.0, 1.0, 0.0, 0.0, 0.0)
    state = batch.state.to_numpy()[:, : learner.layout.state_dim].astype(np.float64)
    taken = oracle.choices(batch.action.to_numpy(), CASE.branches)
    wide = {name: t.astype(np.float64) for name, t in theta.items()}
    values = []
    for b, logits in enumerate(oracle.forward(wide, state, settings, np)):
        x = logits[np.arange(len(taken)), taken[:, b]]
        p = np.exp(x - x.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        values.append(-(p * np.log(p)).sum(-1))
    return float(np.mean(values) / np.log(CASE.atoms))


def test_every_component_is_what_the_record_and_float64_say(runtime: Runtime) -> None:
    learner = harness.learner(runtime, (*ON, "loss.reward_scale=0.3", "optim.max_grad_norm=0.7"))
    config, rows, total, peak = (
        learner.config,
        chain(transitions(CASE)),
        np.zeros(CASE.environments),
        np.zeros(CASE.environments),
    )
    for at in range(0, len(rows.action), CASE.environments):
        part = slice(at, at + CASE.environments)
        total += rows.reward[part]
        peak = np.maximum(peak, total)
        over = rows.terminated[part] | rows.truncated[part]
        total[over] = peak[over] = 0.0
    drawdown = (peak - total)[~over].mean() * config.loss.reward_scale
    most = max(abs(config.loss.v_min), abs(config.loss.v_max))
    width = (config.loss.v_max - config.loss.v_min) / (CASE.atoms - 1)
    assert not vector(learner).any()
    for step in range(12):  # the horizon is 10
        theta = learner.params()
        learner.step()
        record = learner.drain()[-1]
        expected = [record["atom_use"], entropy(learner, theta), np.log1p(record["td_error"] / width) / np.log(CASE.atoms),
                    record["grad_norm"] / (record["grad_norm"] + 0.7), drawdown / (drawdown + most),
                    min(step + 1, config.horizon) / config.horizon]  # fmt: skip
        np.testing.assert_allclose(vector(learner), expected, rtol=2e-5)
        assert [record[f"isv_{name}"] for name in COMPONENTS] == vector(learner).tolist()
        assert (vector(learner) > 0.0).all() and (vector(learner) <= 1.0).all()
    learner.close()


def test_gradient_and_bits_of_the_step(runtime: Runtime) -> None:
    """The whole step's oracle on states that end with the vector, zeros before the first step; the same bits in every mode."""
    learner = harness.learner(runtime, ON)
    before = {name: buffer.to_numpy() for name, buffer in learner.persistent().items()}
    before["priority"] = learner.replay.priority.to_numpy()
    learner.step()
    taken = Taken(CASE, learner, chain(transitions(CASE)), before, learner.drain()[-1])
    batch, layout = learner.batch, learner.layout
    assert layout.state_dim == CASE.state_dim + COLUMNS
    state, after = (b.to_numpy()[:, : layout.state_dim].astype(np.float64) for b in (batch.state, batch.next_state))
    drawn = batch.priority.to_numpy().astype(np.float64)
    weight = (drawn.min() / drawn) ** learner.config.replay.beta_start
    rows = oracle.Batch(state, after, batch.action.to_numpy(), batch.ret.to_numpy().astype(np.float64),
                        batch.discount.to_numpy().astype(np.float64), weight)  # fmt: skip
    settings = settings_of(taken)
    settings = oracle.Settings(settings.branches, settings.atoms, settings.v_min, settings.v_max,
                               float(np.float32(learner.config.alpha_c51(0))), settings.smoothing, settings.budget)  # fmt: skip
    expected = oracle.loss(layout.unpack(before["theta"]), layout.unpack(before["target"]), rows,
                           learner.ddqn.next_action.to_numpy(), settings)  # fmt: skip
    check_gradient(taken, expected, learner.grad.grad.to_numpy())
    result = learner.graph.verify(steps=3)
    assert result.bitwise_equal, str(result)
    learner.close()


def test_off_it_adds_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    off, on = harness.footprint(runtime, ()), harness.footprint(runtime, ON)
    assert on.nodes == off.nodes + 2 and on.children - off.children == {"ddqn.entropy", "adam.isv"}
    assert on.bytes > off.bytes and on.modules > off.modules


def agent(runtime: Runtime, *settings: str) -> Agent:
    return Agent(STATE, [3, 2], CONFIG.with_set([*ON, *settings]), runtime, ENVIRONMENTS)


def test_rows_hold_the_vector_of_the_step_at_collection(runtime: Runtime) -> None:
    """And s' that of the next collection, of its own where the episode ended; actions come from states that end with it."""
    made, world, held = agent(runtime), World(), []
    ended = []
    for _ in range(40):
        now = vector(made.learner)
        held.append(now)
        states = np.pad(world.state, ((0, 0), (0, COLUMNS)))
        states[:, STATE:] = now
        actions = made.act(world.state, epsilon=0.0)
        shown = made.actor._state.to_numpy()
        np.testing.assert_array_equal(shown[:, : STATE + COLUMNS], states)
        assert not shown[:, STATE + COLUMNS :].any()
        q = made.values(world.state)
        np.testing.assert_array_equal(made.actions(np.stack([q[:, :3].argmax(1), q[:, 3:].argmax(1)], 1)), actions)
        transition = world.transition(actions)
        ended.append(transition["terminated"] | transition["truncated"])
        made.observe(**transition)
        if made.ready:
            made.step()
    made.drain()
    assert len({v.tobytes() for v in held}) > 20, "the vector moves"
    stored = made.replay.state.to_numpy()[: 40 * ENVIRONMENTS].reshape(40, ENVIRONMENTS, -1)  # type: ignore[union-attr]
    np.testing.assert_array_equal(stored[..., STATE:], np.repeat(np.array(held)[:, None], ENVIRONMENTS, 1))
    assert made.config.replay.n_step == 2
    batch, checked = made.learner.batch, set()
    state, after = batch.state.to_numpy(), batch.next_state.to_numpy()
    for k, row in enumerate(batch.index.to_numpy()):
        t, e = divmod(int(row), ENVIRONMENTS)
        last = t if ended[t][e] else t + 1
        over = bool(ended[last][e])
        np.testing.assert_array_equal(state[k, STATE : STATE + COLUMNS], held[t])
        np.testing.assert_array_equal(after[k, STATE : STATE + COLUMNS], held[last if over else last + 1])
        checked.add(over)
    assert checked == {True, False}
    made.close()


def test_a_snapshot_and_a_checkpoint_act_by_the_vector_they_were_taken_with(runtime: Runtime, tmp_path: Any) -> None:
    made, world = agent(runtime), World()
    for _ in range(15):
        made.observe(**world.transition(made.act(world.state)))
    for _ in range(3):
        made.step()
    states = np.random.default_rng(2).normal(size=(7, STATE)).astype(np.float32)
    expected = made.values(states)
    snapshot = made.snapshot()
    made.save(tmp_path / "agent.safetensors")
    for _ in range(4):
        made.step()
    assert not np.array_equal(made.values(states), expected)
    loaded = Agent.from_checkpoint(tmp_path / "agent.safetensors", runtime)
    assert loaded.state_dim == STATE
    for other in (snapshot, loaded):
        np.testing.assert_array_equal(other.values(states), expected)
        other.close()
    made.close()


def test_the_vector_matters_to_what_is_acted_by(runtime: Runtime) -> None:
    made, states = agent(runtime), np.ones((2, STATE), np.float32)
    before = made.values(states)
    harness.extension(made.learner, Isv).vector.copy_from(np.full(COLUMNS, 0.5, np.float32))
    assert not np.array_equal(made.values(states), before)
    made.close()


def test_resume_and_reset(runtime: Runtime) -> None:
    harness.check_resume(runtime, ON)
    harness.check_reset(runtime, ON)


def test_a_checkpoint_or_a_ring_without_it_is_refused(runtime: Runtime) -> None:
    one, other = harness.learner(runtime, ON), harness.learner(runtime, (), rows=False)
    with pytest.raises(CheckpointError, match="state_dim is"):
        check_state(other, *read_state(one))
    with pytest.raises(ValueError, match="make both with one state_dim"):
        Learner(
            runtime, one.config, CASE.state_dim, CASE.branches, replay=Replay(runtime, 512, CASE.state_dim + COLUMNS)
        )
    one.close()
    other.close()


def last(runtime: Runtime, *settings: str, steps: int = 8) -> Any:
    return harness.run(runtime, (*ON, *settings), steps)[-1]


def test_components_end_where_their_range_does(runtime: Runtime) -> None:
    """What moves each, and where to: tests/dqn/plants.py."""
    assert last(runtime, "optim.max_grad_norm=1e-4")["isv_grad_norm"] > 0.9
    assert last(runtime, "optim.max_grad_norm=1e9")["isv_grad_norm"] < 1e-3
    assert last(runtime, "loss.reward_scale=100")["isv_drawdown"] > 0.9
    phases = harness.run(runtime, (*ON, "optim.horizon=5"), 8)["isv_phase"]
    np.testing.assert_allclose(phases, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0], rtol=1e-6)


def test_a_component_that_is_not_finite_keeps_its_value(runtime: Runtime) -> None:
    learner = harness.learner(runtime, ON)
    for _ in range(3):
        learner.step()
    learner.drain()
    before = vector(learner)
    theta = learner.adam.theta.to_numpy()  # type: ignore[attr-defined]
    theta[learner.layout.layers[-1].bias.offset] = np.nan
    learner.adam.theta.copy_from(theta)  # type: ignore[attr-defined]

    def step() -> None:
        learner.step()
        learner.drain()

    with pytest.raises(GuardFault):
        step()
    after = vector(learner)
    assert np.isfinite(after).all()
    np.testing.assert_array_equal(after[[1, 3]], before[[1, 3]])
    learner.close()
