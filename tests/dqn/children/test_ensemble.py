"""aux.ensemble: H advantage heads against JAX autodiff and rlax in float64, fed our a*, which is checked apart."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn import Agent, Learner
from foxhunt_rt.dqn.checkpoint import CheckpointError
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.dqn.children.ensemble import Ensemble, loss_launch
from foxhunt_rt.dqn.extension import Extension, ExtensionError
from foxhunt_rt.dqn.guard import CLEAR
from foxhunt_rt.dqn.learner_state import read_state, write_state
from foxhunt_rt.kernels import abi
from tests.dqn import oracle
from tests.dqn.feature_harness import check_reset, check_resume, extension, footprint
from tests.dqn.test_extension import _of_network
from tests.dqn.test_whole_step import CASES, Case, Taken, batch_of, reference, settings_of, take_step

F64 = npt.NDArray[np.float64]
ON = ("ensemble.enabled=true",)


def f32(x: float) -> float:
    return float(np.float32(x))


def heads_of(p: Any, x: Any, s: oracle.Settings, heads: int, xp: Any = jnp) -> list[list[Any]]:
    """Logits of every head by branch, (B, n_b, N): V and the network's own advantages first, then those beside it."""
    layers = sorted(name[:-7] for name in p if name.startswith("trunk") and name.endswith("weight"))
    for layer in layers:
        x = xp.maximum(x @ p[f"{layer}.weight"] + p[f"{layer}.bias"], 0.0)
    value = (x @ p["value.weight"] + p["value.bias"])[:, None, :]
    own = [x @ p[f"branch.{b}.weight"] + p[f"branch.{b}.bias"] for b in range(len(s.branches))]
    more = (x @ p["ensemble.weight"] + p["ensemble.bias"]).reshape(len(x), heads - 1, -1)
    at = np.cumsum([0, *s.branches]) * s.atoms
    rows = [own, *([more[:, e, at[b] : at[b + 1]] for b in range(len(s.branches))] for e in range(heads - 1))]
    found = []
    for row in rows:
        advantages = [a.reshape(-1, n, s.atoms) for a, n in zip(row, s.branches, strict=True)]
        found.append([value + a - a.mean(1, keepdims=True) for a in advantages])
    return found


def values(logits: list[list[Any]], z: F64, xp: Any = jnp) -> Any:
    """(H, B, S) expected returns."""

    def expected(x: Any) -> Any:
        if xp is jnp:
            return (jax.nn.softmax(x, axis=-1) * z).sum(-1)
        return (softmax(x) * z).sum(-1)

    return xp.stack([xp.concatenate([expected(x) for x in head], axis=1) for head in logits])


def similarity(q: Any, s: oracle.Settings, sigma: float, xp: Any = jnp) -> Any:
    """(B,): mean over pairs of heads of exp(-mean square distance of their centred advantages in atoms / (2 sigma^2))."""
    parts, at = [], 0
    for n in s.branches:
        part = q[..., at : at + n]
        parts.append(part - part.mean(-1, keepdims=True))
        at += n
    c = xp.concatenate(parts, axis=-1) / (s.z[1] - s.z[0])
    pairs = itertools.combinations(range(len(q)), 2)
    return xp.stack([xp.exp(-((c[h] - c[k]) ** 2).mean(-1) / (2.0 * sigma**2)) for h, k in pairs]).mean(0)


@dataclasses.dataclass
class Reference:
    metrics: dict[str, float]
    target: F64  # (B, E, K, N)
    gradient: dict[str, F64]
    magnitude: dict[str, F64]


