"""adam_grad: from dlogits to the flat gradient and the squares of its global norm (docs/step/adam_grad.md).

By the package's kernel one launch per layer, heads first: it makes dW, db and dX together, since all three need only dY; the
first two layers of a narrow network are one, `linear_backward_pair`, as they are in the forward pass. A batch of 256 rows or
more is split, so that the row sums spread over the device. By cuBLASLt two products a layer, and `gradient_rows` between them:
the derivative of ReLU and the column sums for db. One last launch, `grad_reduce`, adds what was split.

A residual block x + scale f(x) takes one more launch, `residual_gradient`: the gradient e by its output goes on to its input as
it is (`carry`), and scale * e through f. In linear_backward e is one more gradient that is added to dX. That the kernel zeroes
it where x is not above 0 loses nothing: x is a sum of outputs of ReLUs, so where it is 0 all of them are, and none lets it pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foxhunt_rt.dqn.children.forward import depth_of, region, round_mantissa
from foxhunt_rt.dqn.children.products import NetworkProducts, input_gradient_spec, weight_gradient_spec
from foxhunt_rt.dqn.groups import Groups
from foxhunt_rt.dqn.layout import Layer, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.gemm.products import linear_threads
from foxhunt_rt.graph import Child, Runtime, StepPlan
from foxhunt_rt.kernels import abi

_REDUCE_THREADS = 256
_SPLIT_ROWS = 128  # rows of a split at least: one multiply-add chain of a thread (2 to 3 us on an H200, predicted)
_MAX_SPLITS, _LONG_ROWS = 16, 1024  # splits at most, unless they would be longer than this
_MOST_LONG = 64
_SUM_ROWS, _MOST_SUMS = 64, 32  # of gradient_rows: rows of a split at least, and splits at most


@dataclass(frozen=True)
class AdamGradInputs:
    """What adam_grad reads."""

    theta: Buffer  # (P,) online parameters as the products take them: ForwardBuffers.weights(theta)
    dlogits: Buffer  # f32 (B, Np) gradient of the loss by the head product's output, pads zero
    kept: tuple[Buffer, ...]  # (B, Kp) each layer's input: ForwardBuffers.kept(state)
    trunk_more: Buffer | None = None  # f32 (heads, B, Kp) gradients of other heads by the trunk's output; None: none
    inner: tuple[Buffer | None, ...] = ()  # (B, Np) by trunk layer: ForwardBuffers.inner
    depth: Buffer | None = None  # f32 (blocks, B) factors on residual blocks; None: 1


@dataclass(frozen=True)
class Part:
    """Where the partial gradients of one layer lie in `AdamGradBuffers.partial`, in floats; splits 0: written to grad at once."""

    weights: int = 0
    bias: int = 0
    stride: int = 0
    weight_splits: int = 0
    bias_splits: int = 0


@dataclass(frozen=True)
class AdamGradBuffers:
    """What adam_grad writes."""

    dhidden: tuple[
        Buffer | None, ...
    ]  # f32 or bf16 (B, Np) gradient of each trunk layer before its ReLU; None: of a pair's first
    grad: Buffer  # f32 (P,) gradient before the clip, laid out as the parameters; groups write their own part of it
    partial: Buffer | None  # f32 partial gradients, at the places of `parts`; None: all is written to grad at once
    norm_part: Buffer  # f64 (parts,) sums of squares: the network's, then those of the groups (dqn/groups.py)
    network_parts: int  # how many of them are the network's
    dlogits: Buffer | None = None  # bf16 or rounded f32 (B, Np): dlogits as the products take them
    runs: Buffer | None = None  # grad_run (n,): which partial gradients grad_reduce adds; None where there is none
    parts: tuple[Part, ...] = ()  # by layer
    dinput: Buffer | None = None  # f32 (B, Sp) gradient by the trunk's input; None: no block stands before the trunk
    carry: tuple[Buffer | None, ...] = ()  # f32 (B, Np) by trunk layer: gradient of a residual block's output

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, batch: int,
               products: NetworkProducts | None = None) -> AdamGradBuffers:  # fmt: skip
        """Allocates the buffers for ``batch`` rows."""
        products = products or NetworkProducts.own(layout)
        parts, size = _parts(layout, batch, products)
        reduced = size > 0
        paired = _paired(layout, batch, products)
        separate = layout.layers[2 if paired else 0 :]
        pair = _pair_blocks(layout) if paired else 0
        blocks = (
            reduce_blocks(layout.network_size) if reduced else sum(weight_blocks(layer, 1) for layer in separate) + pair
        )
        kind = abi.bf16 if products.bf16 else np.dtype(np.float32)
        changed = products.bf16 or products.rounded
        return cls(
            tuple(
                None if paired and i == 0 else rt.zeros((batch, layer.n_padded), kind, f"adam_grad.dhidden.{i}")
                for i, layer in enumerate(layout.layers[:-1])
            ),
            rt.zeros(layout.size, np.float32, "adam_grad.grad"),
            rt.zeros(size, np.float32, "adam_grad.partial") if reduced else None,
            rt.zeros(Groups(layout, blocks).parts, np.float64, "adam_grad.norm_part"),
            blocks,
            rt.zeros((batch, layout.head_padded), kind, "adam_grad.dlogits") if changed else None,
            rt.array(_runs(layout, parts), "adam_grad.runs") if reduced else None,
            parts,
            rt.zeros((batch, layout.state_padded), np.float32, "adam_grad.dinput") if layout.blocks else None,
            tuple(
                rt.zeros((batch, layer.n_padded), np.float32, f"adam_grad.carry.{i}") if layer.residual else None
                for i, layer in enumerate(layout.layers[:-1])
            ),
        )


def splits(batch: int) -> int:
    """Into how many runs the rows of a batch are cut for the row sums of dW and db."""
    return max(1, min(batch // _SPLIT_ROWS, _MAX_SPLITS), min(batch // _LONG_ROWS, _MOST_LONG))


def sum_splits(batch: int) -> int:
    """Into how many runs gradient_rows cuts the rows of a batch."""
    return max(1, min(batch // _SUM_ROWS, _MOST_SUMS))


def reads(layout: NetworkLayout, inputs: AdamGradInputs, buffers: AdamGradBuffers) -> list[Buffer]:
    optional = [b for b in (inputs.trunk_more, buffers.runs, inputs.depth, *inputs.inner) if b is not None]
    return [inputs.theta[: layout.network_size], inputs.dlogits, *inputs.kept, *optional]


def writes(layout: NetworkLayout, buffers: AdamGradBuffers) -> list[Buffer]:
    optional = [
        b for b in (*buffers.dhidden, buffers.partial, buffers.dlogits, buffers.dinput, *buffers.carry) if b is not None
    ]
    return [buffers.grad[: layout.network_size], *optional,
            buffers.norm_part[: buffers.network_parts]]  # fmt: skip


def record(child: Child, layout: NetworkLayout, inputs: AdamGradInputs, buffers: AdamGradBuffers,
           products: NetworkProducts | None = None) -> None:  # fmt: skip
    """Layer by layer from the heads to the first; then, when anything is in parts, their sum."""
    products = products or NetworkProducts.own(layout)
    layers = layout.layers
    gradients = [
        *buffers.dhidden,
        _prepared(child, layout, inputs, buffers, products),
    ]  # by layer, before its activation
    part = 0
    paired = _paired(layout, inputs.dlogits.shape[0], products)
    for i in reversed(range(len(layers))):
        layer = layers[i]
        if paired and i == 1:
            own_pair(child, layers[:2], inputs, buffers, buffers.norm_part[part : part + _pair_blocks(layout)])
            break
        below = gradients[i - 1] if i else buffers.dinput
        carry = buffers.carry[i - 1] if buffers.carry and i else None  # of the layer below, where that is a block
        more = inputs.trunk_more if i == len(layers) - 1 else None
        if layer.residual:
            past = buffers.carry[i]
            assert past is not None
            more = past.view((1, *past.shape))
        dy = gradients[i]
        assert dy is not None  # of a pair's first layer alone
        w, to = inputs.theta[layer.weight.offset : layer.weight.stop], _to(buffers, layer, buffers.parts[i])
        if products.backward[i]:
            library_layer(child, products, layer, w, inputs.kept[i], dy, below, to[0])
        else:
            n = max(1, buffers.parts[i].weight_splits)
            squares = buffers.norm_part[part : part + weight_blocks(layer, n)] if buffers.partial is None else None
            own_layer(child, layer, w, inputs.kept[i], dy, below if carry is None else carry, to,
                      buffers.parts[i].stride, n, squares, more, relu=i > 0)  # fmt: skip
            part += weight_blocks(layer, n)
        if below is None or i == 0:
            continue
        sums = _sums(buffers, layers[i - 1], buffers.parts[i - 1]) if products.backward[i - 1] else None
        if carry is not None:
            inner, scale = inputs.inner[i - 1], depth_of(inputs.depth, layers[i - 1])
            assert inner is not None
            if products.backward[i]:
                residual_gradient(child, below, inner, scale, below, sums, carry, more)
            else:
                residual_gradient(child, carry, inner, scale, below, sums)
        elif products.backward[i]:
            gradient_rows(child, below, inputs.kept[i], below, sums, more)
        elif sums is not None:
            gradient_rows(child, below, None, None, sums)
        if products.rounded:
            round_mantissa(child, below, below, products.bits)
    if buffers.partial is not None:
        reduce(child, buffers.grad[: layout.network_size], buffers)


def _prepared(child: Child, layout: NetworkLayout, inputs: AdamGradInputs, buffers: AdamGradBuffers,
              products: NetworkProducts) -> Buffer:  # fmt: skip
    """dlogits as the products take them, and on the way their column sums where the library makes the heads."""
    top = layout.layers[-1]
    sums = _sums(buffers, top, buffers.parts[-1]) if products.backward[-1] else None
    if buffers.dlogits is None:
        if sums is not None:
            gradient_rows(child, inputs.dlogits, None, None, sums)
        return inputs.dlogits
    if products.rounded:
        round_mantissa(child, inputs.dlogits, buffers.dlogits, products.bits)
        return buffers.dlogits
    rows, columns = inputs.dlogits.shape
    assert sums is not None
    child.launch("gradient_to_bf16", _rows_grid(columns, sums.shape[0]), (256,),
                 dict(x=inputs.dlogits, y=buffers.dlogits, part=sums, R=rows, Np=columns, splits=sums.shape[0]))  # fmt: skip
    return buffers.dlogits


def add(plan: StepPlan, layout: NetworkLayout, inputs: AdamGradInputs, buffers: AdamGradBuffers,
        products: NetworkProducts | None = None) -> None:  # fmt: skip
    """Appends the child to a plan."""
    products = products or NetworkProducts.own(layout)
    with plan.child(
        "adam_grad", reads=reads(layout, inputs, buffers), writes=writes(layout, buffers), scratch=products.scratch
    ) as child:
        record(child, layout, inputs, buffers, products)


def library_layer(child: Child, products: NetworkProducts, layer: Layer, w: Buffer, x: Buffer, dy: Buffer, dx: Buffer | None,
                  dw: Buffer) -> None:  # fmt: skip
    """Records dX, before the derivative of ReLU, and dW by cuBLASLt."""
    assert products.gemm is not None
    rows = dy.shape[0]
    if dx is not None:
        out = "bf16" if dx.dtype == abi.bf16 else "f32"
        products.gemm.call(child, input_gradient_spec(layer, rows, products, out), dy, w, dx)
    products.gemm.call(child, weight_gradient_spec(layer, rows, products), x, dy, dw)


def gradient_rows(child: Child, x: Buffer, h: Buffer | None, y: Buffer | None, part: Buffer | None,
                  more: Buffer | None = None) -> None:  # fmt: skip
    """Records y = x + the sum of ``more`` (heads, R, Np) where h > 0, and the column sums of y into ``part`` (splits, Np)."""
    rows, columns = x.shape
    n = part.shape[0] if part is not None else sum_splits(rows)
    kernel = "gradient_rows_bf16" if x.dtype == abi.bf16 else "gradient_rows"
    child.launch(kernel, _rows_grid(columns, n), (256,),
                 dict(x=x, h=h, more=more, y=y, part=part, R=rows, Np=columns, splits=n,
                      heads=more.shape[0] if more is not None else 0))  # fmt: skip


def residual_gradient(child: Child, x: Buffer, inner: Buffer, scale: Buffer | None, y: Buffer, part: Buffer | None = None,
                      carry: Buffer | None = None, more: Buffer | None = None) -> None:  # fmt: skip
    """Records y = scale (R,) * e where ``inner`` > 0, e = x + the sum of ``more`` (heads, R, Np), which goes to ``carry``; and
    the column sums of y into ``part`` (splits, Np). y may be x."""
    rows, columns = y.shape
    n = part.shape[0] if part is not None else sum_splits(rows)
    kernel = "residual_gradient_bf16" if y.dtype == abi.bf16 else "residual_gradient"
    child.launch(kernel, _rows_grid(columns, n), (256,),
                 dict(x=x, more=more, inner=inner, scale=scale, carry=carry, y=y, part=part, R=rows, Np=columns, splits=n,
                      heads=more.shape[0] if more is not None else 0))  # fmt: skip


def own_layer(child: Child, layer: Layer, w: Buffer, x: Buffer, dy: Buffer, dx: Buffer | None, to: tuple[Buffer, Buffer],
              stride: int, n_splits: int, squares: Buffer | None, more: Buffer | None = None, *,
              relu: bool = True) -> None:  # fmt: skip
    """Records dX, with the derivative of ReLU where ``x`` is the output of one (``relu``), dW and db by the package's kernel."""
    rows = dy.shape[0]
    height, width = _weight_region(layer, n_splits)
    made = weight_blocks(layer, n_splits)
    dx_rows, dx_cols = _input_region(rows, layer)
    input_blocks = -(-rows // dx_rows) * (layer.k_padded // dx_cols) if dx is not None else 0
    child.launch(
        "linear_backward",
        grid=(n_splits * made + input_blocks,),
        block=(max(128, linear_threads(height, width)),),
        args=dict(
            x=x,
            dy=dy,
            w=w if dx is not None else None,
            dw=to[0],
            db=to[1],
            dx=dx,
            norm_part=squares,
            dx_more=more,
            split_stride=stride,
            R=rows,
            K=layer.k,
            Kp=layer.k_padded,
            Np=layer.n_padded,
            splits=n_splits,
            dw_blocks=made,
            block_rows=height,
            block_cols=width,
            dx_rows=dx_rows,
            dx_cols=dx_cols,
            more=more.shape[0] if more is not None else 0,
            relu=int(relu),
        ),
    )


def _paired(layout: NetworkLayout, rows: int, products: NetworkProducts) -> bool:
    """Whether the first two layers are one launch: both narrow, by the package's kernels and without a residual, few rows, and
    nobody wants the gradient by the input."""
    first, second = layout.layers[:2]
    widest = max(first.k_padded, first.n_padded, second.n_padded)
    own = not (products.rounded or products.bf16 or any(products.backward) or first.residual or second.residual)
    return (own and second.relu and not layout.blocks and rows <= abi.constant("PAIR_GRADIENT_ROWS")
            and widest <= abi.constant("PAIR_WIDTH"))  # fmt: skip


def _pair_blocks(layout: NetworkLayout) -> int:
    """Blocks of linear_backward_pair."""
    first, second = layout.layers[:2]
    return weight_blocks(second, 1) + first.n_padded // abi.constant("PAIR_GRADIENT_COLS")


def own_pair(child: Child, layers: Sequence[Layer], inputs: AdamGradInputs, buffers: AdamGradBuffers,
             squares: Buffer) -> None:  # fmt: skip
    """Records the gradients of the first two layers in one launch."""
    (first, second), dy = layers, buffers.dhidden[1]
    assert dy is not None
    height, width = _weight_region(second, 1)
    (dw0, db0), (dw, db) = (_to(buffers, layer, Part()) for layer in layers)
    child.launch("linear_backward_pair", (squares.size,), (160,), dict(
        x0=inputs.kept[0], x=inputs.kept[1], dy=dy, w=inputs.theta[second.weight.offset : second.weight.stop], dw0=dw0, db0=db0,
        dw=dw, db=db, norm_part=squares, R=dy.shape[0], K=first.k, Kp=first.k_padded, M=second.k, Mp=second.k_padded,
        Np=second.n_padded, dw_blocks=weight_blocks(second, 1), block_rows=height, block_cols=width))  # fmt: skip


def reduce(child: Child, grad: Buffer, buffers: AdamGradBuffers) -> None:
    """Records the sum of what is in parts, and the squares of the whole gradient."""
    assert buffers.partial is not None and buffers.runs is not None
    blocks = reduce_blocks(grad.size)
    child.launch("grad_reduce", (blocks,), (_REDUCE_THREADS,),
                 dict(part=buffers.partial, done=grad, grad=grad, norm_part=buffers.norm_part[:blocks], runs=buffers.runs,
                      n=grad.size, parts=buffers.partial.size, n_runs=buffers.runs.size, blocks=blocks,
                      per_block=_reduce_block(grad.size), share=1))  # fmt: skip


def _reduce_block(size: int) -> int:
    """Elements that a block of grad_reduce owns: a thread has one or two vectors, whose partial gradients it adds in turn."""
    return 1024 if size <= 1 << 20 else 2048


def reduce_blocks(size: int) -> int:
    """Blocks of grad_reduce for a gradient of so many elements: as many partial sums of squares."""
    return -(-size // _reduce_block(size))


def _parts(layout: NetworkLayout, batch: int, products: NetworkProducts) -> tuple[tuple[Part, ...], int]:
    """Where each layer's partial gradients lie, and how many floats they take; 0: nothing is in parts."""
    n, at, found = splits(batch), 0, []
    for layer, library in zip(layout.layers, products.backward, strict=True):
        if library:
            sums = sum_splits(batch)
            found.append(Part(bias=at, stride=layer.n_padded, bias_splits=sums))
            at += sums * layer.n_padded
        elif n > 1:
            stride = layer.weight.size + layer.bias.size
            found.append(Part(at, at + layer.weight.size, stride, n, n))
            at += n * stride
        else:
            found.append(Part())
    return tuple(found), at


def _runs(layout: NetworkLayout, parts: tuple[Part, ...]) -> np.ndarray[Any, Any]:
    """The stretches of the flat gradient in ascending order, without gaps: what no layer owns is there already."""
    rows = []
    for layer, part in zip(layout.layers, parts, strict=True):
        rows.append((layer.weight.offset, layer.weight.stop, part.weights, part.stride, part.weight_splits, 0))
        rows.append((layer.bias.offset, layer.bias.stop, part.bias, part.stride, part.bias_splits, 0))
    filled: list[tuple[int, ...]] = []
    for row in [*sorted(rows), (layout.network_size, layout.network_size, 0, 0, 0, 0)]:
        end = filled[-1][1] if filled else 0
        if row[0] > end:
            filled.append((end, row[0], 0, 0, 0, 0))
        if row[1] > row[0]:
            filled.append(row)
    return np.array(filled, abi.dtype("grad_run"))


def _to(buffers: AdamGradBuffers, layer: Layer, part: Part) -> tuple[Buffer, Buffer]:
    """Where dW and db of a layer go: the gradient, or the first of its partial gradients and all behind it."""
    if part.weight_splits:
        assert buffers.partial is not None
        return buffers.partial[part.weights :], buffers.partial[part.bias :]
    return buffers.grad[layer.weight.offset : layer.weight.stop], buffers.grad[layer.bias.offset : layer.bias.stop]


def _sums(buffers: AdamGradBuffers, layer: Layer, part: Part) -> Buffer:
    """Where gradient_rows writes the column sums of a layer's gradient: (splits, Np)."""
    assert buffers.partial is not None
    stop = part.bias + part.bias_splits * layer.n_padded
    view: Buffer = buffers.partial[part.bias : stop].view((part.bias_splits, layer.n_padded))
    return view


def _rows_grid(columns: int, n: int) -> tuple[int, int]:
    return -(-columns // abi.constant("GRADIENT_COLS")), n


def _weight_region(layer: Layer, n_splits: int) -> tuple[int, int]:
    return region(layer.k_padded, layer.n_padded, n_splits, 32)  # the dx blocks run beside these


def _input_region(rows: int, layer: Layer) -> tuple[int, int]:
    """Rows and columns of dX that a block makes: 4 x 8 spreads a small layer over every multiprocessor, 16 x 16 reads the
    operands a third as often, 32 x 32 a sixth."""
    if rows * layer.k_padded <= 8192:
        return 4, 8
    return (32, 32) if rows * layer.k_padded >= 1 << 16 and layer.k_padded % 32 == 0 else (16, 16)


def weight_blocks(layer: Layer, n_splits: int) -> int:
    """Blocks of a split that make dW and, in one more row of blocks, db."""
    height, width = _weight_region(layer, n_splits)
    return (-(-layer.k_padded // height) + 1) * -(-layer.n_padded // width)


__all__ = [
    "AdamGradBuffers", "AdamGradInputs", "Part", "add", "gradient_rows", "library_layer", "own_layer", "own_pair", "reads",
    "record", "reduce", "reduce_blocks", "residual_gradient", "splits", "sum_splits", "weight_blocks", "writes",
]  # fmt: skip
