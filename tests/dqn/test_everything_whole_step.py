"""The whole step with every feature on against one float64 objective in JAX: what each part gives to each tensor of the gradient,
through shared heads, trunk and blocks, once.

Fed what is drawn or chosen (rows, noise, levels, masks, a*, labels), which the tests of the parts check; the formulas are those
of their oracles. What changes parameters before the forward pass, popart and spectral, is done again here in NumPy.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax

from foxhunt_rt import Runtime
from foxhunt_rt.dqn.children.aux import Iql
from foxhunt_rt.dqn.children.denoise import Denoise
from foxhunt_rt.dqn.children.iqn import Iqn
from foxhunt_rt.dqn.children.prune import Prune

from . import oracle
from .children import test_horizons as horizons
from .children import test_plan as plan
from .children.test_attention import attention
from .children.test_ensemble import similarity, values
from .children.test_iqn import quantiles
from .children.test_spectral import iterate, vectors
from .everything import EVERYTHING, SMALL
from .feature_harness import extension
from .mamba_oracle import mamba
from .test_whole_step import WARM_UP, Case, Taken, take_step

#: Every part has something to say, no vaccine is due in the step that is compared, and the trunk's bound bites.
ON = (*EVERYTHING, *SMALL, "vaccine.period=5", "homeostat.entropy=0,0.1", "plan.length=1", "horizons.lengths=1,3",
      "spectral.sigma_max=0.4", "prune.first_epoch=0", "prune.last_epoch=3", "ensemble.diversity=0.3", "optim.horizon=100",
      "perturb.shrink=1", "perturb.sigma=0.05", "temporal.conv=3", "cql.alpha=0.1")  # fmt: skip
CASES = [
    Case("everything", 7, (13, 13), (3, 2), 11, 29,
         (*ON, "network.hidden=13,13", "loss.label_smoothing=0.1", "loss.grad_budget=0")),
    Case("everything, budget bites", 5, (9, 9, 9), (2, 1, 4), 7, 17,
         (*ON, "network.hidden=9,9,9", "loss.grad_budget=0.02", "loss.branch_reduction=sum", "replay.n_step=2",
          "causal.groups=5"), seed=4),
]  # fmt: skip


def f64(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(array, np.float64) for name, array in tensors.items()}


@dataclasses.dataclass
class Fed:
    """Of one step: settings as latched, rows R of which M have a loss and B were drawn, the parameters of its forward pass."""

    taken: Taken

    def __post_init__(self) -> None:
        made, before, record = self.taken.learner, self.taken.before, self.taken.record
        layout, config, rows = made.layout, made.config, made.rows
        self.config, self.branches = config, layout.branches
        self.B, self.M, self.R = made.drawn.size, made.batch.size, rows.size
        step = made.step_block.to_numpy()[0]
        self.alpha, self.smoothing, self.budget = (
            float(step[n]) for n in ("alpha_c51", "label_smoothing", "grad_budget")
        )
        self.z = np.float64(step["v_min"]) + np.arange(layout.atoms) * np.float64(step["delta_z"])
        size = layout.state_dim
        self.state, self.next_state = (b.to_numpy()[:, :size].astype(np.float64) for b in (rows.state, rows.next_state))
        self.windows, self.next_windows = (
            (w.states.to_numpy()[..., :size].astype(np.float64), w.length.to_numpy()) for w in rows.windows
        )
        self.depth = made.depth.to_numpy().astype(np.float64)  # type: ignore[union-attr]
        batch = made.batch
        self.ret, self.own_ret, self.raw_ret, self.discount, priority = (
            b.to_numpy()[: self.M].astype(np.float64)
            for b in (made.shaped_ret, made.ret, batch.ret, batch.discount, batch.priority)
        )
        self.weight = (priority[: self.B].min() / priority) ** float(step["beta_per"])
        self.share = 1.0 / len(self.branches) if config.loss.branch_reduction == "mean" else 1.0
        self.taken_actions = oracle.choices(batch.action.to_numpy(), self.branches)
        self.greedy = made.ddqn.next_action.to_numpy()[: self.M]
        self.first = np.concatenate([[0], np.cumsum(self.branches)[:-1]])
        iqn, denoise = extension(made, Iqn), extension(made, Denoise)
        self.tau, self.tau_next = iqn.tau.to_numpy().astype(np.float64)[:, : self.M]
        self.clean = made.drawn.state.to_numpy()[:, :size].astype(np.float64)[denoise.source.to_numpy()]
        self.horizons, self.plan = horizons.parts(made), plan.columns(made)
        self.homeostat = float(before["homeostat.weight"][0])
        theta, self.target, self.m, self.v = (f64(layout.unpack(before[n])) for n in ("theta", "target", "m", "v"))
        for group in layout.groups:  # popart, where sigma moved: van Hasselt 2016 without the shift
            for name in group.output_scaled:
                for tensors, power in ((theta, 1), (self.target, 1), (self.m, 1), (self.v, 2)):
                    tensors[f"{group.name}.{name}"] /= float(record["popart_scale"]) ** power
        names = [f"trunk.{i}.weight" for i in range(len(layout.hidden))]
        bound = float(np.float32(config.spectral.sigma_max))
        ours = vectors([layer.weight for layer in layout.layers[: len(names)]], before["spectral.v"])
        projected = [iterate(theta[name], v, bound) for name, v in zip(names, ours, strict=True)]
        theta.update({name: w for name, (w, _, _) in zip(names, projected, strict=True)})
        assert any(sigma > bound for _, _, sigma in projected), "the bound bites"
        self.theta = theta


def trunk(p: Any, f: Fed, windows: Any, state: Any, depth: Any = None) -> Any:
    """(R, H): temporal block, attention, residual layers with stochastic depth."""
    t, a = f.config.temporal, f.config.attention
    x = mamba(p, windows, state, heads=t.heads, head_dim=t.head_dim, state_dim=t.state_dim, conv=t.conv)
    x = attention(p, windows, x, heads=a.heads, head_dim=a.head_dim)
    for i in range(len(f.config.network.hidden)):
        out = jax.nn.relu(x @ p[f"trunk.{i}.weight"] + p[f"trunk.{i}.bias"])
        x = out if i == 0 else x + (1.0 if depth is None else depth[i - 1][:, None]) * out
    return x


def heads(p: Any, f: Fed, x: Any) -> list[list[Any]]:
    """Logits (rows, n_b, N) a branch: of the network's own head, then of each of the ensemble's."""
    n, value = len(f.z), (x @ p["value.weight"] + p["value.bias"])[:, None, :]
    own = jnp.concatenate([x @ p[f"branch.{b}.weight"] + p[f"branch.{b}.bias"] for b in range(len(f.branches))], axis=1)
    every = jnp.concatenate([own, x @ p["ensemble.weight"] + p["ensemble.bias"]], axis=1)
    found = []
    for head in jnp.split(every.reshape(len(x), -1, n), f.config.ensemble.heads, axis=1):
        parts = jnp.split(head, f.first[1:], axis=1)
        found.append([value + a - a.mean(1, keepdims=True) for a in parts])
    return found


def at(head: list[Any], actions: Any) -> Any:
    """(rows, K, N) logits of one action a branch."""
    return jnp.stack([x[jnp.arange(len(x)), actions[:, b]] for b, x in enumerate(head)], axis=1)


def expected(logits: Any, f: Fed) -> Any:
    return (jax.nn.softmax(logits, axis=-1) * f.z).sum(-1)


def of_logits(every: list[list[Any]], f: Fed, targets: list[Any]) -> dict[str, Any]:
    """Losses of the heads' logits, (M,) each."""

    def blend(head: list[Any], target: Any) -> tuple[Any, Any]:
        log_p = jax.nn.log_softmax(at(head, f.taken_actions), axis=-1)
        smooth = (1.0 - f.smoothing) * target + f.smoothing / len(f.z)
        q, y = (jnp.exp(log_p) * f.z).sum(-1), (target * f.z).sum(-1)
        return (f.share * f.weight * f.alpha * -(smooth * log_p).sum((1, 2)),
                f.share * f.weight * (1.0 - f.alpha) * ((q - y) ** 2).sum(1))  # fmt: skip

    ce, mse = blend(every[0], targets[0])
    q = [expected(x, f) for x in every[0]]
    conservative = sum(
        jax.nn.logsumexp(x, axis=-1) - x[jnp.arange(f.M), f.taken_actions[:, b]] for b, x in enumerate(q)
    )
    log_p = jax.nn.log_softmax(at(every[0], f.taken_actions), axis=-1)
    h, (low, high) = (
        -(jnp.exp(log_p) * log_p).sum(-1) / np.log(len(f.z)),
        np.float32(f.config.homeostat.entropy).astype(float),
    )
    outside = (jnp.maximum(low - h, 0.0) ** 2 + jnp.maximum(h - high, 0.0) ** 2).sum(1)
    others = [sum(blend(head, target)) for head, target in zip(every[1:], targets[1:], strict=True)]
    alike = similarity(values(every, f.z), dataclasses.replace(_SETTINGS, branches=f.branches, atoms=len(f.z), v_min=f.z[0],
                                                               v_max=f.z[-1]), f.config.ensemble.spread)  # fmt: skip
    return {"ce": ce / f.M, "mse": mse / f.M, "cql": f.config.cql.alpha * f.share * conservative / f.M,
            "entropy": f.homeostat * f.share * outside / f.M,
            "ensemble": (sum(others) / len(others) + f.config.ensemble.diversity * alike) / f.M}  # fmt: skip