def ensemble_reference(taken: Taken, theta: Any, target: Any) -> Reference:
    """Each head's loss by `oracle.parts` on its own target, the similarity, and the gradient of both by autodiff."""
    learner, batch, s = taken.learner, batch_of(taken), settings_of(taken)
    config, rows = learner.config.ensemble, jnp.arange(taken.case.batch)
    heads, share, sigma = config.heads, f32(config.budget_share), f32(config.spread)
    taken_actions, a_star = oracle.choices(batch.action, s.branches), learner.ddqn.next_action.to_numpy()

    def at(head: list[Any], actions: Any) -> Any:
        return jnp.stack([x[rows, actions[:, b]] for b, x in enumerate(head)], axis=1)

    @jax.jit  # one compilation a shape
    def everything(theta: Any, target: Any) -> dict[str, Any]:
        next_logits = heads_of(target, batch.next_state, s, heads)[1:]
        targets = [oracle.project(jax.nn.softmax(at(head, a_star), axis=-1), batch.ret, batch.discount, s.z)
                   for head in next_logits]  # fmt: skip

        def loss(logits: list[list[Any]]) -> Any:
            own = [sum(oracle.parts(at(head, taken_actions), m, batch.weight, s))
                   for head, m in zip(logits[1:], targets, strict=True)]  # fmt: skip
            alike = similarity(values(logits, s.z), s, sigma)
            return sum(own) / (heads - 1) + f32(config.diversity) * alike.mean()

        logits, back = jax.vjp(lambda p: heads_of(p, batch.state, s, heads), theta)
        value, by_logits = jax.value_and_grad(loss)(logits)
        norm = jnp.sqrt(sum((g**2).sum() for head in by_logits for g in head))
        taken_log_p = [jax.nn.log_softmax(at(head, taken_actions), axis=-1) for head in logits[1:]]
        return {"targets": targets, "logits": logits, "value": value, "norm": norm, "gradient": back(by_logits)[0],
                "log_p": taken_log_p}  # fmt: skip

    out = jax.tree.map(np.asarray, everything(theta, target))
    limit, norm = share * s.budget, float(out["norm"])
    scale = limit / norm if limit > 0.0 and norm > limit else 1.0
    gradient = {k: g * scale for k, g in out["gradient"].items()}
    logits, targets = out["logits"], out["targets"]

    q = values(logits, s.z, np)
    smooth = [(1.0 - s.smoothing) * m + s.smoothing / s.atoms for m in targets]
    ce = [-(m * log_p).sum(-1).mean() for m, log_p in zip(smooth, out["log_p"], strict=True)]
    alike = similarity(q, s, sigma, np)
    metrics = {"loss": float(out["value"]), "ce": float(np.mean(ce)), "disagreement": float(q.std(0).mean()),
               "similarity": float(alike.mean()), "scale": scale}  # fmt: skip
    size = _terms(logits, q, smooth, targets, taken_actions, batch.weight, s, config)
    return Reference(metrics, np.stack(targets, axis=1), gradient,
                     _magnitude(theta, batch.state, [scale * x for x in size], s))  # fmt: skip


def softmax(x: F64) -> F64:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _terms(logits: Any, q: F64, smooth: Any, targets: Any, taken: Any, weight: F64, s: oracle.Settings,
           config: Any) -> list[F64]:  # fmt: skip
    """Sums of the absolute terms of dloss/dlogits, (B, S, N) of each head."""
    heads, (batch, actions) = len(q), q.shape[1:]
    z, dz = np.abs(s.z), s.z[1] - s.z[0]
    sigma = f32(config.spread)
    # of the similarity: |c_h| + |c_k| in atoms, a few times, where the exponential moves with them
    reach = 2.0 * np.abs(q).max() / dz
    factor = (
        config.diversity / batch * 2.0 / heads * reach * (1.0 + (reach / sigma) ** 2 / 50.0) / (actions * sigma**2 * dz)
    )
    found = []
    for h in range(heads):
        p = np.concatenate([softmax(x) for x in logits[h]], axis=1)  # (B, S, N)
        size = factor * p * (z + np.abs(q[h])[..., None])
        if h:
            first = 0
            for b, n in enumerate(s.branches):
                at = first + taken[:, b]
                rows = np.arange(batch)
                y = (targets[h - 1][:, b] * s.z).sum(-1)
                own = oracle._terms(p[rows, at][:, None], smooth[h - 1][:, b : b + 1], q[h][rows, at][:, None], y[:, None],
                                    weight, (1.0, 1.0), dataclasses.replace(s, branches=(n,)))  # fmt: skip
                own = own / (heads - 1) * (1.0 / len(s.branches) if s.reduction == "mean" else 1.0)
                size[rows, at] += own[:, 0]
                first += n
        found.append(size)
    return found


