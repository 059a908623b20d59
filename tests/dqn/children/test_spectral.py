"""spectral: the bound by NumPy's SVD, every iteration against the same in float64, and the step with it on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn.children import spectral
from foxhunt_rt.dqn.layout import NetworkLayout

from .. import feature_harness as harness
from ..test_whole_step import CASES, Taken, check_gradient, reference, take_step

SHAPES = [(33, (17, 9)), (7, (1, 13)), (1, (1,)), (5, (40, 3, 19)), (100, (300, 65))]


class Iteration:
    """The child alone, on parameters that nothing else changes."""

    def __init__(self, rt: Runtime, layout: NetworkLayout, sigma_max: float, tensors: dict[str, Any]) -> None:
        self.layout, self.weights = layout, spectral.matrices(layout)
        self.theta = rt.array(layout.pack(tensors), "theta")
        self.buffers = spectral.SpectralBuffers.create(rt, self.weights, "spectral")
        self.buffers.v.copy_from(spectral.start(self.weights))
        self.largest, self.projected = rt.zeros(1, np.float32, "largest"), rt.zeros(1, np.float32, "projected")
        plan = rt.plan("spectral")
        with plan.child("spectral", reads=[self.buffers.table],
                        writes=[self.theta, *self.buffers.written, self.largest, self.projected]) as child:  # fmt: skip
            spectral.record(child, self.theta, self.buffers, sigma_max, self.largest, self.projected)
        self.graph = plan.build()

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        return self.layout.unpack(self.theta.to_numpy())

    def load(self, tensors: dict[str, Any]) -> None:
        self.theta.copy_from(self.layout.pack(tensors))


def random_tensors(layout: NetworkLayout, scale: float = 1.0, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    zeros = layout.unpack(np.zeros(layout.size, np.float32))
    return {name: (random.normal(size=t.shape) * scale).astype(np.float32) for name, t in zeros.items()}


def weights_of(tensors: dict[str, Any]) -> list[Any]:
    return [tensors[f"trunk.{i}.weight"].astype(np.float64) for i in range(sum("trunk" in n for n in tensors) // 2)]


def iterate(w: Any, v: Any, sigma_max: float) -> tuple[Any, Any, float]:
    """One power iteration and the projection: W, v and sigma."""
    u = w @ v
    s = w.T @ (u / np.linalg.norm(u))
    sigma = float(np.linalg.norm(s))
    return w / max(1.0, sigma / sigma_max), s / sigma, sigma


def vectors(weights: Any, flat: Any) -> list[Any]:
    """Each matrix's part of the vectors over columns, unpadded, f64."""
    ends = np.cumsum([w.padded_shape[1] for w in weights])
    return [
        flat[end - w.padded_shape[1] :][: w.shape[1]].astype(np.float64) for w, end in zip(weights, ends, strict=True)
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_iteration_is_that_of_numpy(runtime: Runtime, shape: tuple[int, tuple[int, ...]]) -> None:
    layout = NetworkLayout(*shape, (3, 2), 5)
    first = random_tensors(layout)
    sigma_max = float(np.float32(0.8 * max(np.linalg.norm(w, 2) for w in weights_of(first))))
    it = Iteration(runtime, layout, sigma_max, first)
    w, v = weights_of(first), vectors(it.weights, it.buffers.v.to_numpy())
    for _ in range(4):
        w, v, sigma = map(list, zip(*(iterate(a, b, sigma_max) for a, b in zip(w, v, strict=True)), strict=True))
        it.graph.launch()
        np.testing.assert_allclose(it.buffers.sigma.to_numpy(), sigma, rtol=1e-5)
        assert it.largest.to_numpy()[0] == it.buffers.sigma.to_numpy().max()
        for found, ref in zip(weights_of(it.tensors()), w, strict=True):
            np.testing.assert_allclose(found, ref, rtol=2e-5, atol=1e-7)
        for found, ref in zip(vectors(it.weights, it.buffers.v.to_numpy()), v, strict=True):
            np.testing.assert_allclose(found, ref, rtol=1e-3, atol=2e-5)
    now = it.tensors()
    untouched = [name for name in now if not (name.startswith("trunk") and name.endswith("weight"))]
    assert untouched and all((now[name] == first[name]).all() for name in untouched), "heads and biases are not bounded"
    assert not it.theta.to_numpy()[layout.pads()].any()
    result = it.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_frozen_weights_end_within_the_bound(runtime: Runtime, shape: tuple[int, tuple[int, ...]]) -> None:
    layout = NetworkLayout(*shape, (2,), 3)
    first = random_tensors(layout, seed=1)
    it = Iteration(runtime, layout, 0.5, first)
    for _ in range(100):
        it.graph.launch()
    for start, w in zip(weights_of(first), weights_of(it.tensors()), strict=True):
        sigma, before = (np.linalg.svd(x, compute_uv=False)[0] for x in (w, start))
        assert min(0.5, before) * (1 - 1e-5) <= sigma <= 0.5 * 1.015
    loose = random_tensors(layout, 0.01, seed=2)
    it.load(loose)
    before = it.theta.to_numpy()
    it.graph.launch()
    np.testing.assert_array_equal(it.theta.to_numpy(), before, err_msg="what is within the bound keeps its bits")
    assert it.projected.to_numpy()[0] == 0.0


def test_the_share_of_matrices_that_were_projected(runtime: Runtime) -> None:
    layout = NetworkLayout(8, (8, 8, 8), (2,), 3)
    tensors = random_tensors(layout)
    for i, size in enumerate((0.2, 3.0, 0.3)):
        tensors[f"trunk.{i}.weight"] = np.eye(8) * size
    it = Iteration(runtime, layout, 0.5, tensors)
    it.graph.launch()
    assert it.projected.to_numpy()[0] == np.float32(1 / 3) and it.largest.to_numpy()[0] == pytest.approx(3.0, rel=1e-5)
    np.testing.assert_allclose(it.tensors()["trunk.1.weight"], np.eye(8) * 0.5, rtol=1e-5)


def test_a_zero_matrix_keeps_its_vector(runtime: Runtime) -> None:
    layout = NetworkLayout(6, (5,), (2,), 3)
    zero = {name: np.zeros_like(t) for name, t in random_tensors(layout).items()}
    it = Iteration(runtime, layout, 0.5, zero)
    start = it.buffers.v.to_numpy()
    for _ in range(3):
        it.graph.launch()
    assert not it.theta.to_numpy().any() and it.largest.to_numpy()[0] == 0.0 == it.projected.to_numpy()[0]
    np.testing.assert_array_equal(it.buffers.v.to_numpy(), start)
    it.load(random_tensors(layout))
    for _ in range(60):
        it.graph.launch()
    assert np.linalg.norm(it.tensors()["trunk.0.weight"], 2) <= 0.505


def test_a_vector_in_the_null_space_is_left(runtime: Runtime) -> None:
    """The dominant column is zeroed, as pruning does: W v = 0, and what is left must still be bounded."""
    layout = NetworkLayout(4, (4,), (2,), 3)
    tensors = random_tensors(layout)
    tensors["trunk.0.weight"] = np.diag([9.0, 0.0, 0.0, 0.0])
    it = Iteration(runtime, layout, 0.5, tensors)
    for _ in range(3):
        it.graph.launch()
    np.testing.assert_allclose(np.abs(it.buffers.v.to_numpy())[:4], [1, 0, 0, 0], atol=1e-6)
    it.load({**tensors, "trunk.0.weight": np.diag([0.0, 2.0, 1.0, 3.0])})
    for _ in range(60):
        it.graph.launch()
    assert np.linalg.norm(it.tensors()["trunk.0.weight"], 2) <= 0.505


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_kept_and_reported(runtime: Runtime, bad: float) -> None:
    layout = NetworkLayout(9, (7, 6), (2,), 3)
    tensors = random_tensors(layout, 9.0)
    tensors["trunk.0.weight"][3, 2] = bad
    it = Iteration(runtime, layout, 0.5, tensors)
    start = it.buffers.v.to_numpy()
    it.graph.launch()
    np.testing.assert_array_equal(it.tensors()["trunk.0.weight"], tensors["trunk.0.weight"])
    assert not np.isfinite(it.largest.to_numpy()[0]), "the finding of the other matrix does not hide it"
    v = it.buffers.v.to_numpy()
    np.testing.assert_array_equal(v[:16], start[:16])
    assert np.isfinite(v).all()
    assert np.abs(it.tensors()["trunk.1.weight"]).max() < 9.0, "the other is projected"


ON = ("spectral.enabled=true", "spectral.sigma_max=0.4")


def test_gradient_and_bits_of_the_step(runtime: Runtime) -> None:
    """The whole step's oracle, at the projected parameters; and the same bits in every mode."""
    case = dataclasses.replace(CASES[3], settings=(*CASES[3].settings, *ON))
    taken = take_step(runtime, case)
    flat, weights = taken.before["theta"].copy(), spectral.matrices(taken.learner.layout)
    extension = harness.extension(taken.learner, spectral.Spectral)
    before = taken.before["spectral.v"]
    sigma = []
    for weight, v in zip(weights, vectors(weights, before), strict=True):
        k, n = weight.shape
        view = flat[weight.offset : weight.stop].reshape(weight.padded_shape)[:k, :n]
        w, _, s = iterate(view.astype(np.float64), v, float(np.float32(0.4)))
        view[...] = w
        sigma.append(s)
    projected = Taken(case, taken.learner, taken.rows, {**taken.before, "theta": flat}, taken.record)
    check_gradient(projected, reference(projected), taken.learner.grad.grad.to_numpy())
    assert taken.record["spectral_sigma_max"] == pytest.approx(max(sigma), rel=1e-5)
    assert taken.record["spectral_projected"] == np.mean(np.array(sigma) > 0.4)
    np.testing.assert_allclose(extension.buffers.sigma.to_numpy(), sigma, rtol=1e-5)
    result = taken.learner.graph.verify(steps=3)
    assert result.bitwise_equal, str(result)
    taken.learner.close()


def test_off_it_adds_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    off, on = harness.footprint(runtime, ("spectral.sigma_max=0.4",)), harness.footprint(runtime, ON)
    assert off == harness.footprint(runtime, ())
    assert on.nodes == off.nodes + 3 and on.children - off.children == {"spectral"}
    assert on.bytes > off.bytes and on.modules > off.modules
    assert on.order.index("per_sample") < on.order.index("spectral") == on.order.index("forward") - 1


def test_metrics_move(runtime: Runtime) -> None:
    """Planted: weights that grow by a learning rate out of measure, a bound that none meets, one that all meet."""

    def run(*settings: str) -> Any:
        return harness.run(runtime, ("spectral.enabled=true", *settings), 12)

    grown = run("spectral.sigma_max=1e6", "optim.lr=0.1", "optim.horizon=1000")
    calm = run("spectral.sigma_max=1e6", "optim.lr_min=0", "optim.lr=0")
    assert grown["spectral_sigma_max"][-1] > 1.2 * grown["spectral_sigma_max"][2]
    assert np.ptp(calm["spectral_sigma_max"][-3:]) < 0.05 * calm["spectral_sigma_max"][-1], "converges: weights rest"
    assert not grown["spectral_projected"].any()
    assert (run("spectral.sigma_max=0.01", "optim.lr=0.1")["spectral_projected"][1:] == 1.0).all()


def test_serving_projects_a_copy(runtime: Runtime) -> None:
    """What leaves is bounded though the last update was not, and training does not notice that someone looked."""
    settings = (*ON, "optim.lr=0.05", "optim.horizon=1000")
    found = []
    for look in (False, True):
        learner = harness.learner(runtime, settings)
        for _ in range(30):
            learner.step()
            if look:
                served = learner.served()
        learner.drain()
        if look:
            tensors = learner.layout.unpack(served.to_numpy())
            norms = [[np.linalg.norm(w, 2) for w in weights_of(t)] for t in (learner.params(), tensors)]
            print("sigma by SVD, as trained and as served:", norms)
            assert max(norms[0]) > 0.4 * 1.05 and max(norms[1]) <= 0.4 * 1.05
            heads = [name for name in tensors if not name.endswith("weight") or not name.startswith("trunk")]
            assert all((tensors[name] == learner.params()[name]).all() for name in heads)
        found.append(learner.adam.theta.to_numpy().tobytes())
        learner.close()
    assert found[0] == found[1]


def test_resume_and_reset(runtime: Runtime) -> None:
    harness.check_resume(runtime, ON)
    harness.check_reset(runtime, ON)


def test_a_checkpoint_of_another_bound_is_refused(runtime: Runtime) -> None:
    harness.check_refused(runtime, ON, (("spectral.enabled=true", "spectral.sigma_max=0.5"), "spectral.sigma_max is 0.4"),
                          ((), "spectral.enabled is True"))  # fmt: skip
