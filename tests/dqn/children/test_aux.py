"""aux: auxiliary losses against float64 autodiff."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.children import aux
from foxhunt_rt.dqn.children.aux import cql_launch
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.kernels import abi
from tests.dqn import oracle
from tests.dqn.oracle import check_gradient
from tests.dqn.test_whole_step import CASES, Case, chain, fill, transitions

SUPPORT = (-2.5, 4.0)


def cql(raw: Any, action: Any, shape: LossShape, z: Any) -> Any:
    """Kumar 2020, eq. 4 with the entropy regularizer: logsumexp_a Q - Q(a_data), per row and branch, (B, K)."""
    n = shape.atoms
    value, at, out = raw[:, None, :n], n, []
    for b, choices in enumerate(shape.branches):
        advantage = raw[:, at : at + choices * n].reshape(-1, choices, n)
        at += choices * n
        logits = value + advantage - advantage.mean(1, keepdims=True)
        q = (jax.nn.softmax(logits, axis=-1) * z).sum(-1)
        out.append(jax.nn.logsumexp(q, axis=-1) - q[jnp.arange(len(q)), action[:, b]])
    return jnp.stack(out, 1)


class Cql:
    """The kernel on logits of one's own."""

    def __init__(self, runtime: Runtime, shape: LossShape, weight: float) -> None:
        self.runtime, self.shape, self.weight = runtime, shape, weight
        step = np.zeros(1, abi.dtype("step_block"))
        step["v_min"], step["v_max"] = SUPPORT
        step["delta_z"] = (SUPPORT[1] - SUPPORT[0]) / (shape.atoms - 1)
        self.step = runtime.array(step, "step")

    def __call__(self, raw: npt.NDArray[np.float32], action: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Gradient (B, width) and rows (B, 2)."""
        shape, rt = self.shape, self.runtime
        padded = np.zeros((len(raw), shape.head_padded), np.float32)
        padded[:, : raw.shape[1]] = raw
        mixed = np.ravel_multi_index(tuple(action.T), shape.branches).astype(np.int32)
        part = rt.array(np.full_like(padded, np.nan), "part")
        rows = rt.zeros((len(raw), 2), np.float32, "rows")
        k, s, n = len(shape.branches), shape.actions, shape.atoms
        launch = cql_launch(shape)
        rt.ungraphed("test.cql").launch(launch.kernel, (len(raw),), (launch.threads,), dict(
            logits=rt.array(padded, "logits"), action=rt.array(mixed, "action"), step=self.step, part=part, rows=rows,
            branch_sizes=shape.packed_branches, weight=self.weight, B=len(raw), K=k, S=s, N=n, Np=shape.head_padded),
            shared=launch.shared)  # fmt: skip
        found = part.to_numpy()
        assert not found[:, raw.shape[1] :].any(), "pads are zero"
        return found[:, : raw.shape[1]], rows.to_numpy()


SHAPES = [LossShape(29, (5, 3, 3, 3), 51), LossShape(1, (2,), 2), LossShape(7, (1, 4), 33), LossShape(3, (9,), 256)]


def inputs(shape: LossShape, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    raw = random.normal(size=(shape.batch, (1 + shape.actions) * shape.atoms)).astype(np.float32)
    return raw, np.stack([random.integers(0, n, shape.batch) for n in shape.branches], 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cql_gradient_and_loss(runtime: Runtime, shape: LossShape) -> None:
    raw, action = inputs(shape, 1)
    weight = 0.7
    z = np.float64(np.float32(SUPPORT[0])) + np.arange(shape.atoms) * np.float64(
        np.float32((SUPPORT[1] - SUPPORT[0]) / (shape.atoms - 1)))  # fmt: skip

    def loss(x: Any) -> tuple[Any, Any]:
        each = weight * cql(x, action, shape, z).sum(1)
        return each.mean(), each

    reference, each = map(np.asarray, jax.jit(jax.grad(loss, has_aux=True))(raw.astype(np.float64)))
    found, rows = Cql(runtime, shape, weight)(raw, action)
    np.testing.assert_allclose(rows[:, 0], each, rtol=2e-5, atol=2e-6 * np.abs(z).max())
    # terms of an element: p (|z| + |Q|) times the two probabilities, over the branch's actions
    size = weight / shape.batch * 2.0 * np.abs(z).max() * 2.0 / np.sqrt(shape.atoms)
    print(check_gradient("cql", found, reference, np.full_like(reference, size)))


def test_cql_finite_differences(runtime: Runtime) -> None:
    """The gradient is that of the loss the kernel itself reports."""
    shape = SHAPES[0]
    raw, action = inputs(shape, 2)
    kernel = Cql(runtime, shape, 1.0)
    gradient, _ = kernel(raw, action)
    direction = np.random.default_rng(3).normal(size=raw.shape).astype(np.float32)
    h = 1e-2
    up, down = (
        kernel(raw + np.float32(sign * h) * direction, action)[1][:, 0].astype(np.float64).mean() for sign in (1, -1)
    )
    assert (up - down) / (2 * h) == pytest.approx(float((gradient.astype(np.float64) * direction).sum()), rel=2e-3)


def test_cql_squares_are_those_of_the_logits_gradient(runtime: Runtime) -> None:
    """Of d by the combined logits, as the budget of the main loss has it: V's and A's gradients are made from it."""
    shape = LossShape(4, (3,), 5)
    raw, action = inputs(shape, 4)
    found, rows = Cql(runtime, shape, 1.0)(raw, action)
    n, a = shape.atoms, 3
    d_mean = found[:, :n] / a  # V's gradient is the sum over the actions
    d = found[:, n:].reshape(-1, a, n) + d_mean[:, None, :]
    np.testing.assert_allclose(rows[:, 1], (d.astype(np.float64) ** 2).sum((1, 2)), rtol=1e-4)


def learner_of(rt: Runtime, case: Case, *settings: str) -> Learner:
    learner = Learner(rt, case.config().with_set(list(settings)), case.state_dim, case.branches)
    fill(learner, chain(transitions(case)))
    learner.set(alpha_c51=case.alpha_c51)
    return learner


@pytest.mark.parametrize("budget", ["0", "0.02", "100"])
def test_cql_joins_dlogits_within_its_share_of_the_budget(runtime: Runtime, budget: str) -> None:
    case, found = CASES[0], []
    for settings in ((), ("cql.enabled=true", "cql.alpha=0.5", "cql.budget_share=0.25")):
        learner = learner_of(runtime, case, f"loss.grad_budget={budget}", *settings)
        learner.step()
        record = learner.drain()[0]
        assert learner.ddqn.dlogits is not None
        found.append((learner, record, learner.ddqn.dlogits.to_numpy().astype(np.float64)))
    (without, _, core), (learner, record, both) = found
    loss = learner.extensions[0]
    assert isinstance(loss, aux.Cql)
    part, rows = loss.part.to_numpy().astype(np.float64), loss.rows.to_numpy().astype(np.float64)
    norm, limit = np.sqrt(rows[:, 1].sum()), 0.25 * float(budget)
    scale = min(1.0, limit / norm) if limit else 1.0
    assert record["cql_scale"] == pytest.approx(scale, rel=1e-5) and (scale < 1.0) == (budget == "0.02")
    assert record["cql_loss"] == pytest.approx(rows[:, 0].mean(), rel=1e-5)
    np.testing.assert_allclose(both, core + scale * part, rtol=1e-6, atol=1e-9)
    assert np.abs(part).max() > 1e-5
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    without.close()
    learner.close()


def test_cql_lowers_what_was_not_done(runtime: Runtime) -> None:
    """Trained on one action of three alone, the others' values fall below it; without CQL nothing says so."""
    gaps = []
    for alpha in (0.0, 5.0):
        settings = ["network.hidden=16", "network.atoms=21", "replay.capacity=512", "replay.batch=32", "optim.lr=3e-3",
                    "loss.grad_budget=0", "replay.n_step=1"]  # fmt: skip
        settings += [f"cql.alpha={alpha}", "cql.enabled=true"] if alpha else []
        learner = Learner(runtime, Config().with_set(settings), 3, (3,))
        random = np.random.default_rng(0)
        staging = learner.replay.staging(16)
        for _ in range(8):
            state = random.normal(size=(16, 3)).astype(np.float32)
            learner.replay.insert_batch(staging, np.ones(16, np.int32), random.normal(size=16).astype(np.float32),
                                        np.ones(16, bool), np.zeros(16, bool), state=state, next_state=state)  # fmt: skip
        for _ in range(150):
            learner.step()
        records = learner.drain()
        logits = learner.forward.logits.to_numpy()[0][:, : 4 * 21]
        z = np.linspace(learner.config.loss.v_min, learner.config.loss.v_max, 21)
        advantage = logits[:, 21:].reshape(-1, 3, 21).astype(np.float64)
        q = (np.asarray(jax.nn.softmax(logits[:, None, :21] + advantage - advantage.mean(1, keepdims=True))) * z).sum(
            -1
        )
        gaps.append(float((q[:, 1] - np.maximum(q[:, 0], q[:, 2])).mean()))
        if alpha:
            assert records["cql_loss"][-1] < records["cql_loss"][0]
        learner.close()
    assert gaps[1] > gaps[0] + 0.5, gaps


def test_cql_shifts_values_by_the_variance_of_returns(runtime: Runtime) -> None:
    """Where the gradients of cross-entropy and CQL cancel: Q_a - E[r_a] = alpha_cql (f_a - softmax(Q)_a) / f_a Var(Z_a), with f_a
    the share of the rows with action a (docs/step/aux.md). One state, rewards of -1 and 1, every share known."""
    atoms, alpha, shares = 21, 0.2, np.array([5, 2, 1]) / 8
    learner = Learner(runtime, Config().with_set([
        "network.hidden=8", f"network.atoms={atoms}", "replay.capacity=256", "replay.batch=64", "replay.n_step=1",
        "replay.alpha=0", "optim.lr=3e-3", "optim.lr_min=1e-5", "optim.horizon=1500", "loss.grad_budget=0",
        "loss.alpha_c51_start=1", "cql.enabled=true", f"cql.alpha={alpha}"]), 3, (3,))  # fmt: skip
    staging = learner.replay.staging(16)
    state, ones = np.ones((16, 3), np.float32), np.ones(16, bool)
    action = np.repeat([0, 1, 2], [10, 4, 2])
    for k in range(16):
        reward = np.where((np.arange(16) + k) % 2, 1.0, -1.0).astype(np.float32)
        learner.replay.insert_batch(staging, action, reward, ones, ~ones, state=state, next_state=state)
    for _ in range(1500):
        learner.step()
    learner.drain()
    logits = learner.forward.logits.to_numpy()[0][0, : 4 * atoms].astype(np.float64)
    z = np.linspace(learner.config.loss.v_min, learner.config.loss.v_max, atoms)
    advantage = logits[atoms:].reshape(3, atoms)
    p = np.asarray(jax.nn.softmax(logits[:atoms] + advantage - advantage.mean(0)))
    q = p @ z
    variance = p @ z**2 - q**2
    predicted = alpha * (shares - np.asarray(jax.nn.softmax(q))) / shares * variance
    print("shift", q, "predicted", predicted)
    np.testing.assert_allclose(q, predicted, atol=0.15 * np.abs(predicted).max())
    learner.close()


def test_off_adds_nothing(runtime: Runtime) -> None:
    """No child, no launch, no buffer, no module; on adds two children of a launch each, one of them beside ddqn."""
    off, on = (learner_of(runtime, CASES[1], *s) for s in ((), ("cql.enabled=true",)))
    names = [[child.name for child in learner.graph.children] for learner in (off, on)]
    assert "aux.cql" not in names[0] and names[1] == [*names[0][:4], "aux.cql", "aux.cql_blend", *names[0][4:]]
    assert [child.kernels for child in on.graph.children[4:6]] == [["cql_gradient"], ["aux_blend"]]
    edges = on.graph.info()["edges"]
    assert ["ddqn", "aux.cql"] not in edges and ["ddqn", "aux.cql_blend"] in edges
    assert not off.extensions and off.records.dtype == abi.dtype("step_record")
    off.close()
    on.close()


def target_q(target: dict[str, Any], batch: Any, case: Case, z: Any) -> Any:
    """mean_b of the target network's expected return of the actions taken, (B,), in float64."""
    settings = oracle.Settings(case.branches, case.atoms, float(z[0]), float(z[-1]), 0.0, 0.0, 0.0)
    taken = oracle.choices(batch.action, case.branches)

    @jax.jit
    def expected(params: Any) -> Any:
        logits = oracle.taken_logits(params, batch.state, taken, settings)
        return (jax.nn.softmax(logits, axis=-1) * z).sum(-1).mean(1)

    return np.asarray(expected({k: v.astype(np.float64) for k, v in target.items()}))


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=lambda case: case.name)
def test_iql_value_gradient_and_advantage(runtime: Runtime, case: Case) -> None:
    learner = learner_of(runtime, case, "iql.enabled=true", "iql.tau=0.8", "optim.lr=3e-3")
    for _ in range(4):  # so that the target differs from the online network
        learner.step()
    learner.drain()
    theta, target = (learner.layout.unpack(b.to_numpy()) for b in (learner.adam.theta, learner.adam.target))
    priority = learner.replay.priority.to_numpy()
    learner.step()
    record = learner.drain()[-1]
    index = learner.batch.index.to_numpy()
    rows = chain(transitions(case))
    batch = oracle.Batch(rows.state[index], rows.next_state[index], rows.action[index], None, None, None)  # type: ignore[arg-type]
    loss_config = learner.config.loss
    z = np.linspace(np.float32(loss_config.v_min), np.float32(loss_config.v_max), case.atoms)
    q = target_q({k: v for k, v in target.items() if not k.startswith("iql")}, batch, case, z)
    x = batch.state
    for i in range(len(case.hidden)):
        x = np.maximum(x @ theta[f"trunk.{i}.weight"].astype(np.float64) + theta[f"trunk.{i}.bias"], 0.0)

    def loss(weight: Any, bias: Any) -> Any:
        u = q - ((x @ weight)[:, 0] + bias[0])
        return (jnp.where(u < 0.0, 1.0 - 0.8, 0.8) * u**2).mean()

    weight, bias = (theta[f"iql_v.{name}"].astype(np.float64) for name in ("weight", "bias"))
    value, gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weight, bias)
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    u = q - ((x @ weight)[:, 0] + bias[0])
    size = 2.0 * (np.abs(x).T @ np.abs(u))[:, None] / len(u)
    print(oracle.compare("iql_v.weight", found["iql_v.weight"], gradient[0], size + np.abs(q).max() * 1e-2))
    print(
        oracle.compare("iql_v.bias", found["iql_v.bias"], gradient[1], 2.0 * np.abs(u).mean() + np.abs(q).max() * 1e-2)
    )
    extension = learner.extensions[0]
    assert isinstance(extension, aux.Iql)
    ours = extension.rows.to_numpy()
    np.testing.assert_allclose(ours[:, 2], u, rtol=1e-4, atol=1e-5 * np.abs(z).max())
    assert record["iql_loss"] == pytest.approx(float(value), rel=1e-4)
    assert record["iql_advantage"] == pytest.approx(u.mean(), rel=1e-3, abs=1e-5)
    assert record["iql_value"] == pytest.approx(((x @ weight)[:, 0] + bias[0]).mean(), rel=1e-4, abs=1e-5)

    # The trunk is a constant of this loss: its gradient is that of the core alone.
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)

    # Priorities take the modulated |delta|, the statistics do not.
    config = learner.config.iql
    factor = np.clip(np.exp(config.beta * u), config.modulation_low, config.modulation_high)
    modulated = learner.batch.td_error.to_numpy().astype(np.float64)
    plain = modulated / factor
    assert record["td_error"] == pytest.approx(plain.mean(), rel=1e-3)
    assert factor.min() < 1.0 < factor.max() or len(set(np.round(factor, 3))) > 1
    replay = learner.config.replay
    expected = priority.astype(np.float64)
    expected[index] = (modulated + replay.eps) ** replay.alpha
    np.testing.assert_allclose(learner.replay.priority.to_numpy(), expected, rtol=1e-5)
    learner.close()


