"""vaccine and maintenance: the paper's equations in float64, what the clip then sees, and that the host has no part in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import VaccineConfig
from foxhunt_rt.dqn.children import vaccine
from foxhunt_rt.kernels import abi
from foxhunt_rt.testing import assert_calls

from .. import feature_harness as harness
from .. import oracle

PERIOD = 10
DUE, KEEP = (abi.constant(name) for name in ("DUE_VACCINE", "DUE_KEEP_GRADIENT"))


def wang(g: Any, p: Any, target: float) -> tuple[Any, float]:
    """Equation 3 of Wang 2021 in float64: the gradient and the cosine before the change."""
    g_norm, p_norm = np.linalg.norm(g), np.linalg.norm(p)
    phi = float(g @ p / (g_norm * p_norm))
    if phi >= target:
        return g, phi
    top = g_norm * (target * math.sqrt(1 - phi**2) - phi * math.sqrt(1 - target**2))
    return g + top / (p_norm * math.sqrt(1 - target**2)) * p, phi


class Alone:
    """The launches on a gradient of n elements, whose squares stand in `parts` sums."""

    def __init__(self, rt: Runtime, n: int, parts: int, rate: float = 0.1) -> None:
        self.step = rt.zeros(1, abi.dtype("step_block"), "step")
        self.grad, norm_part = rt.zeros(n, np.float32, "grad"), rt.zeros(parts, np.float64, "norm_part")
        self.buffers = vaccine.VaccineBuffers.create(rt, self.step, self.grad, norm_part)
        self.found = [rt.zeros(1, np.float32, name) for name in ("cosine", "now", "added")]
        b, plan = self.buffers, rt.plan("vaccine")
        with plan.child("vaccine", reads=[b.previous, b.step],
                        writes=[b.grad, b.norm_part, b.part, b.target, *self.found]) as child:  # fmt: skip
            vaccine.record_vaccine(child, b, VaccineConfig(enabled=True, period=PERIOD, rate=rate), *self.found)
        with plan.child("maintenance", reads=[b.grad, b.step], writes=[b.previous]) as child:
            vaccine.record_keep(child, b)
        self.graph = plan.build()

    def run(self, step: int, g: Any, due: int = DUE) -> None:
        block = np.zeros(1, abi.dtype("step_block"))
        block["step"], block["due"] = step, due
        self.step.copy_from(block)
        self.grad.copy_from(g.astype(np.float32))
        squares = np.zeros(self.buffers.norm_part.size)
        squares[-1] = float(g.astype(np.float64) @ g.astype(np.float64))
        self.buffers.norm_part.copy_from(squares)  # type: ignore[attr-defined]
        self.graph.launch()

    def after(self) -> dict[str, Any]:
        values = {name: float(x.to_numpy()[0]) for name, x in zip(("cosine", "now", "added"), self.found, strict=True)}
        return {**values, "grad": self.grad.to_numpy(), "squares": float(self.buffers.norm_part.to_numpy().sum())}  # type: ignore[attr-defined]


def pair(n: int, cosine: float, seed: int = 0) -> tuple[Any, Any]:
    """Two f32 vectors of about that cosine and of different lengths."""
    random = np.random.default_rng(seed)
    p, other = random.normal(size=(2, n))
    p /= np.linalg.norm(p)
    other -= (other @ p) * p
    g = cosine * p + math.sqrt(1 - cosine**2) * other / np.linalg.norm(other)
    return (3.0 * g).astype(np.float32), (0.2 * p).astype(np.float32)


@pytest.mark.parametrize(("n", "parts"), [(16, 1), (48, 5), (4112, 2), (4112, 300), (70000, 19)])
@pytest.mark.parametrize(("cosine", "target"), [(0.3, 0.6), (-0.9, 0.0), (-0.2, -0.1), (0.5, 0.2), (0.0, 0.999)])
def test_against_the_paper(runtime: Runtime, n: int, parts: int, cosine: float, target: float) -> None:
    n = n // 16 * 16
    alone = Alone(runtime, n, parts)
    g, p = pair(n, cosine, n)
    for turn in (1, 2):  # either place of the target
        alone.buffers.previous.copy_from(p)
        places = np.full(2, np.nan, np.float32)
        places[turn & 1] = target
        alone.buffers.target.copy_from(places)
        t = float(np.float32(target))
        alone.run(turn * PERIOD, g)
        after = alone.after()
        expected, phi = wang(g.astype(np.float64), p.astype(np.float64), t)
        size = np.abs(g) + np.abs(expected - g)
        print(oracle.compare("gradient", after["grad"], expected, size))
        assert after["cosine"] == pytest.approx(phi, abs=1e-6)
        assert after["now"] == pytest.approx(min(t + np.float32(0.1) * (phi - t), 0.999), abs=1e-6)
        assert alone.buffers.target.to_numpy()[1 - (turn & 1)] == np.float32(after["now"])
        found = after["grad"].astype(np.float64)
        assert after["squares"] == pytest.approx(found @ found, rel=1e-10), (
            "what the clip adds up is the changed gradient"
        )
        length = np.linalg.norm(expected - g) / np.linalg.norm(g.astype(np.float64))
        assert after["added"] == pytest.approx(length, rel=1e-4, abs=1e-6) and (after["added"] > 0) == (phi < t)
        if phi < t:
            cos = found @ p / (np.linalg.norm(found) * np.linalg.norm(p.astype(np.float64)))
            assert cos == pytest.approx(t, abs=1e-4), "the changed gradient has the target's cosine"
        else:
            np.testing.assert_array_equal(after["grad"], g)


def test_opposite_gradients_cancel(runtime: Runtime) -> None:
    """phi = -1: the formula gives g + |g|/|p| p = 0; nothing is divided by that."""
    alone = Alone(runtime, 64, 3)
    p = pair(64, 0.0)[1]
    alone.buffers.previous.copy_from(p)
    alone.run(PERIOD, -2 * p)
    after = alone.after()
    assert np.abs(after["grad"]).max() < 1e-7 and after["cosine"] == -1.0 and after["squares"] < 1e-13


@pytest.mark.parametrize("case", ["zero g", "zero p", "nan in g", "nan in p", "inf in g", "inf in p"])
def test_without_a_cosine_nothing_changes(runtime: Runtime, case: str) -> None:
    alone = Alone(runtime, 64, 3)
    g, p = pair(64, -0.5)
    of = g if case.endswith("g") else p
    if case.startswith("zero"):
        of[:] = 0
    else:
        of[7] = np.nan if case.startswith("nan") else np.inf
    alone.buffers.previous.copy_from(p)
    alone.buffers.target.copy_from(np.array([0.1, 0.7], np.float32))
    squares = float(g.astype(np.float64) @ g.astype(np.float64))
    alone.run(PERIOD, g)
    after = alone.after()
    np.testing.assert_array_equal(after["grad"], g)
    np.testing.assert_array_equal(after["squares"], squares)
    np.testing.assert_array_equal(alone.buffers.target.to_numpy(), np.float32([0.7, 0.7]))
    assert after["added"] == 0.0 and after["now"] == np.float32(0.7)


def test_what_is_not_due_touches_nothing(runtime: Runtime) -> None:
    alone = Alone(runtime, 64, 3)
    g, p = pair(64, -0.5)
    alone.buffers.previous.copy_from(p)
    alone.run(PERIOD, g, due=0)
    np.testing.assert_array_equal(alone.grad.to_numpy(), g)
    np.testing.assert_array_equal(alone.buffers.previous.to_numpy(), p)
    assert not alone.buffers.target.to_numpy().any()
    alone.run(PERIOD - 1, g, due=KEEP)
    np.testing.assert_array_equal(alone.buffers.previous.to_numpy(), g)


ON = ("vaccine.enabled=true", "vaccine.period=5", "vaccine.rate=0.5", "optim.horizon=12", "optim.max_grad_norm=1e-3")
OFF = ON[3:]


def test_due_steps_and_what_the_step_then_does(runtime: Runtime) -> None:
    """A twin without the vaccine has the same bits up to it, so its gradients are g and p of the first vaccine; the clip, which
    bites at every step, sees the changed gradient, and p was kept before."""
    on, off = harness.learner(runtime, ON), harness.learner(runtime, OFF)
    kept = harness.extension(on, vaccine.Vaccine).buffers
    n = on.layout.network_size
    gradients, due = [], []
    for step in range(18):
        if step == 5:
            kept.target.copy_from(np.full(2, 0.9, np.float32))
        for each in (on, off):
            each.step()
        due.append(int(on.step_block.to_numpy()["due"][0]))
        if step <= 5:
            gradients.append(off.grad.grad.to_numpy()[:n])
        if step == 4:
            np.testing.assert_array_equal(kept.previous.to_numpy(), gradients[4])
        if step == 5:
            record = on.drain()[-1]
            expected, phi = wang(
                gradients[5].astype(np.float64), gradients[4].astype(np.float64), float(np.float32(0.9))
            )
            found = on.grad.grad.to_numpy()[:n]
            print(oracle.compare("gradient", found, expected, np.abs(gradients[5]) + np.abs(expected)))
            assert phi < 0.9 and record["grad_norm"] == pytest.approx(np.linalg.norm(expected), rel=1e-5)
            assert record["clip"] == pytest.approx(1e-3 / np.linalg.norm(expected), rel=1e-5)
            assert record["vaccine_cosine"] == pytest.approx(phi, abs=1e-6)
            assert record["vaccine_target"] == pytest.approx(0.9 + 0.5 * (phi - 0.9), abs=1e-6)
            assert record["vaccine_added"] > 0.0
            assert on.adam.theta.to_numpy().tobytes() != off.adam.theta.to_numpy().tobytes()
        elif step < 5:
            assert on.adam.theta.to_numpy().tobytes() == off.adam.theta.to_numpy().tobytes()
    expected_due = [DUE if s in (5, 10) else KEEP if s in (4, 9) else 0 for s in range(18)]
    assert due == expected_due, "at the period's multiples below the horizon, 12"
    assert not off.step_block.to_numpy()["due"].any()
    on.close()
    off.close()


def test_metrics_move(runtime: Runtime) -> None:
    """They change at vaccines alone. Planted: small batches have gradients apart, large ones of a network at rest alike."""

    def run(*settings: str) -> Any:
        return harness.run(runtime, (*ON, "optim.horizon=1000", "vaccine.period=2", *settings), 30)

    apart, same = run("replay.batch=1"), run("replay.batch=256", "optim.lr_min=0", "optim.lr=0")
    for name in ("vaccine_cosine", "vaccine_target"):
        changes = np.flatnonzero(np.diff(apart[name])) + 1
        assert len(changes) > 8 and (changes % 2 == 0).all(), name
    assert same["vaccine_cosine"][2:].mean() > apart["vaccine_cosine"][2:].mean() + 0.2
    assert same["vaccine_target"][-1] > apart["vaccine_target"][-1]
    assert (apart["vaccine_added"] > 0).any()


def test_known_failure_k17(runtime: Runtime) -> None:
    """Ten ungraphed kernels every fifth step, and a fresh batch for them: here a launch a step and nothing else, and a step
    with a vaccine draws one batch."""
    learner = harness.learner(runtime, ("vaccine.enabled=true", "vaccine.period=5", "optim.horizon=1000"))
    learner.step()
    learner.drain()
    with assert_calls({"cuGraphLaunch": 40}, runtime=runtime) as calls:
        for _ in range(40):
            learner.step()
    assert calls.ours["cuGraphLaunch"] == 40
    learner.drain()
    drawing = [child.name for child in learner.graph.children if any("sample" in kernel for kernel in child.kernels)]
    assert drawing == ["per_sample"] and int(learner.step_block.to_numpy()["rng_step"][0]) == 40
    learner.close()


def test_bits_resume_and_reset(runtime: Runtime) -> None:
    settings = (*ON, "vaccine.period=3", "optim.horizon=1000")
    learner = harness.learner(runtime, settings)
    for _ in range(2):
        learner.step()
    learner.drain()
    result = learner.graph.verify(steps=5)
    assert result.bitwise_equal, str(result)
    learner.close()
    harness.check_resume(runtime, settings)
    harness.check_reset(runtime, settings)
    both = harness.learner(runtime, (*settings, "train.steps_per_launch=4"))
    result = both.graph.verify(steps=5)
    assert result.bitwise_equal, str(result)
    both.close()


def test_off_it_adds_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    off, on = harness.footprint(runtime, ("vaccine.period=5",)), harness.footprint(runtime, ON[:1])
    assert off == harness.footprint(runtime, ())
    assert on.nodes == off.nodes + 3 and on.children - off.children == {"adam_grad.vaccine", "maintenance.keep"}
    order = list(on.order)
    assert order.index("adam_grad") + 1 == order.index("adam_grad.vaccine") == order.index("adam") - 1
    assert order.index("maintenance.keep") == order.index("adam") + 1
