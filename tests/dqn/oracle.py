"""The whole core step in float64, from published implementations: JAX for the network and autodiff, rlax for the Bellman
projection, optax for clip and AdamW. Nothing here was derived from the kernels.

The oracle is fed what is a choice and not arithmetic: the rows that were drawn and the greedy actions a*. Those are checked
apart (`check_greedy` with its margin; sampling in tests/replay).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

with warnings.catch_warnings():  # its dependencies use names that JAX deprecated
    warnings.simplefilter("ignore")
    import rlax

jax.config.update("jax_enable_x64", True)

F64 = npt.NDArray[np.float64]
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Transitions:
    """Rows as they were inserted, oldest first, E environments interleaved, none overwritten."""

    state: F64  # (n, S)
    next_state: F64  # (n, S)
    action: npt.NDArray[np.int32]  # (n,)
    reward: F64  # (n,) raw
    terminated: npt.NDArray[np.bool_]  # (n,)
    truncated: npt.NDArray[np.bool_]  # (n,)
    environments: int


@dataclass(frozen=True)
class Batch:
    """What the loss sees."""

    state: F64
    next_state: F64
    action: npt.NDArray[np.int32]
    ret: F64
    discount: F64
    weight: F64


@dataclass(frozen=True)
class Settings:
    """Values of the step, as latched."""

    branches: tuple[int, ...]
    atoms: int
    v_min: float
    v_max: float
    alpha_c51: float
    smoothing: float
    budget: float
    reduction: str = "mean"
    blocks: tuple[Callable[[Tensors, Any, Any], Any], ...] = ()
    """In front of the trunk: each makes (B, S) of the parameters, the windows (states, length), and the state so far."""
    residual: bool = False  # layers of the trunk as wide as the one before are blocks x + f(x)

    @property
    def z(self) -> F64:
        return np.linspace(self.v_min, self.v_max, self.atoms)


def gather(rows: Transitions, index: Sequence[int], n_step: int, gamma: float, scale: float, weight: F64) -> Batch:
    """The n-step transitions of the rows drawn: R = sum_k gamma^k r_k until the window or the episode ends."""
    out: dict[str, list[Any]] = {"ret": [], "discount": [], "next": []}
    for first in index:
        ret, factor, i = 0.0, 1.0, int(first)
        for k in range(n_step):
            i = int(first) + k * rows.environments
            ret += factor * rows.reward[i] * scale
            factor *= gamma
            if rows.terminated[i] or rows.truncated[i]:
                break
        out["ret"].append(ret)
        out["discount"].append(0.0 if rows.terminated[i] else factor)
        out["next"].append(rows.next_state[i])
    index = np.asarray(index)
    return Batch(rows.state[index], np.array(out["next"]), rows.action[index], np.array(out["ret"]),
                 np.array(out["discount"]), weight)  # fmt: skip


def trunk_input(params: Tensors, x: Any, settings: Settings) -> Any:
    """What the blocks make of the state; with blocks ``x`` is (windows (B, L, S), lengths (B,)), without the state itself."""
    if not settings.blocks:
        return x
    windows, state = x, x[0][:, -1]
    for block in settings.blocks:
        state = block(params, windows, state)
    return state


def forward(params: Tensors, x: Any, settings: Settings, xp: Any = jnp, depth: F64 | None = None) -> list[Any]:
    """Logits per branch, (B, n_b, N): linear + ReLU trunk, dueling heads. `xp` is JAX's NumPy or NumPy; ``depth`` (blocks, B):
    factors on the residual blocks of each row."""
    layers = sorted({name.rsplit(".", 1)[0] for name in params if name.startswith("trunk")}, key=lambda s: int(s[6:]))
    x, blocks = trunk_input(params, x, settings), _blocks(params, layers, settings)
    for i, layer in enumerate(layers):
        f = x @ params[f"{layer}.weight"] + params[f"{layer}.bias"]
        f = xp.where(f > 0.0, f, 0.0)
        x = x + _factor(depth, blocks[i]) * f if i in blocks else f
    value = (x @ params["value.weight"] + params["value.bias"])[:, None, :]
    out = []
    for b, n in enumerate(settings.branches):
        advantage = (x @ params[f"branch.{b}.weight"] + params[f"branch.{b}.bias"]).reshape(-1, n, settings.atoms)
        out.append(value + advantage - advantage.mean(axis=1, keepdims=True))
    return out


def _blocks(params: Tensors, layers: Sequence[str], settings: Settings) -> dict[int, int]:
    """Layers of the trunk that are residual blocks, and which block each is."""
    square = [i for i, layer in enumerate(layers) if i and len(set(params[f"{layer}.weight"].shape)) == 1]
    return {layer: block for block, layer in enumerate(square)} if settings.residual else {}


def _factor(depth: F64 | None, block: int) -> Any:
    """(B, 1) factors on a block."""
    return 1.0 if depth is None else depth[block][:, None]


def choices(action: npt.NDArray[np.int32], branches: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """(B, K) from the mixed radix, branch 0 slowest."""
    return np.stack(np.unravel_index(action, branches), axis=1)


def taken_logits(params: Tensors, state: Any, taken: Any, settings: Settings, depth: F64 | None = None) -> Any:
    """(B, K, N) logits of one action per branch."""
    rows = jnp.arange(len(taken))
    branches = forward(params, state, settings, depth=depth)
    return jnp.stack([x[rows, taken[:, b]] for b, x in enumerate(branches)], axis=1)


@jax.jit  # a fifth of what compiling operation by operation takes
def project(p_next: Any, ret: Any, discount: Any, z: Any) -> Any:
    """(B, K, N): rlax's categorical projection of each branch's distribution."""
    one = jax.vmap(rlax.categorical_l2_project, in_axes=(None, 0, None))  # branches
    return jax.vmap(one, in_axes=(0, 0, None))(ret[:, None] + discount[:, None] * z, p_next, z)


def parts(logits: Any, target: Any, weight: Any, settings: Settings) -> tuple[Any, Any]:
    """The weighted cross-entropy part and expected-value part of the loss, each with its share of the blend."""
    z, n, k = settings.z, settings.atoms, len(settings.branches)
    smooth = (1.0 - settings.smoothing) * target + settings.smoothing / n
    log_p = jax.nn.log_softmax(logits, axis=-1)
    ce = -(smooth * log_p).sum(-1).sum(-1)
    q, y = (jnp.exp(log_p) * z).sum(-1), (target * z).sum(-1)
    mse = ((q - y) ** 2).sum(-1)
    scale = weight * (1.0 / k if settings.reduction == "mean" else 1.0)
    return settings.alpha_c51 * (scale * ce).mean(), (1.0 - settings.alpha_c51) * (scale * mse).mean()


@dataclass(frozen=True)
class Result:
    """What the oracle says about one step's loss."""

    loss: float  # blend before the budget
    ce: float  # unit weights, mean over the branches
    mse: float
    td_error: F64  # (B,)
    target: F64  # (B, K, N)
    q: F64  # (B, K)
    scales: tuple[float, float]  # budget
    gradient: dict[str, F64]
    magnitude: dict[str, F64]  # sum of the absolute values of each gradient element's terms
    input_magnitude: F64  # (B, S) the same of the gradient by the trunk's input


