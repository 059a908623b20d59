"""Chooses who makes each product of the network: measured once for each shape, recorded, and taken from the table after that.

What is compared is a layer's whole share of a step: of the forward pass its three passes, of the backward pass dX with the
derivative of ReLU, dW, db and the sum of what was split. On buffers of their own, filled with random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.adam_grad import AdamGradBuffers, Part
from foxhunt_rt.dqn.children.products import PASSES, LayerWeights, NetworkProducts
from foxhunt_rt.dqn.layout import Layer, NetworkLayout
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.gemm import LIBRARY, Choice, ChoiceTable, LibraryMissing, Products
from foxhunt_rt.gemm.measure import microseconds, random_buffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi

Timers = tuple[Callable[[], float], Callable[[], float]]
"""Microseconds by the package's kernels, and by the library."""


def choose(
    rt: Runtime, layout: NetworkLayout, batch: int, precision: str, table: ChoiceTable | None = None
) -> NetworkProducts:
    """Who makes which product of a network's step.

    Parameters
    ----------
    rt : Runtime
    layout : NetworkLayout
    batch : int
        B.
    precision : str
        ``"fp32"``, ``"tf32"`` or ``"bf16"``.
    table : ChoiceTable, optional
        Default: that of this machine's user.

    Raises
    ------
    LibraryMissing
        tf32 or bf16 on a GPU without cuBLASLt.
    ChoiceError
        The table is pinned and lacks a choice.

    Notes
    -----
    What the table lacks is measured: allocates, loads, captures and synchronizes; not legal inside a capture. Under hostsim
    nothing is: the package's f32 kernels make every product, of operands rounded to the mantissa of tf32 or bf16.
    """
    gemm = Products(rt, table)
    if not gemm.has_library and gemm.missing != "hostsim" and precision != "fp32":
        raise LibraryMissing(f"network.precision={precision} needs cuBLASLt, which is not installed: "
                             "pip install 'foxhunt-rt[gpu]', or set network.precision=fp32")  # fmt: skip
    layers = layout.layers
    every = (True,) * len(layers)
    dx = [i > 0 or bool(layout.blocks) for i in range(len(layers))]  # whose input's gradient is wanted
    products = NetworkProducts(precision, every, every, gemm=gemm)
    if (
        products.bf16 and gemm.has_library
    ):  # operands in bf16 throughout: there is no kernel of ours for a layer between
        for key in (key for i, layer in enumerate(layers) for key in _keys(layer, batch, precision, i == 0, dx[i])):
            if not gemm.planning and gemm.table.get(gemm.machine, key) is None:
                gemm.table.put(gemm.machine, key, Choice(LIBRARY, {}, None, "operands in bf16"))
        return products
    forward_by: list[bool] = []
    backward_by: list[bool] = []
    for i, layer in enumerate(layers):
        ahead, back = _keys(layer, batch, precision, i == 0, dx[i])
        backward_times = partial(_backward_times, dx_wanted=dx[i])
        flops = 2 * batch * layer.weight.size
        for by, key, times in ((forward_by, ahead, _forward_times), (backward_by, back, backward_times)):
            # small layers are not measured: a start without it, and no workspace that a memory plan could not foresee
            by.append(not gemm.small(key, flops)
                      and gemm.choose(key, *times(rt, products, layer, batch, i == 0), flops) == LIBRARY)  # fmt: skip
    rounded = gemm.missing == "hostsim" and precision != "fp32"
    return NetworkProducts(precision, tuple(forward_by), tuple(backward_by), rounded, gemm)


def table_of(choices: str) -> ChoiceTable | None:
    """The table that ``network.choices`` names: that of this machine's user (None), one in memory that begins empty
    (``"fresh"``), or one pinned to what a run has left."""
    if not choices:
        return None
    return ChoiceTable() if choices == "fresh" else ChoiceTable.load(choices)


def _keys(layer: Layer, batch: int, precision: str, first: bool, dx: bool) -> tuple[str, str]:
    """The table's keys of a layer's forward and backward share."""
    shape = f"{precision} B {batch} K {layer.k}/{layer.k_padded} N {layer.n_padded}{' relu' if layer.relu else ''}"
    shape += " first" if first else ""
    return f"layer forward {shape}", f"layer backward {shape}{' dx' if first and dx else ''}"


