"""adam_grad: the flat gradient and its norm against NumPy float64."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

import foxhunt_rt as fx
from foxhunt_rt.dqn.children import adam, adam_grad, forward
from foxhunt_rt.kernels import abi

from .network_case import SHAPES, Case, Shape, assert_close, backward, matrices, pad_columns
from .network_case import forward as reference

jax.config.update("jax_enable_x64", True)


def run_adam_grad(
    runtime: fx.Runtime, case: Case, hidden: list[npt.NDArray[np.float32]], dlogits: npt.NDArray[np.float32]
) -> adam_grad.AdamGradBuffers:
    layout = case.layout
    widths = [layer.k_padded for layer in layout.layers]
    kept = [
        runtime.array(pad_columns(x, width), "kept") for x, width in zip([case.state, *hidden], widths, strict=True)
    ]
    inputs = adam_grad.AdamGradInputs(
        runtime.array(layout.pack(case.theta), "theta"),
        runtime.array(pad_columns(dlogits, layout.head_padded), "dlogits"),
        tuple(kept),
    )
    buffers = adam_grad.AdamGradBuffers.create(runtime, layout, case.batch)
    for buffer in adam_grad.writes(layout, buffers):
        buffer.copy_from(np.full(buffer.shape, np.nan, buffer.dtype))  # whatever is not written shows
    plan = runtime.plan("adam_grad")
    adam_grad.add(plan, layout, inputs, buffers)
    step = plan.build(ungraphed=False)
    step.launch()
    return buffers


def batch_of(case: Case) -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
    """Activations and a random gradient of the logits, both f32."""
    outputs, _ = reference(case.theta, case.state)
    random = np.random.default_rng(5)
    dlogits = (random.standard_normal((case.batch, case.layout.head_width)) / case.batch).astype(np.float32)
    return [h.astype(np.float32) for h in outputs[:-1]], dlogits


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_agrees_with_float64(runtime: fx.Runtime, shape: Shape) -> None:
    case = Case.make(*shape)
    hidden, dlogits = batch_of(case)
    buffers = run_adam_grad(runtime, case, hidden, dlogits)
    ref = backward(case.theta, case.state, [h.astype(np.float64) for h in hidden], dlogits.astype(np.float64))
    flat = buffers.grad.to_numpy()
    assert np.isfinite(flat).all(), "every element of the gradient is written"
    for i, (layer, want) in enumerate(zip(case.layout.layers, ref, strict=True)):
        for segment, name in ((layer.weight, "dw"), (layer.bias, "db")):
            got = flat[segment.offset : segment.stop].reshape(segment.padded_shape)
            assert_close(f"{segment.name}", got[tuple(map(slice, segment.shape))], want[name], want[f"{name}_terms"])
        made = buffers.dhidden[i] if i < len(hidden) else None
        if made is not None:  # that of a pair's first layer stays in its blocks
            got = made.to_numpy()
            assert_close(f"dhidden {i}", got[:, : want["dy"].shape[1]], want["dy"], want["dy_terms"])
            assert not got[:, want["dy"].shape[1] :].any()
    assert not flat[case.layout.pads()].any(), "the gradient of a pad is zero"
    norm = np.sqrt(buffers.norm_part.to_numpy().sum())
    np.testing.assert_allclose(norm, np.sqrt(np.sum(flat.astype(np.float64) ** 2)), rtol=1e-12)


def test_launches_are_one_per_layer_one_less_for_a_pair_and_one_more_when_split(runtime: fx.Runtime) -> None:
    one, split = ["linear_backward"] * 3, ["linear_backward"] * 3 + ["grad_reduce"]
    for batch, kernels in ((64, ["linear_backward", "linear_backward_pair"]), (65, one), (300, split)):
        case = Case.make(20, (24, 19), (3, 2), 7, batch)
        layout = case.layout
        kept = [runtime.zeros((batch, layer.k_padded), np.float32, "kept") for layer in layout.layers]
        inputs = adam_grad.AdamGradInputs(
            runtime.zeros(layout.size, np.float32, "theta"),
            runtime.zeros((batch, layout.head_padded), np.float32, "dlogits"),
            tuple(kept),
        )
        plan = runtime.plan("adam_grad")
        adam_grad.add(plan, layout, inputs, adam_grad.AdamGradBuffers.create(runtime, layout, batch))
        assert [op.kernel for op in plan.children[0].ops] == kernels


def test_a_pair_is_as_two_launches(runtime: fx.Runtime) -> None:
    """The same rows, once as a pair and once behind 65 - R rows without a gradient, which are no pair; NaN activations let the
    gradient through in both."""
    case, more = (Case.make(20, (24, 19), (3, 2), 7, batch) for batch in (40, 65))
    hidden, dlogits = batch_of(case)
    hidden[0][3, 5] = np.nan
    flat = []
    for of in (case, more):
        pad = of.batch - case.batch
        of = dataclasses.replace(of, theta=case.theta, state=np.pad(case.state, ((0, pad), (0, 0))))
        padded = [np.pad(x, ((0, pad), (0, 0))) for x in (*hidden, dlogits)]
        flat.append(run_adam_grad(runtime, of, padded[:-1], padded[-1]).grad.to_numpy())
    np.testing.assert_allclose(flat[0], flat[1], rtol=1e-5, atol=1e-6)
    assert np.isnan(flat[0]).any()


@pytest.mark.parametrize("batch", [5, 300])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_gradient_stays_non_finite_in_the_norm(runtime: fx.Runtime, batch: int, bad: float) -> None:
    case = Case.make(20, (24, 19), (3, 2), 7, batch)
    hidden, dlogits = batch_of(case)
    dlogits[batch - 1, 3] = bad
    buffers = run_adam_grad(runtime, case, hidden, dlogits)
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(buffers.norm_part.to_numpy().sum())


@pytest.mark.parametrize("batch", [5, 300])
def test_a_large_finite_norm_does_not_overflow(runtime: fx.Runtime, batch: int) -> None:
    """Squares are taken in f64: 1e25 squared is beyond f32."""
    case = Case.make(7, (5,), (3,), 11, batch)
    hidden, dlogits = batch_of(case)
    buffers = run_adam_grad(runtime, case, hidden, dlogits * np.float32(1e25))
    assert np.isfinite(buffers.norm_part.to_numpy()).all()


def test_same_inputs_same_bits(runtime: fx.Runtime) -> None:
    case = Case.make(20, (24, 19), (3, 2), 7, 300)
    hidden, dlogits = batch_of(case)
    first, second = (run_adam_grad(runtime, case, hidden, dlogits) for _ in range(2))
    for a, b in zip(adam_grad.writes(case.layout, first), adam_grad.writes(case.layout, second), strict=True):
        np.testing.assert_array_equal(a.to_numpy().view(np.uint8), b.to_numpy().view(np.uint8))


@pytest.mark.parametrize("shape", [(33, (17, 40, 9), (2, 4), 13, 37), (20, (24, 19), (3, 2), 7, 259)], ids=str)
def test_forward_and_backward_together_agree_with_autodiff(runtime: fx.Runtime, shape: Shape) -> None:
    """The three children of the network in one plan: gradient against JAX; the same bits however they are launched."""
    case = Case.make(*shape)
    layout = case.layout
    _, dlogits = batch_of(case)
    state = runtime.array(pad_columns(case.state, layout.state_padded), "batch.state")
    next_state = runtime.array(pad_columns(case.next_state, layout.state_padded), "batch.next_state")
    block = np.zeros(1, abi.dtype("step_block"))
    for name, value in dict(
        lr=1e-3,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_eps=1e-8,
        bias1=0.1,
        bias2=0.001,
        momentum_factor=1,
        max_grad_norm=1.0,
        tau=0.01,
        weight_decay=0.01,
    ).items():
        block[name] = value
    step = runtime.array(block, "step")
    params = adam.AdamBuffers.create(runtime, layout)
    params.load(layout.pack(case.theta))
    activations = forward.ForwardBuffers.create(runtime, layout, case.batch)
    gradient = adam_grad.AdamGradBuffers.create(runtime, layout, case.batch)
    upstream = runtime.array(pad_columns(dlogits, layout.head_padded), "ddqn.dlogits")
    plan = runtime.plan("network")
    forward.add(plan, layout, forward.ForwardInputs(params.theta, params.target, state, next_state), activations)
    adam_grad.add(
        plan, layout, adam_grad.AdamGradInputs(params.theta, upstream, tuple(activations.kept(state))), gradient
    )
    adam.add(plan, layout, adam.AdamInputs(gradient.grad, gradient.norm_part, step, None), params)
    graph = plan.build()
    graph.launch()

    def objective(layers: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        x = jnp.asarray(case.state, jnp.float64)
        for i, (w, b) in enumerate(layers):
            x = x @ w + b if i == len(layers) - 1 else jax.nn.relu(x @ w + b)
        return jnp.sum(x * dlogits)

    layers = matrices(case.theta)
    want = jax.jit(jax.grad(objective))([(jnp.asarray(w), jnp.asarray(b)) for w, b in layers])
    hidden, _ = reference(case.theta, case.state)
    terms = backward(case.theta, case.state, hidden[:-1], dlogits.astype(np.float64))
    flat = gradient.grad.to_numpy()
    for layer, (dw, db), budget in zip(layout.layers, want, terms, strict=True):
        for segment, ref, name in ((layer.weight, dw, "dw_terms"), (layer.bias, db, "db_terms")):
            got = flat[segment.offset : segment.stop].reshape(segment.padded_shape)
            assert_close(segment.name, got[tuple(map(slice, segment.shape))], np.asarray(ref), budget[name])
    assert not np.array_equal(params.theta.to_numpy(), layout.pack(case.theta))
    assert graph.verify(steps=2).bitwise_equal