@cache
def _compiled(settings: Settings) -> Callable[..., dict[str, Any]]:
    """The loss and its gradient, compiled once for these settings and each shape, not once a call or an operation."""
    limits = (0.7 * settings.budget, settings.budget)

    @jax.jit
    def everything(params: Tensors, target_params: Tensors, state: Any, next_state: Any, ret: Any, discount: Any,
                   weight: Any, a_star: Any, taken: Any, depth: Any) -> dict[str, Any]:  # fmt: skip
        p_next = jax.nn.softmax(taken_logits(target_params, next_state, a_star, settings), axis=-1)
        target = jax.lax.stop_gradient(project(p_next, ret, discount, settings.z))
        logits, to_params = jax.vjp(lambda p: taken_logits(p, state, taken, settings, depth), params)
        blend, to_logits = jax.vjp(lambda x: parts(x, target, weight, settings), logits)
        by_part = [to_logits(unit)[0] for unit in ((1.0, 0.0), (0.0, 1.0))]
        norms = [jnp.linalg.norm(gradient) for gradient in by_part]
        scales = [jnp.where(norm > limit, limit / norm, 1.0) if settings.budget > 0.0 else jnp.ones(())
                  for limit, norm in zip(limits, norms, strict=True)]  # fmt: skip
        gradient = scales[0] * by_part[0] + scales[1] * by_part[1]
        return {"target": target, "p": jax.nn.softmax(logits, axis=-1), "log_p": jax.nn.log_softmax(logits, axis=-1),
                "scales": scales, "loss": sum(blend), "gradient": to_params(gradient)[0]}  # fmt: skip

    return everything