def test_iql_expectile_orders_the_values(runtime: Runtime) -> None:
    """A higher expectile gives a higher V; at 0.5 it is the mean of the target's Q."""
    means = []
    for tau in (0.1, 0.5, 0.9):
        learner = learner_of(runtime, CASES[1], "iql.enabled=true", f"iql.tau={tau}", "optim.lr=3e-3", "iql.lr_factor=3",
                             "iql.max_grad_norm=100", "optim.lr_min=3e-3", "optim.tau_start=1e-6",
                             "optim.tau_end=1e-6")  # fmt: skip
        for _ in range(300):
            learner.step()
        records = learner.drain()[-50:]
        means.append((records["iql_value"].mean(), records["iql_advantage"].mean()))
        learner.close()
    assert means[0][0] < means[1][0] < means[2][0], means
    assert abs(means[1][1]) < min(abs(means[0][1]), abs(means[2][1])), means


@pytest.mark.parametrize("advantage", [-50.0, -0.3, 0.0, 0.4, 50.0, np.nan])
def test_iql_modulate(runtime: Runtime, advantage: float) -> None:
    rows = np.zeros((300, 4), np.float32)
    rows[:, 2] = advantage
    td = runtime.array(np.full(300, 2.0, np.float32), "td_error")
    runtime.ungraphed("test.iql").launch("iql_modulate", (2,), (256,), dict(
        rows=runtime.array(rows, "rows"), td_error=td, beta=1.5, low=0.5, high=3.0, B=300))  # fmt: skip
    expected = 2.0 * np.clip(np.exp(1.5 * advantage), 0.5, 3.0)
    np.testing.assert_allclose(td.to_numpy(), np.full(300, expected), rtol=1e-6)