def _magnitude(p: Any, state: F64, size: list[F64], s: oracle.Settings) -> dict[str, F64]:
    """Walks the network back with absolute values."""
    layers = sorted(name[:-7] for name in p if name.startswith("trunk") and name.endswith("weight"))
    kept = [state]
    for layer in layers:
        kept.append(np.maximum(kept[-1] @ p[f"{layer}.weight"] + p[f"{layer}.bias"], 0.0))
    batch = len(state)
    advantages = []
    for one in size:
        parts, at = [], 0
        for n in s.branches:
            part = one[:, at : at + n]
            parts.append((part + part.mean(1, keepdims=True)).reshape(batch, -1))
            at += n
        advantages.append(parts)
    d = {f"branch.{b}": advantages[0][b] for b in range(len(s.branches))}
    d["value"] = sum(one.sum(1) for one in size)  # type: ignore[assignment]
    d["ensemble"] = np.concatenate([x for head in advantages[1:] for x in head], axis=1)
    out, dx = {}, np.zeros_like(kept[-1])
    for name, by_output in d.items():
        out[f"{name}.weight"], out[f"{name}.bias"] = np.abs(kept[-1]).T @ by_output, by_output.sum(0)
        dx += by_output @ np.abs(p[f"{name}.weight"]).T
    for i in reversed(range(len(layers))):
        dx = dx * (kept[i + 1] > 0.0)
        out[f"{layers[i]}.weight"], out[f"{layers[i]}.bias"] = np.abs(kept[i]).T @ dx, dx.sum(0)
        dx = dx @ np.abs(p[f"{layers[i]}.weight"]).T
    return out


@pytest.mark.parametrize(("case", "settings"), [
    (CASES[0], ("ensemble.heads=3", "ensemble.diversity=0.3")), (CASES[1], ("ensemble.heads=2", "ensemble.diversity=2")),
    pytest.param(CASES[2], ("ensemble.heads=5", "ensemble.spread=3"), marks=pytest.mark.slow),  # each compiles the oracle
    (CASES[3], ("ensemble.heads=4",)),
    pytest.param(CASES[4], ("ensemble.heads=3", "ensemble.diversity=0"), marks=pytest.mark.slow),
    (CASES[7], ("ensemble.heads=2", "ensemble.diversity=1")),
], ids=lambda v: v.name if isinstance(v, Case) else "")  # fmt: skip
def test_gradients_of_the_whole_step(runtime: Runtime, case: Case, settings: tuple[str, ...]) -> None:
    taken = take_step(runtime, dataclasses.replace(case, settings=(*case.settings, *ON, "optim.lr=3e-3", *settings)))
    learner, before, record = taken.learner, taken.before, taken.record
    theta, target = (
        {k: v.astype(np.float64) for k, v in learner.layout.unpack(before[n]).items()} for n in ("theta", "target")
    )
    network = dataclasses.replace(learner.layout, groups=())
    core = reference(_of_network(taken, network, before["theta"][: network.size], before["target"][: network.size]))
    expected = ensemble_reference(taken, theta, target)
    for name, value in expected.metrics.items():
        print(name, record[f"ensemble_{name}"], value)
        assert record[f"ensemble_{name}"] == pytest.approx(
            value, rel=1e-4, abs=2e-6 * np.abs(settings_of(taken).z).max()
        ), name
    assert (expected.metrics["scale"] < 1.0) == (case in (CASES[3], CASES[4]))
    kept = extension(learner, Ensemble).target
    assert kept is not None
    np.testing.assert_allclose(kept.to_numpy(), expected.target, atol=4e-7 * case.atoms)
    found = learner.layout.unpack(learner.grad.grad.to_numpy())
    assert set(found) == set(expected.gradient)
    for name in found:
        more = expected.gradient[name]
        whole = core.gradient.get(name, 0.0) + more
        terms = core.magnitude.get(name, 0.0) + expected.magnitude[name]
        print(oracle.compare(name, found[name], whole, terms))
        if np.abs(more).max() > 0.0 and (not name.startswith("branch") or learner.config.ensemble.diversity):
            with pytest.raises(AssertionError):  # the ensemble's part left out
                oracle.compare(name, found[name] - more, whole, terms)
    assert all(
        np.abs(expected.gradient[name]).max() > 0.0 for name in ("trunk.0.weight", "ensemble.weight", "value.bias")
    )
    assert not learner.grad.grad.to_numpy()[learner.layout.pads()].any()
    result = learner.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    for part in ("aux.ensemble_heads", "aux.ensemble_values", "aux.ensemble", "aux.ensemble_blend"):
        planted = learner.graph.verify(steps=1, plant=part)
        assert not planted.bitwise_equal and planted.child == part
    learner.close()