def loss(params: Tensors, target_params: Tensors, batch: Batch, a_star: npt.NDArray[np.int32],
         settings: Settings, depth: F64 | None = None) -> Result:  # fmt: skip
    """Loss, |delta| and the gradient by the online parameters. ``depth`` (blocks, B): factors on residual blocks, in the online
    pass on s alone."""
    params, target_params = _f64(params), _f64(target_params)
    taken = choices(batch.action, settings.branches)
    z = settings.z
    everything = _compiled(settings)
    out = jax.tree.map(np.asarray, everything(params, target_params, batch.state, batch.next_state, batch.ret,
                                              batch.discount, batch.weight, a_star, taken, depth))  # fmt: skip
    scales = (float(out["scales"][0]), float(out["scales"][1]))
    q, y = (out["p"] * z).sum(-1), (out["target"] * z).sum(-1)
    smooth = (1.0 - settings.smoothing) * out["target"] + settings.smoothing / settings.atoms
    size = _terms(out["p"], smooth, q, y, batch.weight, scales, settings)
    state = np.asarray(trunk_input(params, batch.state, settings))
    magnitude, by_input = _magnitude(params, state, taken, size, settings, depth)
    return Result(float(out["loss"]), float(-(smooth * out["log_p"]).sum(-1).mean()), float(((q - y) ** 2).mean()),
                  np.abs(q - y).mean(-1), out["target"], q, scales, out["gradient"], magnitude, by_input)  # fmt: skip


def _terms(p: F64, smooth: F64, q: F64, y: F64, weight: F64, scales: tuple[float, float], s: Settings) -> F64:
    """Sum of the absolute terms of dloss/dlogits of the taken actions, (B, K, N)."""
    k = len(s.branches)
    scale = (weight / len(weight) * (1.0 / k if s.reduction == "mean" else 1.0))[:, None, None]
    ce = s.alpha_c51 * scales[0] * (p + smooth)
    spread = (np.abs(q) + np.abs(y))[..., None] * p * (np.abs(s.z) + np.abs(q)[..., None])
    return np.asarray(scale * (ce + (1.0 - s.alpha_c51) * scales[1] * 2.0 * spread))


def _magnitude(params: Tensors, state: F64, taken: npt.NDArray[np.int64], size: F64,
               s: Settings, depth: F64 | None) -> tuple[dict[str, F64], F64]:  # fmt: skip
    """Walks the network back with absolute values: what each gradient element's terms add up to without cancellation; the
    same of the gradient by the trunk's input."""
    layers = sorted({n.rsplit(".", 1)[0] for n in params if n.startswith("trunk")}, key=lambda t: int(t[6:]))
    p = {name: np.asarray(value) for name, value in params.items()}
    kept, slope, blocks = [state], [], _blocks(params, layers, s)
    for i, layer in enumerate(layers):
        f = np.maximum(kept[-1] @ p[f"{layer}.weight"] + p[f"{layer}.bias"], 0.0)
        factor = _factor(depth, blocks[i]) if i in blocks else 1.0
        slope.append((f > 0.0) * factor)
        kept.append(kept[-1] + factor * f if i in blocks else f)
    out, dx = {}, np.zeros_like(kept[-1])
    for b, n in enumerate(s.branches):
        one_hot = np.eye(n)[taken[:, b]]
        d = ((one_hot + 1.0 / n)[:, :, None] * size[:, b, None, :]).reshape(len(state), -1)
        out[f"branch.{b}.weight"], out[f"branch.{b}.bias"] = np.abs(kept[-1]).T @ d, d.sum(0)
        dx += d @ np.abs(p[f"branch.{b}.weight"]).T
    d = size.sum(1)
    out["value.weight"], out["value.bias"] = np.abs(kept[-1]).T @ d, d.sum(0)
    dx += d @ np.abs(p["value.weight"]).T
    for i in reversed(range(len(layers))):
        d = dx * slope[i]
        out[f"{layers[i]}.weight"], out[f"{layers[i]}.bias"] = np.abs(kept[i]).T @ d, d.sum(0)
        dx = d @ np.abs(p[f"{layers[i]}.weight"]).T + (dx if i in blocks else 0.0)
    return out, dx