_SETTINGS = oracle.Settings((1,), 2, 0.0, 1.0, 0.0, 0.0, 0.0)


def iqn(p: Any, psi: Any, f: Fed, y: Any) -> Any:
    kappa = f.config.iqn.kappa
    one = jax.vmap(
        jax.vmap(lambda z, t, y: rlax.quantile_regression_loss(z, t, y, kappa) / kappa, (0, None, 0)), (0, 0, 0)
    )
    z = quantiles(p, psi, f.tau, f.taken_actions + f.first)
    return f.share * f.weight * one(z, f.tau, y).sum(1) / f.M


def denoise(p: Any, psi: Any, f: Fed) -> Any:
    return ((psi @ p["denoise.weight"] + p["denoise.bias"] - f.clean) ** 2).mean(1) / (f.R - f.M)


def own_heads(p: Any, psi: Any, f: Fed, q: Any) -> dict[str, Any]:
    """Losses of the heads whose gradient ends at the trunk's output: IQL, selectivity, risk, horizons, plan."""

    def out(name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    x, ret, level = (
        psi[: f.B],
        f.raw_ret[: f.B],
        f.config.risk.level,
    )  # these learn from the rows drawn, never from hindsight
    u = q - out("iql_v", psi[: f.M])[:, 0]
    low, shortfall = out("risk", x).T
    error, held = ret - low, jax.lax.stop_gradient(low)
    tail = held + jnp.minimum(ret - held, 0.0) / level
    return {
        "iql": jnp.where(u < 0.0, 1.0 - f.config.iql.tau, f.config.iql.tau) * u**2 / f.M,
        "selectivity": optax.sigmoid_binary_cross_entropy(out("selectivity", x)[:, 0], (ret > 0) * 1.0) / f.B,
        "risk": (jnp.maximum(level * error, (level - 1.0) * error) + (shortfall - tail) ** 2) / f.B,
        "horizons": (f.horizons["valid"] * (out("horizons", x) - f.horizons["label"]) ** 2).sum(1) / f.B,
        "plan": f.plan["trained"] * optax.sigmoid_binary_cross_entropy(out("plan", x)[:, 0], f.plan["label"]) / f.B,
    }  # fmt: skip


def reference(f: Fed) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Gradient by each loss; of each element the sum of its terms' sizes, row by row and loss by loss; the budget's factors;
    |delta|.

    Where a loss has a factor on what the trunk gets of it alone, it is counted twice: once with its own parameters held, once
    with the trunk's output held.
    """
    shares = {"ce": 0.7, "mse": 1.0, "cql": f.config.cql.budget_share, "entropy": f.config.homeostat.budget_share,
              "ensemble": f.config.ensemble.budget_share, "iqn": f.config.iqn.budget_share,
              "denoise": f.config.denoise.budget_share}  # fmt: skip

    def scale(name: str, by: Any) -> Any:
        norm, limit = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(by))), shares[name] * f.budget
        return jnp.where(norm > limit, limit / norm, 1.0) if f.budget > 0.0 else jnp.ones(())

    @jax.jit
    def everything(theta: Any, target: Any) -> Any:
        cut = jax.lax.stop_gradient
        following = trunk(target, f, f.next_windows, f.next_state)[: f.M]
        targets = [oracle.project(jax.nn.softmax(at(head, f.greedy), axis=-1), f.ret, f.discount, f.z)
                   for head in heads(target, f, following)]  # fmt: skip
        y = f.own_ret[:, None, None] + f.discount[:, None, None] * quantiles(
            target, following, f.tau_next, f.greedy + f.first
        )
        q = expected(at(heads(target, f, trunk(target, f, f.windows, f.state)[: f.M])[0], f.taken_actions), f).mean(1)
        psi = trunk(theta, f, f.windows, f.state, f.depth)
        logits = heads(theta, f, psi[: f.M])
        factor = {name: scale(name, jax.grad(lambda x, name=name: of_logits(x, f, targets)[name].sum())(logits))
                  for name in ("ce", "mse", "cql", "entropy", "ensemble")}  # fmt: skip
        factor["iqn"] = scale("iqn", jax.grad(lambda x: iqn(theta, x, f, y).sum())(psi[: f.M]))
        weight = f.config.denoise.trunk_weight
        factor["denoise"] = scale("denoise", jax.grad(lambda x: weight * denoise(theta, x, f).sum())(psi[f.M :]))

        delta = jnp.abs(expected(at(logits[0], f.taken_actions), f) - (targets[0] * f.z).sum(-1)).mean(1)

        def terms(p: Any) -> Any:
            psi = trunk(p, f, f.windows, f.state, f.depth)
            x, noised = psi[: f.M], psi[f.M :]
            parts = {name: factor[name] * each for name, each in of_logits(heads(p, f, x), f, targets).items()}
            parts |= {"iqn through the trunk": factor["iqn"] * iqn(cut(p), x, f, y), "iqn": iqn(p, cut(x), f, y)}
            parts |= {"denoise through the trunk": weight * factor["denoise"] * denoise(cut(p), noised, f),
                      "denoise": denoise(p, cut(noised), f)}  # fmt: skip
            return {**parts, **own_heads(p, cut(psi), f, q)}

        by_term = jax.jacrev(terms)(theta)
        parts, sizes = (
            {part: {k: size(j).sum(0) for k, j in tensors.items()} for part, tensors in by_term.items()}
            for size in (jnp.asarray, jnp.abs)
        )
        return parts, {k: sum(tensors[k] for tensors in sizes.values()) for k in theta}, factor, delta

    return jax.tree.map(np.asarray, everything(f.theta, f.target))  # type: ignore[no-any-return]


@pytest.mark.timeout(900)  # JAX compiles for seconds, on a busy machine for minutes
@pytest.mark.parametrize("case", [CASES[0], pytest.param(CASES[1], marks=pytest.mark.slow)], ids=lambda case: case.name)
def test_gradients_updates_and_priorities(runtime: Runtime, case: Case) -> None:
    taken = take_step(runtime, case, lambda learner: learner.begin_epoch(1))
    made, fed = taken.learner, Fed(taken)
    parts, magnitude, factor, delta = reference(fed)
    gradient = {name: sum(part[name] for part in parts.values()) for name in fed.theta}
    mask = extension(made, Prune).mask.to_numpy()
    found = made.layout.unpack(made.grad.grad.to_numpy())
    assert set(found) == set(gradient) and WARM_UP % made.config.vaccine.period
    pruned = made.layout.unpack(np.concatenate([mask, np.ones(made.layout.size - len(mask), np.float32)]))
    assert any((pruned[f"trunk.{i}.weight"] == 0).any() for i in range(len(case.hidden)))
    for name, array in found.items():
        check = oracle.check_gradient if gradient[name].any() else oracle.compare  # a branch of one action has none
        print(check(name, array, gradient[name] * pruned[name], magnitude[name]))
    for part, tensors in parts.items():
        share = max(float((np.abs(g * pruned[n]) / (2e-5 * magnitude[n] + 1e-12)).max()) for n, g in tensors.items())
        assert share > 10.0, f"without {part} the test would pass"
    check_factors(taken, fed, factor)
    check_updates(taken, fed, pruned)
    check_priorities(taken, fed, delta)
    made.close()


def check_factors(taken: Taken, fed: Fed, factor: dict[str, Any]) -> None:
    for name, key in {"ce": "ce_scale", "mse": "mse_scale", "cql": "cql_scale", "entropy": "homeostat_scale",
                      "ensemble": "ensemble_scale", "iqn": "iqn_scale", "denoise": "denoise_scale"}.items():  # fmt: skip
        assert taken.record[key] == pytest.approx(factor[name], rel=1e-4), key
        assert (factor[name] < 1.0) == (fed.budget > 0.0 and name != "entropy"), (
            f"{name}: the budget bites where there is one"
        )


def check_updates(taken: Taken, fed: Fed, pruned: dict[str, Any]) -> None:
    """Adam of every optimizer, and Polyak, from our own gradient."""
    made, optim = taken.learner, taken.learner.config.optim
    layout, step = made.layout, made.step_block.to_numpy()[0]
    found = {name: layout.unpack(getattr(made.adam, name).to_numpy()) for name in ("theta", "target", "m", "v")}
    gradient, lr, tau = f64(layout.unpack(made.grad.grad.to_numpy())), float(step["lr"]), float(step["tau"])
    beta1, beta2, eps, decay = (float(step[n]) for n in ("adam_beta1", "adam_beta2", "adam_eps", "weight_decay"))
    decays = {s.name: s.decayed for segments in layout.group_segments.values() for s in segments}
    own = {g.name: (g.lr_factor, g.max_grad_norm) for g in layout.groups if g.max_grad_norm is not None}
    for owner in ("", *own):  # the network, and what is clipped with it, first
        names = [n for n in gradient if (n.partition(".")[0] if n.partition(".")[0] in own else "") == owner]
        factor, max_norm = own.get(owner, (1.0, optim.max_grad_norm))
        flat = [np.concatenate([tree[n].ravel() for n in names]) for tree in (fed.theta, gradient, fed.m, fed.v)]
        decayed = np.concatenate([np.full(gradient[n].size, decays.get(n, n.endswith("weight"))) for n in names])
        after = oracle.adamw(*flat, WARM_UP + 1, lr=lr * factor, beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay,
                             decayed=decayed, max_norm=float(max_norm))  # fmt: skip
        clip = min(1.0, float(max_norm) / np.linalg.norm(flat[1]))
        ends = np.cumsum([gradient[n].size for n in names])[:-1]
        for name, *parts in zip(names, *(np.split(array, ends) for array in after), strict=True):
            theta, m, v = (part.reshape(gradient[name].shape) for part in parts)
            target = (1.0 - tau) * fed.target[name] + tau * found["theta"][name].astype(np.float64)
            for kind, ref, terms in (
                ("theta", theta * pruned[name], 1e-2 * np.abs(theta) + lr * factor),
                ("m", m, beta1 * np.abs(fed.m[name]) + clip * np.abs(gradient[name])),
                ("v", v, v),
                ("target", target * pruned[name], 1e-2 * np.abs(target)),
            ):
                oracle.compare(f"{name}: {kind}", found[kind][name], ref, terms)


def check_priorities(taken: Taken, fed: Fed, delta: Any) -> None:
    """|delta| of the rows drawn, modulated by the advantage; what stands in the ring after it."""
    made, iql, replay = taken.learner, taken.learner.config.iql, taken.learner.config.replay
    advantage = extension(made, Iql).rows.to_numpy()[: fed.B, 2].astype(np.float64)
    factor = np.clip(np.exp(iql.beta * advantage), iql.modulation_low, iql.modulation_high)
    modulated = made.drawn.td_error.to_numpy()
    np.testing.assert_allclose(modulated, delta[: fed.B] * factor, rtol=2e-5, atol=2e-6 * np.abs(fed.z).max())
    priority = taken.before["priority"].astype(np.float64)
    priority[made.drawn.index.to_numpy()] = (modulated.astype(np.float64) + replay.eps) ** replay.alpha
    np.testing.assert_allclose(made.replay.priority.to_numpy(), priority, rtol=1e-5)
