"""aux.iqn: implicit quantile networks against rlax and JAX autodiff in float64, fed our levels and a*."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import rlax

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.checkpoint import CheckpointError
from foxhunt_rt.dqn.children.iqn import Iqn, shared_bytes
from foxhunt_rt.dqn.learner_state import read_state, write_state
from foxhunt_rt.kernels import abi
from tests.dqn import oracle
from tests.dqn.test_extension import _of_network
from tests.dqn.test_whole_step import CASES, Case, Taken, batch_of, chain, fill, reference, take_step, transitions

F64 = npt.NDArray[np.float64]


def learner_of(rt: Runtime, case: Case, *settings: str) -> Learner:
    learner = Learner(rt, case.config().with_set(list(settings)), case.state_dim, case.branches, keep_target=True)
    fill(learner, chain(transitions(case)))
    learner.set(alpha_c51=case.alpha_c51)
    return learner


def iqn_of(learner: Learner) -> Iqn:
    found = learner.extensions[0]
    assert isinstance(found, Iqn)
    return found


def trunk(p: Any, x: Any, layers: int, xp: Any = jnp) -> list[Any]:
    """Input and output of each trunk layer."""
    kept = [x]
    for i in range(layers):
        kept.append(xp.maximum(kept[-1] @ p[f"trunk.{i}.weight"] + p[f"trunk.{i}.bias"], 0.0))
    return kept


def embed(p: Any, tau: Any, xp: Any = jnp) -> Any:
    """Dabney 2018, eq. 4: relu(sum_k cos(pi k tau) w_k + b), k from 0."""
    k = np.arange(p["iqn.embed.weight"].shape[0])
    return xp.maximum(xp.cos(np.pi * k * tau[..., None]) @ p["iqn.embed.weight"] + p["iqn.embed.bias"], 0.0)


def quantiles(p: Any, psi: Any, tau: Any, column: Any, xp: Any = jnp) -> Any:
    """(B, K, N) Z at tau of one head column a branch, (B, K)."""
    hadamard = psi[:, None, :] * embed(p, tau, xp)  # (B, N, H)
    bias = xp.take(p["iqn.head.bias"], column)
    return xp.einsum("bnh,hbk->bkn", hadamard, xp.take(p["iqn.head.weight"], column, axis=1)) + bias[..., None]


@dataclasses.dataclass
class Reference:
    loss: float
    scale: float
    spread: float
    gradient: dict[str, F64]
    magnitude: dict[str, F64]
    psi: F64  # gradient by the trunk's output, before the budget


def iqn_reference(taken: Taken, theta: Any, target: Any) -> Reference:
    """The loss of rlax on Z of JAX; its gradient by all parameters by autodiff; the budget from the gradient by psi."""
    learner, case, batch = taken.learner, taken.case, batch_of(taken)
    config, iqn = learner.config, iqn_of(learner)
    tau, tau_next = iqn.tau.to_numpy().astype(np.float64)
    first = np.concatenate([[0], np.cumsum(case.branches)[:-1]])
    column = oracle.choices(batch.action, case.branches) + first
    greedy = learner.ddqn.next_action.to_numpy() + first
    kappa, layers = float(np.float32(config.iqn.kappa)), len(case.hidden)
    share = 1.0 / len(case.branches) if config.loss.branch_reduction == "mean" else 1.0
    next_psi = trunk(target, batch.next_state, layers, np)[-1]
    y = batch.ret[:, None, None] + batch.discount[:, None, None] * quantiles(target, next_psi, tau_next, greedy, np)
    one = jax.vmap(
        jax.vmap(lambda z, t, y: rlax.quantile_regression_loss(z, t, y, kappa) / kappa, (0, None, 0)), (0, 0, 0)
    )

    def loss(p: Any, psi: Any) -> Any:
        return (share * batch.weight[:, None] * one(quantiles(p, psi, tau, column), tau, y)).sum(1).mean()

    def whole(p: Any) -> Any:
        return loss(p, trunk(p, batch.state, layers)[-1])

    kept = trunk(theta, batch.state, layers, np)
    psi = kept[-1]
    by_psi = np.asarray(jax.jit(jax.grad(loss, argnums=1))(theta, psi))
    value, gradient = jax.jit(jax.value_and_grad(whole))(theta)
    limit = 0.3 * config.loss.grad_budget
    norm = np.linalg.norm(by_psi)
    scale = min(1.0, limit / norm) if limit > 0.0 else 1.0
    gradient = {k: np.asarray(g) * (scale if k.startswith("trunk") else 1.0) for k, g in gradient.items()}

    # Sums of the terms' absolute values, walked back.
    z, phi = quantiles(theta, psi, tau, column, np), embed(theta, tau, np)
    d = y[:, :, None, :] - z[..., None]
    weight = np.abs(tau[:, None, :, None] - (d < 0.0))
    size = (weight * (np.abs(y)[:, :, None, :] + np.abs(z)[..., None])).mean(-1) / kappa
    size *= share * batch.weight[:, None, None] / len(psi)  # (B, K, N)
    one_hot = np.eye(sum(case.branches))[column]  # (B, K, S)
    w = np.abs(theta["iqn.head.weight"])[:, column]  # (H, B, K)
    dphi = np.einsum("bkn,hbk,bh->bnh", size, w, psi) * (phi > 0.0)
    cosines = np.abs(np.cos(np.pi * np.arange(config.iqn.cosines) * tau[..., None]))
    magnitude = {
        "iqn.head.weight": np.einsum("bks,bkn,bnh,bh->hs", one_hot, size, phi, psi),
        "iqn.head.bias": np.einsum("bks,bkn->s", one_hot, size),
        "iqn.embed.weight": np.einsum("bnc,bnh->ch", cosines, dphi),
        "iqn.embed.bias": dphi.sum((0, 1)),
    }
    dx = scale * np.einsum("bkn,hbk,bnh->bh", size, w, phi)
    for i in reversed(range(layers)):
        dx = dx * (kept[i + 1] > 0.0)
        magnitude[f"trunk.{i}.weight"], magnitude[f"trunk.{i}.bias"] = np.abs(kept[i]).T @ dx, dx.sum(0)
        dx = dx @ np.abs(theta[f"trunk.{i}.weight"]).T
    q75, q25 = np.quantile(z, [0.75, 0.25], axis=-1)
    return Reference(float(value), scale, float((q75 - q25).mean()), gradient, magnitude, by_psi)


@pytest.mark.parametrize(("case", "settings"), [
    (CASES[0], ()), (CASES[1], ("iqn.quantiles=5", "iqn.cosines=7")), (CASES[2], ("iqn.quantiles=1",)),
    (CASES[3], ("iqn.quantiles=7", "iqn.kappa=0.5")), (CASES[4], ("iqn.quantiles=33", "iqn.cosines=20")),
], ids=lambda v: v.name if isinstance(v, Case) else "")  # fmt: skip
def test_gradients_of_the_whole_step(runtime: Runtime, case: Case, settings: tuple[str, ...]) -> None:
    taken = take_step(runtime, dataclasses.replace(case, settings=(*case.settings, "iqn.enabled=true", *settings)))
    learner, before, record = taken.learner, taken.before, taken.record
    theta, target = (
        {k: v.astype(np.float64) for k, v in learner.layout.unpack(before[n]).items()} for n in ("theta", "target")
    )
    network = dataclasses.replace(learner.layout, groups=())
    core = reference(_of_network(taken, network, before["theta"][: network.size], before["target"][: network.size]))
    iqn = iqn_reference(taken, theta, target)
    assert record["iqn_loss"] == pytest.approx(iqn.loss, rel=2e-5)
    assert record["iqn_scale"] == pytest.approx(iqn.scale, rel=2e-5)
    assert record["iqn_spread"] == pytest.approx(iqn.spread, rel=2e-4, abs=1e-6)
    assert (iqn.scale < 1.0) == (case in CASES[3:5])
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    for name in found:
        more = iqn.gradient[name]
        expected = core.gradient.get(name, 0.0) + more
        terms = core.magnitude.get(name, 0.0) + iqn.magnitude.get(name, 0.0)
        print(oracle.compare(name, found[name], expected, terms))
        if more.any():
            with pytest.raises(AssertionError):  # the loss's part left out
                oracle.compare(name, found[name] - more, expected, terms)
    assert np.abs(iqn.gradient["trunk.0.weight"]).max() > 0.0 and np.abs(iqn.gradient["iqn.embed.weight"]).max() > 0.0
    assert not learner.grad.grad.to_numpy()[learner.layout.pads()].any()
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    learner.close()


def test_levels_and_their_cosines(runtime: Runtime) -> None:
    learner = learner_of(runtime, CASES[1], "iqn.enabled=true", "iqn.cosines=50")
    drawn = []
    for _ in range(8):
        learner.step()
        learner.drain()
        drawn.append(iqn_of(learner).tau.to_numpy())
    tau = drawn[-1].reshape(-1).astype(np.float64)
    cosines = iqn_of(learner).cosines.to_numpy()
    np.testing.assert_allclose(cosines[:, :50], np.cos(np.pi * np.arange(50) * tau[:, None]), rtol=0, atol=3e-7)
    assert not cosines[:, 50:].any() and cosines.shape[1] == 64
    every = np.concatenate(drawn).reshape(-1)
    assert every.min() >= 0.0 and every.max() < 1.0 and len(np.unique(every)) > 0.999 * every.size
    counts = np.histogram(every, 16, (0.0, 1.0))[0]
    chi_squared = ((counts - every.size / 16) ** 2 / (every.size / 16)).sum()
    assert chi_squared < 45.0, f"chi squared of 15 degrees of freedom: {chi_squared}"  # one in 10,000 is above 44
    assert abs(np.corrcoef(drawn[0][0].reshape(-1), drawn[0][1].reshape(-1))[0, 1]) < 0.15
    learner.close()


class Kernel:
    """iqn_loss on operands of one's own: two branches, two rows."""

    B, K, N, HP, SP = 2, 2, 6, 16, 16

    def __init__(self, rt: Runtime) -> None:
        random = np.random.default_rng(5)
        b, n, hp, sp = self.B, self.N, self.HP, self.SP
        step = np.zeros(1, abi.dtype("step_block"))
        step["beta_per"], step["min_priority"] = 0.5, np.float32(0.5).view(np.uint32)
        positive = lambda *dims: random.uniform(0.1, 1.0, dims).astype(np.float32)  # noqa: E731
        normal = lambda *dims: random.normal(size=dims).astype(np.float32)  # noqa: E731
        self.rt = rt
        self.operands: dict[str, Any] = dict(
            x=positive(b, hp), x_target=positive(b, hp), embedded=positive(b * n, hp), embedded_next=positive(b * n, hp),
            tau=random.random((b, n)).astype(np.float32), w=normal(hp, sp), bias=normal(sp), w_target=normal(hp, sp),
            bias_target=normal(sp), action=np.array([4, 1], np.int32), next_action=np.array([[1, 0], [0, 2]], np.int32),
            ret=normal(b),
            discount=np.array([0.9, 0.0], np.float32), priority=np.array([0.5, 2.0], np.float32), step=step)  # fmt: skip

    def __call__(self, **changed: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
        b, k, n, hp = self.B, self.K, self.N, self.HP
        floats = {"rows": (b, 3 + k), "dembedded": (b * n, hp), "dhead": (b, k, hp), "dx": (b, hp)}
        out = {name: self.rt.array(np.full(dims, np.nan, np.float32), name) for name, dims in floats.items()}
        out["column"] = self.rt.array(np.full((b, k), -1, np.int32), "column")
        inputs = {name: self.rt.array(array, name) for name, array in (self.operands | changed).items()}
        self.rt.ungraphed("test.iqn").launch("iqn_loss", (b,), (64,), dict(
            **inputs, **out, branch_sizes=2 | 3 << 8, kappa=1.0, branch_scale=0.5, B=b, K=k, N=n, Hp=hp, Sp=self.SP),
            shared=shared_bytes(k, hp, n))  # fmt: skip
        return {name: buffer.to_numpy() for name, buffer in out.items()}


@pytest.mark.parametrize(("operand", "gradient"), [("x", "dx"), ("embedded", "dembedded"), ("w", "dhead")])
def test_finite_differences(runtime: Runtime, operand: str, gradient: str) -> None:
    """The gradients are those of the loss that the kernel itself reports."""
    kernel = Kernel(runtime)
    at = kernel.operands[operand]
    direction = np.random.default_rng(6).normal(size=at.shape).astype(np.float32) * (0.05 if operand == "x" else 0.1)
    here = kernel()
    assert here["column"].tolist() == [[1, 2 + 1], [0, 2 + 1]]
    g = here[gradient].astype(np.float64)
    if operand == "w":  # by column
        g = np.zeros(at.shape)
        for row in range(kernel.B):
            for b in range(kernel.K):
                g[:, here["column"][row, b]] += here["dhead"][row, b]
    h = 0.05
    up, down = (
        kernel(**{operand: at + np.float32(s * h) * direction})["rows"][:, 0].astype(np.float64).mean() for s in (1, -1)
    )
    assert (up - down) / (2 * h) == pytest.approx(float((g * direction).sum()), rel=5e-3)
    np.testing.assert_allclose(here["rows"][:, 1], (here["dx"].astype(np.float64) ** 2).sum(1), rtol=1e-5)


def rewarded(rt: Runtime, width: float, steps: int, *settings: str) -> tuple[Learner, npt.NDArray[Any], list[F64]]:
    """Trained on one-step episodes of two states: rewards 1 + width N(0, 1), and -1 or -1 + 2 width, three to seven."""
    learner = Learner(rt, Config().with_set([
        "network.hidden=32", "network.atoms=21", "replay.capacity=1024", "replay.batch=64", "replay.n_step=1", "replay.alpha=0",
        "loss.grad_budget=0", "optim.lr=5e-3", "optim.lr_min=1e-5", f"optim.horizon={steps}", "optim.max_grad_norm=10",
        "iqn.enabled=true", "iqn.kappa=0.05", "iqn.quantiles=16", *settings]), 2, (2,))  # fmt: skip
    random = np.random.default_rng(0)
    staging = learner.replay.staging(64)
    seen: list[list[Any]] = [[], []]
    for _ in range(16):
        kind = np.arange(64) % 2
        two_points = -1.0 + 2.0 * width * (random.random(64) < 0.7)
        reward = np.where(kind == 0, 1.0 + width * random.normal(size=64), two_points).astype(np.float32)
        state = np.eye(2, dtype=np.float32)[kind]
        learner.replay.insert_batch(staging, np.zeros(64, np.int32), reward, np.ones(64, bool), np.zeros(64, bool),
                                    state=state, next_state=state)  # fmt: skip
        for k in (0, 1):
            seen[k].append(reward[kind == k])
    for _ in range(steps):
        learner.step()
    return learner, learner.drain(), [np.concatenate(s).astype(np.float64) for s in seen]


def test_it_learns_the_quantiles_of_a_known_distribution(runtime: Runtime) -> None:
    """A normal distribution and one of two points, three to seven: Z(tau) is the quantile of the rewards in the ring."""
    learner, records, rewards = rewarded(runtime, 1.0, 700)
    p = {k: v.astype(np.float64) for k, v in learner.params().items()}
    tau = np.array([0.1, 0.25, 0.4, 0.6, 0.75, 0.9])
    found = quantiles(p, trunk(p, np.eye(2), 1, np)[-1], np.stack([tau, tau]), np.zeros((2, 1), int), np)[:, 0]
    print(found, np.quantile(rewards[0], tau), np.quantile(rewards[1], tau))
    np.testing.assert_allclose(found[0], np.quantile(rewards[0], tau), atol=0.25)
    np.testing.assert_allclose(found[1][[0, 3, 4, 5]], np.quantile(rewards[1], tau[[0, 3, 4, 5]]), atol=0.25)
    assert records["iqn_loss"][-20:].mean() < 0.8 * records["iqn_loss"][:5].mean()
    learner.close()


def test_metrics_move_with_their_causes(runtime: Runtime) -> None:
    """Wider returns widen the spread and raise the loss; a small budget lowers the factor; without one it is 1."""
    found = []
    for width in (0.2, 1.0):
        learner, records, _ = rewarded(runtime, width, 150)
        assert (records["iqn_scale"] == 1.0).all()
        found.append(records[-20:])
        learner.close()
    assert found[1]["iqn_spread"].mean() > 2.0 * found[0]["iqn_spread"].mean()
    assert found[1]["iqn_loss"].mean() > 2.0 * found[0]["iqn_loss"].mean()
    learner, records, _ = rewarded(runtime, 1.0, 3, "loss.grad_budget=0.01")
    iqn = iqn_of(learner)
    norm = np.linalg.norm(iqn.dx.to_numpy().astype(np.float64))
    assert records["iqn_scale"][-1] == pytest.approx(0.3 * 0.01 / norm, rel=1e-4) and records["iqn_scale"][-1] < 1.0
    learner.close()


def test_off_adds_nothing_and_on_adds_parts_that_run_beside(runtime: Runtime) -> None:
    off, on = (learner_of(runtime, CASES[1], *s) for s in ((), ("iqn.enabled=true",)))
    names = [[child.name for child in learner.graph.children] for learner in (off, on)]
    added = {child.name: child.kernels for child in on.graph.children if child.name not in names[0]}
    assert added == {"forward.heads": ["linear_forward"], "aux.iqn_embed": ["iqn_cosines", "linear_forward"],
                     "aux.iqn": ["iqn_loss", "iqn_gather"], "aux.iqn_gradient": ["linear_backward", "grad_reduce"]}  # fmt: skip
    edges = on.graph.info()["edges"]
    assert ["aux.iqn", "adam_grad"] in edges and ["aux.iqn_gradient", "adam"] in edges
    assert ["aux.iqn_gradient", "adam_grad"] not in edges
    assert not off.extensions and off.layout.size == off.layout.network_size
    off.close()
    on.close()


def test_a_resumed_learner_goes_on_bit_for_bit(runtime: Runtime) -> None:
    first, second, other = (learner_of(runtime, CASES[1], "iqn.enabled=true", f"iqn.quantiles={n}") for n in (5, 5, 6))
    for _ in range(3):
        first.step()
    tensors, facts = read_state(first)
    with pytest.raises(CheckpointError, match=r"iqn\.quantiles"):
        write_state(other, tensors, facts)
    write_state(second, tensors, facts)
    for learner in (first, second):
        for _ in range(3):
            learner.step()
        learner.drain()
    for name in ("theta", "target", "m", "v"):
        np.testing.assert_array_equal(*(getattr(learner.adam, name).to_numpy() for learner in (first, second)))
    for learner in (first, second, other):
        learner.close()