def check_greedy(params: Tensors, next_state: F64, a_star: npt.NDArray[np.int32], settings: Settings) -> float:
    """Asserts that a* maximizes the expected return of the online network at s', to within float32 of the support, and that
    among equals it is the first; returns the smallest gap between best and second best."""
    gap = math.inf
    for b, branch in enumerate(forward(_f64(params), next_state, settings, np)):
        p = np.exp(branch - branch.max(-1, keepdims=True))
        q = (p * settings.z).sum(-1) / p.sum(-1)
        best = q.max(-1)
        margin = 2e-6 * np.abs(settings.z).max()
        chosen = q[np.arange(len(q)), a_star[:, b]]
        assert (chosen >= best - margin).all(), f"branch {b}: a* loses {np.max(best - chosen)}, margin {margin}"
        if q.shape[1] > 1:
            gap = min(gap, float(np.min(best - np.sort(q, axis=-1)[:, -2])))
    return gap


def adamw(theta: F64, gradient: F64, m: F64, v: F64, t: int, *, lr: float, beta1: float, beta2: float, eps: float,
          weight_decay: float, decayed: npt.NDArray[np.bool_], max_norm: float) -> tuple[F64, F64, F64]:  # fmt: skip
    """optax: clip by global norm, then AdamW from given moments at step t (counted from 1). Returns theta, m, v."""
    parts = {"yes": decayed, "no": ~decayed}

    def split(a: F64) -> Tensors:  # zeros behind: they change no norm and share a compilation
        out = {name: a[mask] for name, mask in parts.items()}
        return {name: np.pad(x, (0, 4 ** math.ceil(math.log(len(x) + 1, 4)) - len(x))) for name, x in out.items()}

    options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay, "max_norm": max_norm}
    found = _adamw(split(theta), split(gradient), split(m), split(v), t, options)

    def join(tree: Tensors) -> F64:
        out = np.empty_like(theta)
        for name, mask in parts.items():
            out[mask] = np.asarray(tree[name])[: mask.sum()]
        return out

    return join(found[0]), join(found[1]), join(found[2])


@jax.jit
def _adamw(theta: Tensors, gradient: Tensors, m: Tensors, v: Tensors, t: Any, options: Tensors) -> tuple[Any, Any, Any]:
    chain = optax.chain(
        optax.clip_by_global_norm(options["max_norm"]),
        optax.adamw(options["lr"], options["beta1"], options["beta2"], options["eps"],
                    weight_decay=options["weight_decay"], mask=lambda _: {"yes": True, "no": False}),
    )  # fmt: skip

    def with_moments(node: Any) -> Any:
        if isinstance(node, optax.ScaleByAdamState):
            return node._replace(count=jnp.asarray(t - 1, jnp.int32), mu=m, nu=v)
        return tuple(map(with_moments, node)) if type(node) is tuple else node

    updates, state = chain.update(gradient, with_moments(chain.init(theta)), theta)
    adam = next(n for n in jax.tree.leaves(state, is_leaf=lambda n: isinstance(n, optax.ScaleByAdamState))
                if isinstance(n, optax.ScaleByAdamState))  # fmt: skip
    return optax.apply_updates(theta, updates), adam.mu, adam.nu


def _f64(tensors: Tensors) -> Tensors:
    return {name: np.asarray(value, np.float64) for name, value in tensors.items()}


def check_gradient(name: str, found: npt.ArrayLike, reference: npt.ArrayLike, magnitude: npt.ArrayLike) -> str:
    """`compare`, after making sure that it would notice a gradient that is missing."""
    with contextlib.suppress(AssertionError):
        compare(name, np.zeros_like(np.asarray(found)), reference, magnitude)
        raise RuntimeError(
            f"{name}: zeros would pass as its gradient: the bound is too loose, or there is nothing to test"
        )
    return compare(name, found, reference, magnitude)


def compare(name: str, found: npt.ArrayLike, reference: npt.ArrayLike, magnitude: npt.ArrayLike, *,
            relative: float = 2e-5, absolute: float = 1e-6) -> str:  # fmt: skip
    """Asserts |found - reference| <= relative * sum|terms| + absolute * rms(reference), and describes the worst element."""
    x, ref, size = (np.asarray(a, np.float64) for a in (found, reference, magnitude))
    assert x.shape == ref.shape, f"{name}: shape {x.shape}, the reference has {ref.shape}"
    allowed = relative * np.abs(size) + absolute * math.sqrt(float(np.mean(ref**2))) + 1e-300
    share = np.where(np.isfinite(x), np.abs(x - ref), np.inf) / allowed
    worst = np.unravel_index(int(np.argmax(share)), share.shape)
    text = f"{name}{list(map(int, worst))}: {x[worst]!r} against {ref[worst]!r}, {share[worst]:.3f} of the budget"
    assert share[worst] <= 1.0, text
    return text