def _random(rt: Runtime, shape: tuple[int, ...], label: str) -> DeviceBuffer:
    return random_buffer(rt, int(np.prod(shape)), "f32", f"choose.{label}").view(shape)


def _forward_times(rt: Runtime, products: NetworkProducts, layer: Layer, batch: int, first: bool) -> Timers:
    """Times of a layer's three passes."""

    def time(own: bool) -> float:
        x = _random(rt, (PASSES, batch, layer.k_padded), "x")
        y = _random(rt, (PASSES, batch, layer.n_padded), "y")
        n = layer.weight.size
        theta, target = (_random(rt, (n + layer.bias.size,), label) for label in ("theta", "target"))
        weights = LayerWeights(theta[:n], theta[n:], target[:n], target[n:])

        def record(child: Child) -> None:
            if own:
                forward.own_layer(child, layer, batch, forward.separate(x), weights, y)
            else:  # the first layer's inputs lie apart, those of the others one under the other
                forward.library_layer(child, products, layer, batch, forward.separate(x) if first else x, weights, y)

        return microseconds(rt, record, [x, theta, target], [y, *products.scratch])

    return partial(time, True), partial(time, False)


def _backward_times(rt: Runtime, products: NetworkProducts, layer: Layer, batch: int, first: bool,
                    dx_wanted: bool) -> Timers:  # fmt: skip
    """Times of a layer's share of the backward pass."""

    def time(own: bool) -> float:
        x = _random(rt, (batch, layer.k_padded), "x")
        dy = _random(rt, (batch, layer.n_padded), "dy")
        dx = _random(rt, (batch, layer.k_padded), "dx") if dx_wanted else None
        w = _random(rt, (layer.weight.size,), "w")
        sums = _random(rt, (adam_grad.sum_splits(batch), layer.k_padded), "sums")
        buffers = _one_layer(rt, layer, batch, own)
        part, n = buffers.parts[0], layer.weight.size
        optional = [buffer for buffer in (dx, buffers.partial) if buffer is not None]

        def record(child: Child) -> None:
            if own:
                to = buffers.grad[:n], buffers.grad[n:]
                if buffers.partial is not None:
                    to = buffers.partial[:], buffers.partial[n:]
                squares = None if buffers.partial is not None else buffers.norm_part
                adam_grad.own_layer(child, layer, w, x, dy, dx, to, part.stride, max(1, part.weight_splits), squares,
                                    relu=not first)  # fmt: skip
            else:
                adam_grad.library_layer(child, products, layer, w, x, dy, dx, buffers.grad[:n])
                if dx is not None and not first:
                    adam_grad.gradient_rows(child, dx, x, dx, sums)
            if buffers.partial is not None:
                adam_grad.reduce(child, buffers.grad, buffers)

        reads: list[Buffer] = [x, dy, w, *([buffers.runs] if buffers.runs is not None else [])]
        writes: list[Buffer] = [buffers.grad, buffers.norm_part, sums, *optional]
        return microseconds(rt, record, reads, [*writes, *products.scratch])

    return partial(time, True), partial(time, False)


def _one_layer(rt: Runtime, layer: Layer, batch: int, own: bool) -> AdamGradBuffers:
    """The gradient of one layer alone, its weights first, with partial gradients as adam_grad has them."""
    n, size = layer.weight.size, layer.weight.size + layer.bias.size
    splits = adam_grad.splits(batch) if own else 0
    grad = rt.zeros(size, np.float32, "choose.grad")
    if splits == 1:
        norm = rt.zeros(adam_grad.weight_blocks(layer, 1), np.float64, "choose.norm")
        return AdamGradBuffers((), grad, None, norm, norm.size, parts=(Part(),))
    sums = splits if own else adam_grad.sum_splits(batch)
    part = Part(0, n, size, splits, splits) if own else Part(stride=layer.n_padded, bias_splits=sums)
    rows = [(0, n, part.weights, part.stride, splits, 0), (n, size, part.bias, part.stride, sums, 0)]
    runs = rt.array(np.array(rows, abi.dtype("grad_run")), "choose.runs")
    norm = rt.zeros(adam_grad.reduce_blocks(size), np.float64, "choose.norm")
    partial_size = splits * size if own else sums * layer.n_padded
    partials = rt.zeros(partial_size, np.float32, "choose.partial")
    return AdamGradBuffers((), grad, partials, norm, norm.size, None, runs, (part,))


__all__ = ["choose", "table_of"]
