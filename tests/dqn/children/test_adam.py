"""adam: clip, AdamW and Polyak against optax in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
import pytest

import foxhunt_rt as fx
from foxhunt_rt.dqn.children import adam
from foxhunt_rt.dqn.groups import Groups
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.kernels import abi

jax.config.update("jax_enable_x64", True)

LAYOUT = NetworkLayout(33, (17, 9), (2, 4), 13)
LARGE = NetworkLayout(100, (400, 300), (5, 3), 51)  # blocks of 4,096 elements, with a tail


class Optimizer:
    """The adam child over a small plan, driven step by step."""

    def __init__(
        self, runtime: fx.Runtime, layout: NetworkLayout, parts: int = 5, seed: int = 0, **step: float
    ) -> None:
        self.layout, self.random = layout, np.random.default_rng(seed)
        self.real = ~layout.pads()
        self.values = (
            dict(
                lr=1e-2,
                adam_beta1=0.9,
                adam_beta2=0.99,
                adam_eps=1e-8,
                weight_decay=0.0,
                momentum_factor=1.0,
                max_grad_norm=1e9,
                tau=0.05,
            )
            | step
        )
        self.step = runtime.zeros(1, abi.dtype("step_block"), "step")
        self.grad = runtime.zeros(layout.size, np.float32, "grad")
        self.guard = runtime.zeros(1, abi.dtype("guard_block"), "guard")
        self.guard.copy_from(np.array([(2**64 - 1,)], abi.dtype("guard_block")))
        self.buffers = adam.AdamBuffers.create(runtime, layout)
        self.buffers.load(layout.pack(layout.init(seed)))
        plan = runtime.plan("adam")
        self.groups = Groups(layout, parts)
        self.norm_part = runtime.zeros(self.groups.parts, np.float64, "norm_part")
        adam.add(plan, layout, adam.AdamInputs(self.grad, self.norm_part, self.step, self.guard, self.groups.table(runtime)),
                 self.buffers)  # fmt: skip
        self.graph = plan.build(ungraphed=False)
        self.t = 0

    def gradient(self, scale: float = 1.0) -> Any:
        return np.where(self.real, self.random.standard_normal(self.layout.size) * scale, 0).astype(np.float32)

    def run(self, grad: Any, **changed: float) -> None:
        self.t += 1
        values = self.values | changed
        values["bias1"] = 1 - values["adam_beta1"] ** self.t
        values["bias2"] = 1 - values["adam_beta2"] ** self.t
        values["adam_step"] = self.t
        block = np.zeros(1, abi.dtype("step_block"))
        for name, value in values.items():
            block[name] = value
        self.step.copy_from(block)
        self.grad.copy_from(grad)
        squares = np.zeros(self.groups.parts)
        ranges = {
            name: (*self.layout.group_range(name), *self.groups.parts_of(name)) for name in self.layout.group_segments
        }
        for begin, stop, first, last in [(0, self.layout.network_size, 0, self.groups.network_parts), *ranges.values()]:
            starts = np.linspace(0, stop - begin, last - first, endpoint=False, dtype=int)
            squares[first:last] = np.add.reduceat(grad[begin:stop].astype(np.float64) ** 2, starts)
        self.norm_part.copy_from(squares)
        self.graph.launch()

    def state(self) -> dict[str, Any]:
        return {name: getattr(self.buffers, name).to_numpy() for name in ("theta", "target", "m", "v")}

    @property
    def stats(self) -> Any:
        return self.buffers.stats.to_numpy()[0]


def optax_steps(opt: Optimizer, theta: Any, grads: list[Any]) -> dict[str, Any]:
    """The same steps by optax in float64, with the Polyak average beside it."""
    p = {name: float(np.float32(value)) for name, value in opt.values.items()}  # the kernel sees f32 hyperparameters
    decayed = np.arange(opt.layout.size) < opt.layout.n_decay
    tx = optax.chain(
        optax.clip_by_global_norm(p["max_grad_norm"]),
        optax.scale_by_adam(p["adam_beta1"], p["adam_beta2"], p["adam_eps"]),
        optax.add_decayed_weights(p["weight_decay"], mask={"weights": True, "biases": False}),
        optax.scale(-p["lr"]),
    )  # optax.adamw, spelled out

    @jax.jit
    def step(tree: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = tx.update(tree, state, params)
        return optax.apply_updates(params, updates), state

    params = {"weights": theta[decayed].astype(np.float64), "biases": theta[~decayed].astype(np.float64)}
    target = dict(params)
    state = tx.init(params)
    for grad in grads:
        tree = {"weights": grad[decayed].astype(np.float64), "biases": grad[~decayed].astype(np.float64)}
        params, state = step(tree, state, params)
        target = {k: target[k] + p["tau"] * (params[k] - target[k]) for k in params}
    moments = next(s for s in state if hasattr(s, "mu"))

    def join(tree: Any) -> Any:
        return np.concatenate([tree["weights"], tree["biases"]])

    return {"theta": join(params), "target": join(target), "m": join(moments.mu), "v": join(moments.nu)}


@pytest.mark.parametrize("layout", [LAYOUT, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 0.5},
        {"weight_decay": 0.1},
        {"max_grad_norm": 2.0, "weight_decay": 0.01, "adam_eps": 1e-3, "tau": 1.0},
    ],
    ids=["plain", "clip", "decay", "all"],
)
def test_agrees_with_optax(runtime: fx.Runtime, layout: NetworkLayout, options: dict[str, float]) -> None:
    opt = Optimizer(runtime, layout, **options)
    theta = opt.buffers.theta.to_numpy()
    grads = [opt.gradient(10.0 ** -(i % 3)) for i in range(4)]
    for grad in grads:
        opt.run(grad)
    got, want = opt.state(), optax_steps(opt, theta, grads)
    for name, ref in want.items():
        moved = np.abs(ref - theta) if name in ("theta", "target") else np.abs(ref)
        # f32 states accumulate a rounding per step; the update itself is a quotient of two f32 sums
        budget = 2e-5 * moved + 4 * 6e-8 * np.abs(ref) + 1e-6 * np.sqrt(np.mean(moved**2))
        share = np.abs(got[name] - ref) / budget
        worst = int(np.argmax(share))
        assert share[worst] <= 1, (
            f"{name}[{worst}]: {got[name][worst]!r}, optax {ref[worst]!r}, {share[worst]:.3g} of the budget"
        )
        assert not got[name][~opt.real].any(), f"pads of {name} must stay zero"
    norm = np.sqrt(np.sum(grads[-1].astype(np.float64) ** 2))
    np.testing.assert_allclose(opt.stats["grad_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(opt.stats["clip"], min(1.0, opt.values["max_grad_norm"] / norm), rtol=1e-6)
    assert opt.stats["skipped"] == 0 and opt.guard.to_numpy()["key"][0] == 2**64 - 1


def test_decay_is_for_weights_alone(runtime: fx.Runtime) -> None:
    opt = Optimizer(runtime, LAYOUT, weight_decay=0.5, lr=0.1)
    before = opt.state()["theta"]
    opt.run(np.zeros(LAYOUT.size, np.float32))
    after = opt.state()["theta"]
    np.testing.assert_allclose(after[: LAYOUT.n_decay], before[: LAYOUT.n_decay] * 0.95, rtol=1e-6)
    np.testing.assert_array_equal(after[LAYOUT.n_decay :], before[LAYOUT.n_decay :])


def test_restart_factor_scales_the_momentum(runtime: fx.Runtime) -> None:
    opt = Optimizer(runtime, LAYOUT)
    opt.run(opt.gradient())
    m = opt.state()["m"]
    grad = opt.gradient()
    opt.run(grad, momentum_factor=0.25)
    np.testing.assert_allclose(opt.state()["m"], 0.9 * 0.25 * m.astype(np.float64) + 0.1 * grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_non_finite_norm_skips_the_update_and_raises_the_guard(runtime: fx.Runtime, bad: float) -> None:
    """1e30 stands for itself: finite, its square finite in f64, so it clips like any other."""
    opt = Optimizer(runtime, LAYOUT, max_grad_norm=1.0)
    opt.run(opt.gradient())
    before = opt.state()
    grad = opt.gradient()
    grad[10] = bad
    opt.run(grad)
    after = opt.state()
    if np.isfinite(bad):
        assert opt.stats["skipped"] == 0 and opt.guard.to_numpy()["key"][0] == 2**64 - 1
        assert all(np.isfinite(after[name]).all() for name in after)
        assert not np.array_equal(after["theta"], before["theta"])
        return
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
    assert opt.stats["skipped"] == 1 and opt.stats["clip"] == 0 and not np.isfinite(opt.stats["grad_norm"])
    key = int(opt.guard.to_numpy()["key"][0])
    assert key >> 60 == abi.constant("GUARD_ADAM_GRAD") and key >> 56 & 15 == abi.constant("CHECK_NON_FINITE")
    opt.run(opt.gradient())
    assert not np.array_equal(opt.state()["theta"], before["theta"]) and opt.stats["skipped"] == 1


def test_many_partial_sums_are_all_counted(runtime: fx.Runtime) -> None:
    opt = Optimizer(runtime, LAYOUT, parts=1000)
    grad = opt.gradient()
    opt.run(grad)
    np.testing.assert_allclose(opt.stats["grad_norm"], np.sqrt(np.sum(grad.astype(np.float64) ** 2)), rtol=1e-6)


GROUPS = dataclasses.replace(LAYOUT, groups=(
    ParameterGroup("own", (Tensor("w", (70, 90), True, 0.1), Tensor("b", (90,), False, 0.1)), 3.0, 0.5),
    ParameterGroup("shared", (Tensor("w", (3, 5), True, 0.1),), 1.0, None),
    ParameterGroup("other", (Tensor("b", (33,), False, 0.1),), 0.5, 100.0)))  # fmt: skip


def part_of(name: str) -> slice:
    """The elements of a group; "" is the network."""
    return slice(*GROUPS.group_range(name)) if name else slice(0, GROUPS.network_size)


def one_group(
    opt: Optimizer, theta: Any, grads: list[Any], names: list[str], *, lr: float, max_norm: float
) -> dict[str, Any]:
    """optax over the elements of some groups alone."""
    where = np.concatenate([np.arange(GROUPS.size)[part_of(name)] for name in names])
    decayed = np.zeros(GROUPS.size, bool)
    decayed[: GROUPS.n_decay] = True
    for segment in GROUPS.segments:
        decayed[segment.offset : segment.stop] = segment.decayed
    chain = optax.chain(
        optax.clip_by_global_norm(max_norm),
        optax.adamw(lr, opt.values["adam_beta1"], opt.values["adam_beta2"], opt.values["adam_eps"],
                    weight_decay=opt.values["weight_decay"], mask={"yes": True, "no": False}),
    )  # fmt: skip

    def split(a: Any) -> dict[str, Any]:
        mask = decayed[where]
        return {"yes": a[where][mask].astype(np.float64), "no": a[where][~mask].astype(np.float64)}

    params = split(theta)
    state = chain.init(params)
    for grad in grads:
        updates, state = jax.jit(chain.update)(split(grad), state, params)
        params = optax.apply_updates(params, updates)
    out = np.empty(len(where))
    out[decayed[where]], out[~decayed[where]] = params["yes"], params["no"]
    return {"where": where, "theta": out}


@pytest.mark.parametrize("bad", ["", "own", "shared"])
def test_groups_have_norm_rate_and_counter_of_their_own(runtime: fx.Runtime, bad: str) -> None:
    """Each group against an optax chain of its own; a gradient that is not finite stops its group alone, or, in a group that is
    clipped with the network, both and the training."""
    opt = Optimizer(runtime, GROUPS, max_grad_norm=2.0, weight_decay=0.02)
    theta = opt.buffers.theta.to_numpy()
    grads = [opt.gradient(10.0 ** -(i % 3)) for i in range(4)]
    if bad:
        grads[1][part_of(bad).start] = np.nan
    for grad in grads:
        opt.run(grad)
    without = [grads[0], *grads[2:]]
    lr = opt.values["lr"]
    found = opt.state()["theta"]
    if bad != "shared":
        for names, rate, norm in ((["", "shared"], lr, 2.0), (["own"], 3.0 * lr, 0.5), (["other"], 0.5 * lr, 100.0)):
            want = one_group(opt, theta, without if bad in names and bad else grads, names, lr=rate, max_norm=norm)
            where = want["where"]
            moved = np.abs(want["theta"] - theta[where])
            budget = 2e-5 * moved + 4 * 6e-8 * np.abs(want["theta"]) + 1e-6 * np.sqrt(np.mean(moved**2))
            assert (np.abs(found[where] - want["theta"]) <= budget).all(), names
    assert not found[GROUPS.pads()].any()
    stats, raised = opt.buffers.stats.to_numpy(), opt.guard.to_numpy()["key"][0] != 2**64 - 1
    skipped = {"": [0, 0, 0, 0], "own": [0, 1, 0, 0], "shared": [1, 0, 1, 0]}[bad]
    assert stats["skipped"].tolist() == skipped and raised == (bad == "shared")
    last = grads[-1].astype(np.float64)
    norms = [np.linalg.norm(np.concatenate([last[part_of(n)] for n in names]))
             for names in (["", "shared"], ["own"], ["", "shared"], ["other"])]  # fmt: skip
    np.testing.assert_allclose(stats["grad_norm"], norms, rtol=1e-6)
