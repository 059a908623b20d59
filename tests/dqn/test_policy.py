"""Acting: values against NumPy in float64, then the choice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt.dqn.layout import NetworkLayout
from foxhunt_rt.dqn.policy import Policy, PolicyError
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import decode_actions

V_MIN, V_MAX = -3.0, 5.0


def make(
    runtime: Runtime, branches: tuple[int, ...], atoms: int, rows: int, seed: int = 11, guard: Any = None
) -> Policy:
    control = np.zeros(1, abi.dtype("control_block"))
    control["seed"], control["v_min"], control["v_max"] = seed, V_MIN, V_MAX
    layout = NetworkLayout(5, (6,), branches, atoms)
    return Policy(runtime, layout, runtime.array(control, "control"), rows, guard=guard)


def expected_values(logits: npt.NDArray[Any], branches: tuple[int, ...], atoms: int) -> npt.NDArray[np.float64]:
    """sum_j z_j softmax_j(V + A - mean A) of every choice, branches side by side."""
    x = logits[:, : (1 + sum(branches)) * atoms].astype(np.float64).reshape(len(logits), -1, atoms)
    value, advantage = x[:, :1], x[:, 1:]
    z, out, first = np.linspace(V_MIN, V_MAX, atoms), [], 0
    for n in branches:
        a = advantage[:, first : first + n]
        combined = value + a - a.mean(axis=1, keepdims=True)
        p = np.exp(combined - combined.max(axis=2, keepdims=True))
        out.append((p * z).sum(axis=2) / p.sum(axis=2))
        first += n
    return np.concatenate(out, axis=1)


def select(policy: Policy, logits: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The choice alone, from given head outputs: `record_act` without its forward pass."""
    layout, rows = policy.layout, len(logits)
    padded = np.zeros((rows, layout.head_padded), np.float32)
    padded[:, : logits.shape[1]] = logits
    policy.workspace.logits[:rows].copy_from(padded)
    action = policy.runtime.zeros(rows, np.int32, "action")
    policy._record_select(policy.runtime.ungraphed("test"), rows, action)  # type: ignore[arg-type]
    return action.to_numpy()


@pytest.mark.parametrize(("branches", "atoms", "rows"), [((2,), 51, 1), ((5, 3, 3, 3), 51, 65), ((1, 7), 2, 3), ((4, 2), 256, 7),
                                                         ((255,), 33, 2), ((2,) * 8, 17, 9)])  # fmt: skip
def test_values_and_the_greedy_action(runtime: Runtime, branches: tuple[int, ...], atoms: int, rows: int) -> None:
    policy = make(runtime, branches, atoms, rows)
    logits = np.random.default_rng(atoms).normal(scale=2.0, size=(rows, (1 + sum(branches)) * atoms)).astype(np.float32)
    action = select(policy, logits)
    expected, got = expected_values(logits, branches, atoms), policy.q.to_numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    first = 0
    for b, n in enumerate(branches):
        chosen = decode_actions(action, branches)[:, b]
        np.testing.assert_array_equal(chosen, got[:, first : first + n].argmax(axis=1))
        first += n


