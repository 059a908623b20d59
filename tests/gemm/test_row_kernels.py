"""What stands around a library's products, against NumPy and ml_dtypes: bias and ReLU, gradients by rows, rounded operands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import foxhunt_rt as fx
from foxhunt_rt.dqn.children.adam_grad import gradient_rows, sum_splits
from foxhunt_rt.dqn.children.forward import round_mantissa
from foxhunt_rt.driver import Buffer
from foxhunt_rt.gemm.products import bias_relu
from foxhunt_rt.kernels import abi

bf16 = ml_dtypes.bfloat16
SHAPES = [(1, 16), (3, 144), (65, 128), (259, 272)]


def data(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.float32]:
    """Normal numbers of widely different size, zeros, ties of rounding, subnormals and the special values."""
    random = np.random.default_rng(seed)
    x = (random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)).astype(np.float32)
    flat = x.reshape(-1)
    ties = (np.arange(8, dtype=np.uint32) << 15 | 0x3F800000).view(np.float32)
    special = np.concatenate([ties, -ties, np.array([0, -0.0, 1e-45, -1e-40, np.inf, -np.inf, np.nan], np.float32)])
    if flat.size > special.size:
        flat[: special.size] = special
    return x


def to_bf16(rt: fx.Runtime, x: npt.NDArray[np.float32], label: str) -> Buffer:
    return rt.array(x.astype(bf16).view(np.uint16).view(abi.bf16), label)


def from_bf16(buffer: Buffer) -> npt.NDArray[np.float32]:
    return buffer.to_numpy().view(np.uint16).view(bf16).astype(np.float32)  # type: ignore[attr-defined]


def run(rt: fx.Runtime, record, reads: list[Buffer], writes: list[Buffer]) -> None:
    plan = rt.plan("rows")
    with plan.child("rows", reads=reads, writes=writes) as child:
        record(child)
    step = plan.build(ungraphed=False)
    step.launch()
    step.close()


def same(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    """Equal bit for bit, but for which NaN a NaN is."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    keep = ~np.isnan(expected)
    np.testing.assert_array_equal(found[keep].view(np.uint32), expected[keep].view(np.uint32))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_bias_and_relu(runtime: fx.Runtime, shape: tuple[int, int], relu: bool, kind: str) -> None:
    y, bias = data(shape), np.random.default_rng(1).standard_normal(shape[1]).astype(np.float32)
    if kind == "bf16":
        device = to_bf16(runtime, y, "y"), to_bf16(runtime, bias, "bias")
        y, bias = (x.astype(bf16).astype(np.float32) for x in (y, bias))
    else:
        device = runtime.array(y, "y"), runtime.array(bias, "bias")
    run(runtime, lambda child: bias_relu(child, *device, shape[0], relu), [device[1]], [device[0]])
    expected = y + bias
    if relu:
        expected = np.where(expected < 0, np.float32(0), expected)
    if kind == "bf16":
        same(from_bf16(device[0]), expected.astype(bf16).astype(np.float32))
    else:
        same(device[0].to_numpy(), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_gradient_of_relu_and_column_sums(runtime: fx.Runtime, shape: tuple[int, int], mask: bool, kind: str) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    h = data(shape, 3)
    put = runtime.array if kind == "f32" else lambda a, label: to_bf16(runtime, a, label)
    if kind == "bf16":
        x, h = (a.astype(bf16).astype(np.float32) for a in (x, h))
    device, signs = put(x, "x"), put(h, "h")
    part = runtime.array(np.full((sum_splits(shape[0]), shape[1]), np.nan, np.float32), "part")
    run(
        runtime,
        lambda child: gradient_rows(child, device, signs if mask else None, device, part),
        [signs],
        [device, part],
    )
    with np.errstate(invalid="ignore"):
        expected = np.where(h <= 0, np.float32(0), x) if mask else x
    same(device.to_numpy() if kind == "f32" else from_bf16(device), expected)
    sums, terms = expected.astype(np.float64).sum(0), np.abs(expected).astype(np.float64).sum(0)
    assert (np.abs(part.to_numpy().astype(np.float64).sum(0) - sums) <= 1e-6 * terms + 1e-30).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_gradient_in_bf16_keeps_the_sums_of_what_was_not_rounded(runtime: fx.Runtime, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    n = sum_splits(shape[0])
    source, y = runtime.array(x, "x"), to_bf16(runtime, x * 0, "y")
    part = runtime.zeros((n, shape[1]), np.float32, "part")
    args = dict(x=source, y=y, part=part, R=shape[0], Np=shape[1], splits=n)
    run(
        runtime,
        lambda child: child.launch(
            "gradient_to_bf16", (-(-shape[1] // abi.constant("GRADIENT_COLS")), n), (256,), args
        ),
        [source],
        [y, part],
    )
    same(from_bf16(y), x.astype(bf16).astype(np.float32))
    terms = np.abs(x).astype(np.float64).sum(0)
    assert (np.abs(part.to_numpy().sum(0, dtype=np.float64) - x.sum(0, dtype=np.float64)) <= 1e-6 * terms).all()


def test_rounding_to_a_mantissa(runtime: fx.Runtime) -> None:
    """7 bits are bf16, by ml_dtypes; 10 bits are TF32: the nearest multiple of 2^(e - 10), ties to even, in exact arithmetic."""
    x = data((64, 64), 5)
    device, y = runtime.array(x, "x"), runtime.zeros(x.shape, np.float32, "y")
    run(runtime, lambda child: round_mantissa(child, device, y, 7), [device], [y])
    same(y.to_numpy(), x.astype(bf16).astype(np.float32))
    run(runtime, lambda child: round_mantissa(child, device, y, 10), [device], [y])
    normal = np.isfinite(x) & (np.abs(x) >= np.finfo(np.float32).tiny)
    wide = x[normal].astype(np.float64)
    unit = 2.0 ** (np.floor(np.log2(np.abs(wide))) - 10)
    same(y.to_numpy()[normal], (np.round(wide / unit) * unit).astype(np.float32))
    assert np.isnan(y.to_numpy()[np.isnan(x)]).all() and np.array_equal(y.to_numpy()[np.isinf(x)], x[np.isinf(x)])


def test_operands_of_a_step_in_bf16(runtime: fx.Runtime) -> None:
    n, m, at, n_bias = 4128, 112, 4080, 48
    theta, target = data((n,), 6), data((n,), 7)
    states = [data((m,), seed) for seed in (8, 9, 10)]
    device = [runtime.array(a, f"operand.{i}") for i, a in enumerate((theta, target, *states))]
    w, x = (to_bf16(runtime, np.zeros((3, k), np.float32), "out") for k in (n, m))
    bias = runtime.zeros((3, n_bias), np.float32, "bias")
    args = dict(theta=device[0], target=device[1], x0=device[2], x1=device[3], x2=device[4], w=w, x=x, bias=bias, n=n, m=m,
                bias_at=at, n_bias=n_bias, per_block=1024)  # fmt: skip
    run(runtime, lambda child: child.launch("round_inputs", (-(-(n + m) // 1024),), (256,), args), device, [w, x, bias])
    rounded = lambda a: a.astype(bf16).astype(np.float32)  # noqa: E731
    same(from_bf16(w), np.stack([rounded(theta), rounded(theta), rounded(target)]))
    same(from_bf16(x), np.stack([rounded(s) for s in states]))
    same(bias.to_numpy(), np.stack([theta[at:], theta[at:], target[at:]]))