def test_the_choice_at_the_next_state_is_that_of_the_mean(runtime: Runtime) -> None:
    case = dataclasses.replace(CASES[0], settings=(*ON, "ensemble.heads=4", "optim.lr=3e-3"))
    taken = take_step(runtime, case)
    learner, s = taken.learner, settings_of(taken)
    theta = {k: v.astype(np.float64) for k, v in learner.layout.unpack(taken.before["theta"]).items()}
    q = values(heads_of(theta, batch_of(taken).next_state, s, 4, np), s.z, np)
    a_star, first, others = learner.ddqn.next_action.to_numpy(), 0, 0
    for b, n in enumerate(s.branches):
        mean, own = q[:, :, first : first + n].mean(0), q[0, :, first : first + n]
        chosen = mean[np.arange(len(mean)), a_star[:, b]]
        assert (chosen >= mean.max(-1) - 2e-6 * np.abs(s.z).max()).all()
        others += int((own.argmax(-1) != a_star[:, b]).sum())
        first += n
    assert others > 10, "the network's own head alone would have chosen otherwise"
    learner.close()


class Kernel:
    """ensemble_loss on operands of one's own."""

    def __init__(self, rt: Runtime, shape: LossShape, heads: int, diversity: float, alpha: float) -> None:
        self.rt, self.shape, self.e = rt, shape, heads - 1
        random = np.random.default_rng(3)
        b, k, s, n = shape.batch, len(shape.branches), shape.actions, shape.atoms
        self.used = self.e * s * n
        self.mp = -(-self.used // 16) * 16
        step = np.zeros(1, abi.dtype("step_block"))
        step["v_min"], step["v_max"], step["delta_z"] = -2.5, 4.0, 6.5 / (n - 1)
        step["alpha_c51"], step["label_smoothing"], step["beta_per"] = alpha, 0.05, 0.5
        step["min_priority"] = np.float32(0.5).view(np.uint32)
        self.scalars = dict(branch_sizes=shape.packed_branches, branch_scale=1.0 / k, diversity=diversity, spread=0.8, B=b, R=b,
                            K=k, S=s, N=n, Np=shape.head_padded, Mp=self.mp, E=self.e)  # fmt: skip
        self.launch = loss_launch(shape, heads, self.mp)
        choices = np.stack([random.integers(0, m, b) for m in shape.branches], 1).astype(np.int32)
        self.operands: dict[str, Any] = dict(
            logits=random.normal(size=(3, b, shape.head_padded)).astype(np.float32),
            more=random.normal(size=(3, b, self.mp)).astype(np.float32),
            action=random.integers(0, int(np.prod(shape.branches)), b).astype(np.int32), next_action=choices,
            ret=random.normal(size=b).astype(np.float32), discount=random.choice([0.0, 0.9], b).astype(np.float32),
            priority=random.uniform(0.5, 2.0, b).astype(np.float32), step=step)  # fmt: skip

    def __call__(self, **changed: Any) -> dict[str, npt.NDArray[Any]]:
        b = self.shape.batch
        out = {"part": (b, self.shape.head_padded), "dmore": (b, self.mp), "rows": (b, 5)}
        outputs = {name: self.rt.array(np.full(dims, np.nan, np.float32), name) for name, dims in out.items()}
        guard = self.rt.array(np.array([(CLEAR,)], abi.dtype("guard_block")), "guard")
        inputs = {name: self.rt.array(array, name) for name, array in (self.operands | changed).items()}
        self.rt.ungraphed("test.ensemble").launch(self.launch.kernel, (b,), (self.launch.threads,), dict(
            **inputs, **outputs, **self.scalars, target=None, guard=guard), shared=self.launch.shared)  # fmt: skip
        found = {name: buffer.to_numpy() for name, buffer in outputs.items()}
        return {**found, "guard": guard.to_numpy()["key"]}


@pytest.mark.parametrize(("heads", "diversity", "alpha", "atoms"),
                         [(2, 0.7, 0.4, 9), (5, 0.0, 1.0, 9), (3, 5.0, 0.0, 9), (3, 0.7, 0.4, 70)])  # fmt: skip
@pytest.mark.parametrize("operand", ["logits", "more"])
def test_finite_differences(
    runtime: Runtime, heads: int, diversity: float, alpha: float, atoms: int, operand: str
) -> None:
    """The gradients are those of the loss that the kernel itself reports."""
    kernel = Kernel(runtime, LossShape(3, (4, 2), atoms), heads, diversity, alpha)
    assert kernel.launch.kernel == ("ensemble_loss" if atoms <= abi.constant("HEAD_NARROW") else "ensemble_loss_wide")
    here = kernel()
    assert here["guard"][0] == CLEAR
    assert not here["dmore"][:, kernel.used :].any() and not here["part"][:, 7 * atoms :].any()
    at = kernel.operands[operand]
    direction = np.zeros_like(at)
    direction[0] = np.random.default_rng(4).normal(size=at[0].shape)  # s alone: the targets are constants
    h = 2e-2
    up, down = (kernel(**{operand: at + np.float32(sign * h) * direction})["rows"][:, 0].astype(np.float64).mean()
                for sign in (1, -1))  # fmt: skip
    gradient = here["part" if operand == "logits" else "dmore"].astype(np.float64)
    used = slice(0, 7 * atoms) if operand == "logits" else slice(0, kernel.used)
    assert (up - down) / (2 * h) == pytest.approx(float((gradient * direction[0])[:, used].sum()), rel=5e-3, abs=1e-5)


def test_a_value_that_is_not_finite_is_found(runtime: Runtime) -> None:
    kernel = Kernel(runtime, LossShape(3, (4, 2), 9), 3, 0.1, 0.5)
    more = kernel.operands["more"].copy()
    more[2, 1, :] = np.nan
    assert kernel(more=more)["guard"][0] >> 60 == abi.constant("GUARD_AUX")


def with_heads(learner: Learner, change: Any) -> None:
    """Rewrites the heads beside the network's: each weight and bias is ``change`` of the own head's, and its number."""
    tensors = learner.params()
    k = len(learner.shape.branches)
    own = [np.concatenate([tensors[f"branch.{b}.{what}"] for b in range(k)], axis=-1) for what in ("weight", "bias")]
    e = learner.config.ensemble.heads - 1
    for what, tensor in zip(("weight", "bias"), own, strict=True):
        tensors[f"ensemble.{what}"] = np.concatenate([change(tensor, i) for i in range(e)], axis=-1).astype(np.float32)
    learner.load_params(tensors)


def test_metrics_move_with_their_causes(runtime: Runtime) -> None:
    case = dataclasses.replace(CASES[1], settings=(*CASES[1].settings, *ON, "ensemble.heads=3", "ensemble.spread=0.05"))
    found = []
    random = np.random.default_rng(0)
    for change in (lambda own, i: own, lambda own, i: own + random.normal(size=own.shape) * 0.03,
                   lambda own, i: own + random.normal(size=own.shape)):  # fmt: skip
        taken = take_step(runtime, case, lambda learner, change=change: with_heads(learner, change))
        found.append(taken.record)
        taken.learner.close()
    copies, near, far = found
    # Copies of the network's own head with its target: the same loss, all alike, no disagreement.
    assert copies["ensemble_ce"] == pytest.approx(copies["ce"], rel=1e-5)
    assert copies["ensemble_similarity"] == pytest.approx(1.0, abs=1e-6)
    assert copies["ensemble_disagreement"] == pytest.approx(0.0, abs=1e-6)
    assert 1.0 > near["ensemble_similarity"] > 0.05 + far["ensemble_similarity"] and far["ensemble_similarity"] >= 0.0
    assert far["ensemble_disagreement"] > 3.0 * near["ensemble_disagreement"] > 0.0
    assert far["ensemble_ce"] > near["ensemble_ce"] and far["ensemble_loss"] > near["ensemble_loss"]
    assert copies["ensemble_scale"] == 1.0  # no budget


def trained(rt: Runtime, steps: int, *settings: str) -> npt.NDArray[Any]:
    """Records of a learner on one-step episodes whose reward depends on the state."""
    learner = Learner(rt, Config().with_set([
        "network.hidden=16", "network.atoms=21", "replay.capacity=512", "replay.batch=32", "optim.lr=5e-3", "optim.lr_min=5e-3",
        "loss.grad_budget=0", "replay.n_step=1", *ON, *settings]), 3, (3,))  # fmt: skip
    random = np.random.default_rng(0)
    staging = learner.replay.staging(16)
    for _ in range(16):
        state = random.normal(size=(16, 3)).astype(np.float32)
        learner.replay.insert_batch(staging, random.integers(0, 3, 16).astype(np.int32), state[:, 0],
                                    np.ones(16, bool), np.zeros(16, bool), state=state, next_state=state)  # fmt: skip
    learner.set(alpha_c51=1.0)
    for _ in range(steps):
        learner.step()
    records = learner.drain()
    learner.close()
    return records


def test_heads_learn_and_the_diversity_term_keeps_them_apart(runtime: Runtime) -> None:
    plain, apart = (
        trained(runtime, 200, f"ensemble.diversity={weight}", "ensemble.spread=0.5") for weight in (0.0, 1.0)
    )
    assert plain["ensemble_ce"][-20:].mean() < 0.7 * plain["ensemble_ce"][:5].mean()
    assert apart["ensemble_similarity"][-20:].mean() < plain["ensemble_similarity"][-20:].mean() - 0.1
    assert apart["ensemble_disagreement"][-20:].mean() > 1.5 * plain["ensemble_disagreement"][-20:].mean()
    small = trained(runtime, 2, "loss.grad_budget=0.001")
    assert (small["ensemble_scale"] < 1.0).all() and (plain["ensemble_scale"] == 1.0).all()


def test_acting_and_values_are_those_of_the_mean(runtime: Runtime) -> None:
    config = Config().with_set(["network.hidden=20", "network.atoms=11", "replay.batch=8", "replay.capacity=256", *ON,
                                "ensemble.heads=4"])  # fmt: skip
    agent = Agent(5, [3, 2], config, runtime, environments=7)
    theta = {k: v.astype(np.float64) for k, v in agent.learner.params().items()}
    states = np.random.default_rng(1).normal(size=(23, 5)).astype(np.float32)
    s = oracle.Settings((3, 2), 11, config.loss.v_min, config.loss.v_max, 0.0, 0.0, 0.0)
    q = values(heads_of(theta, states.astype(np.float64), s, 4, np), s.z, np)
    np.testing.assert_allclose(agent.values(states), q.mean(0), rtol=1e-5, atol=1e-5)
    best = np.stack([q.mean(0)[:, :3].argmax(-1), q.mean(0)[:, 3:].argmax(-1)], axis=1)
    assert (np.stack(np.unravel_index(agent.act(states, epsilon=0.0), (3, 2)), axis=1) == best).all()
    with agent.snapshot() as snapshot:
        np.testing.assert_array_equal(snapshot.values(states), agent.values(states))
    assert np.abs(q[0] - q.mean(0)).max() > 1e-3
    agent.close()


@pytest.mark.parametrize("off", [("ensemble.heads=5",), (*ON, "ensemble.heads=1")], ids=["not enabled", "one head"])
def test_off_adds_nothing(runtime: Runtime, off: tuple[str, ...]) -> None:
    """No node, no module, no byte."""
    core, without = footprint(runtime, ()), footprint(runtime, off)
    assert core == without


def test_on_adds_parts_that_run_beside_the_core(runtime: Runtime) -> None:
    off, on = footprint(runtime, ()), footprint(runtime, ON)
    parts = ("heads", "values", "blend", "sum")
    assert on.children - off.children == {"forward.heads", "aux.ensemble", *(f"aux.ensemble_{part}" for part in parts)}
    assert on.nodes == off.nodes + 7
    assert {("forward", "aux.ensemble_heads"), ("forward.heads", "aux.ensemble_values"), ("aux.ensemble_values", "ddqn"),
            ("aux.ensemble_values", "aux.ensemble"), ("aux.ensemble", "aux.ensemble_blend"), ("aux.ensemble_blend", "adam_grad"),
            ("aux.ensemble_sum", "adam")} <= on.edges  # fmt: skip
    assert not on.edges & {
        ("forward.heads", "aux.ensemble_heads"),
        ("ddqn", "aux.ensemble"),
        ("aux.ensemble_sum", "adam_grad"),
    }


def test_a_resumed_learner_goes_on_bit_for_bit(runtime: Runtime) -> None:
    check_resume(runtime, ON)
    check_reset(runtime, ON)


def test_a_checkpoint_of_other_heads_is_refused(runtime: Runtime) -> None:
    case, made = CASES[1], []
    for heads in (2, 3):
        settings = (*ON, f"ensemble.heads={heads}")
        made.append(take_step(runtime, dataclasses.replace(case, settings=(*case.settings, *settings))).learner)
    tensors, facts = read_state(made[0])
    with pytest.raises(CheckpointError, match=r"ensemble\.heads"):
        write_state(made[1], tensors, facts)
    for learner in made:
        learner.close()


def test_too_many_heads_are_refused(runtime: Runtime) -> None:
    config = Config().with_set(["network.hidden=16", "network.atoms=256", "replay.batch=8", "replay.capacity=256", *ON,
                                "ensemble.heads=16"])  # fmt: skip
    with pytest.raises(ConfigError, match=r"bytes of shared memory .* lower ensemble\.heads"):
        Learner(runtime, config, 3, (2, 2, 2))


def test_one_extension_has_a_say_in_the_choice(runtime: Runtime) -> None:
    class Silent(Extension):
        name, next_values = "silent", True

        def record(self, step: Any) -> None:
            pass

    config = Config().with_set(["network.hidden=16", "replay.batch=8", "replay.capacity=256"])
    with pytest.raises(ExtensionError, match=r"silent: no child writes its share in the choice of a\*"):
        Learner(runtime, config, 3, (2,), extensions=[Silent()])
    with pytest.raises(ExtensionError, match="ensemble, silent all have a say"):
        Learner(runtime, config.with_set([*ON]), 3, (2,), extensions=[Silent()])