def test_ties_go_to_the_lowest(runtime: Runtime) -> None:
    policy = make(runtime, (4, 3), 5, 2)
    assert (select(policy, np.zeros((2, 40), np.float32)) == 0).all()
    logits = np.zeros((2, 8, 5), np.float32)
    logits[:, [2, 4], 4] = 3.0  # choices 1 and 3 of the first branch, equal and best
    assert (decode_actions(select(policy, logits.reshape(2, 40)), (4, 3))[:, 0] == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_a_value_that_is_not_finite_is_no_action_and_a_fault(runtime: Runtime, bad: float, epsilon: float) -> None:
    guard = runtime.empty(1, abi.dtype("guard_block"), "guard")
    clear = np.array([(2**64 - 1,)], abi.dtype("guard_block"))
    guard.copy_from(clear)
    policy = make(runtime, (2, 3), 5, 4, guard=guard)
    policy.set_exploration(epsilon)
    logits = np.zeros((4, 30), np.float32)
    assert (select(policy, logits) >= 0).all() and (guard.to_numpy() == clear).all()
    # A: one advantage poisons its whole branch through the mean; infinity gives inf - inf or exp(inf) / inf
    logits[2, 3 * 5 + 1] = bad
    action = select(policy, logits)
    assert action[2] == -1 and (np.delete(action, 2) >= 0).all()
    key = int(guard.to_numpy()["key"][0])
    assert key >> 60 == abi.constant("GUARD_FORWARD") and key >> 56 & 15 == abi.constant("CHECK_NON_FINITE")
    assert key >> 32 & 0xFFFFFF == 2


def chi2_limit(degrees: int) -> float:
    """99.9 % quantile (Wilson & Hilferty 1931)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3


def test_epsilon_is_a_chance_in_each_branch_by_itself(runtime: Runtime) -> None:
    branches, rows, epsilon = (5, 3), 2000, 0.4
    policy = make(runtime, branches, 3, rows)
    policy.set_exploration(epsilon)
    logits = np.zeros((rows, 27), np.float32)
    logits[:, 3 * 3 + 2] = 4.0  # choice 2 of the first branch is best; of the second, by ties, choice 0
    counts = np.zeros(branches)
    for _ in range(5):
        first, second = decode_actions(select(policy, logits), branches).T
        np.add.at(counts, (first, second), 1)
    one = np.full(5, epsilon / 5) + (1 - epsilon) * (np.arange(5) == 2)
    two = np.full(3, epsilon / 3) + (1 - epsilon) * (np.arange(3) == 0)
    expected = 5 * rows * np.outer(one, two)  # the product: independent
    assert ((counts - expected) ** 2 / expected).sum() < chi2_limit(14)


def test_boltzmann(runtime: Runtime) -> None:
    rows, temperature = 5000, 0.7
    policy = make(runtime, (4,), 3, rows)
    policy.set_exploration(0.0, temperature)
    logits = np.tile(np.random.default_rng(0).normal(size=15).astype(np.float32), (rows, 1))
    q = expected_values(logits[:1], (4,), 3)[0]
    counts = np.bincount(select(policy, logits), minlength=4)
    p = np.exp(q / temperature) / np.exp(q / temperature).sum()
    assert ((counts - rows * p) ** 2 / (rows * p)).sum() < chi2_limit(3)
    policy.set_exploration(0.0, 1e-30)  # cold: the best
    assert (select(policy, logits) == q.argmax()).all()


def test_rows_steps_and_seeds_draw_differently_and_reset_repeats(runtime: Runtime) -> None:
    branches, logits = (255,), np.zeros((64, 256 * 2), np.float32)
    policy, other = make(runtime, branches, 2, 64), make(runtime, branches, 2, 64, seed=12)
    for p in (policy, other):
        p.set_exploration(1.0)
    first, second = select(policy, logits), select(policy, logits)
    assert len(set(first.tolist())) > 40
    assert (first == second).mean() < 0.1 and (first == select(other, logits)).mean() < 0.1
    policy.reset()
    np.testing.assert_array_equal(select(policy, logits), first)


def test_a_replayed_graph_follows_states_parameters_and_exploration(runtime: Runtime) -> None:
    branches, atoms, rows = (3, 2), 7, 6
    policy = make(runtime, branches, atoms, rows)
    layout = policy.layout
    random = np.random.default_rng(3)
    theta = runtime.zeros(layout.size, np.float32, "theta")
    state = runtime.zeros((rows, layout.state_padded), np.float32, "state")
    action = runtime.zeros(rows, np.int32, "action")
    plan = runtime.plan("act")
    with plan.child("act", reads=policy.reads(theta, state), writes=policy.writes(action)) as child:
        policy.record_act(child, theta, state, action)
    graph = plan.build()
    for seed in range(3):
        tensors = layout.init(seed)
        theta.copy_from(layout.pack(tensors))
        x = np.zeros((rows, layout.state_padded), np.float32)
        x[:, :5] = random.normal(size=(rows, 5))
        state.copy_from(x)
        graph.launch()
        hidden = np.maximum(x[:, :5].astype(np.float64) @ tensors["trunk.0.weight"] + tensors["trunk.0.bias"], 0)
        heads = ["value", "branch.0", "branch.1"]
        logits = np.concatenate([hidden @ tensors[f"{h}.weight"] + tensors[f"{h}.bias"] for h in heads], axis=1)
        np.testing.assert_allclose(policy.q.to_numpy(), expected_values(logits, branches, atoms), rtol=1e-5, atol=1e-5)
    policy.set_exploration(1.0)
    drawn = []
    for _ in range(30):
        graph.launch()
        drawn.append(action.to_numpy())
    assert set(np.concatenate(drawn).tolist()) == set(range(6))
    assert graph.verify(steps=2).bitwise_equal
    graph.close()


def test_wrong_use_is_refused(runtime: Runtime) -> None:
    policy = make(runtime, (2,), 3, 4)
    for epsilon, temperature in (
        (-0.1, 0.0),
        (1.1, 0.0),
        (math.nan, 0.0),
        (0.0, -1.0),
        (0.0, math.inf),
        (0.0, math.nan),
    ):
        with pytest.raises(PolicyError):
            policy.set_exploration(epsilon, temperature)
    for branches, atoms in (((2,) * 9, 3), ((256,), 3), ((2,), 257), ((2,), 1)):
        with pytest.raises(PolicyError, match="too large"):
            make(runtime, branches, atoms, 1)
    plan = runtime.plan("act")
    theta = runtime.zeros(policy.layout.size, np.float32, "theta")
    state, action = runtime.zeros((5, 32), np.float32, "state"), runtime.zeros(5, np.int32, "action")
    with pytest.raises(PolicyError, match="at most the policy's"):
        with plan.child("act", reads=policy.reads(theta, state), writes=policy.writes(action)) as child:
            policy.record_act(child, theta, state, action)
