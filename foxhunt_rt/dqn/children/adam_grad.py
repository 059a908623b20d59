"""adam_grad: from dlogits to the flat gradient and the squares of its global norm (docs/step/adam_grad.md).

One launch per layer, heads first: each makes the layer's dW, db and dX together, since all three need only its dY. A
batch of 256 rows and more is split, so that the row sums spread over the device; one more launch then adds the splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foxhunt_rt.dqn.children.adam import per_block
from foxhunt_rt.dqn.children.forward import region, threads
from foxhunt_rt.dqn.groups import Groups
from foxhunt_rt.dqn.layout import Layer, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime, StepPlan

_REDUCE_THREADS = 256
_SPLIT_ROWS = 128  # rows of a split at least: one multiply-add chain of a thread (2 to 3 us on an H200, predicted)
_MAX_SPLITS = 16


@dataclass(frozen=True)
class AdamGradInputs:
    """What adam_grad reads."""

    theta: Buffer  # f32 (P,) online parameters
    dlogits: Buffer  # f32 (B, Np) gradient of the loss by the head product's output, pads zero
    kept: tuple[Buffer, ...]  # f32 (B, Kp) each layer's input: ForwardBuffers.kept(state)
    trunk_more: Buffer | None = None  # f32 (heads, B, Kp) gradients of other heads by the trunk's output; None: none


@dataclass(frozen=True)
class AdamGradBuffers:
    """What adam_grad writes."""

    dhidden: tuple[Buffer, ...]  # f32 (B, Np) gradient of each trunk layer before its ReLU
    grad: Buffer  # f32 (P,) gradient before the clip, laid out as the parameters; groups write their own part of it
    partial: Buffer | None  # f32 (splits, P of the network) gradient by split; None: one, written to grad at once
    norm_part: Buffer  # f64 (parts,) sums of squares: the network's, then those of the groups (dqn/groups.py)
    network_parts: int  # how many of them are the network's

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, batch: int) -> AdamGradBuffers:
        """Allocates the buffers for ``batch`` rows."""
        n = splits(batch)
        parts = network_parts(layout, batch)
        return cls(
            tuple(
                rt.zeros((batch, layer.n_padded), np.float32, f"adam_grad.dhidden.{i}")
                for i, layer in enumerate(layout.layers[:-1])
            ),
            rt.zeros(layout.size, np.float32, "adam_grad.grad"),
            rt.zeros((n, layout.network_size), np.float32, "adam_grad.partial") if n > 1 else None,
            rt.zeros(Groups(layout, parts).parts, np.float64, "adam_grad.norm_part"),
            parts,
        )


def splits(batch: int) -> int:
    """Into how many runs the rows of a batch are cut for the row sums of dW and db."""
    return max(1, min(batch // _SPLIT_ROWS, _MAX_SPLITS))


def network_parts(layout: NetworkLayout, batch: int) -> int:
    """Partial sums of squares that the network's gradient has."""
    n = splits(batch)
    return _reduce_blocks(layout) if n > 1 else sum(_weight_blocks(layer, n) for layer in layout.layers)


def reads(layout: NetworkLayout, inputs: AdamGradInputs) -> list[Buffer]:
    more = [inputs.trunk_more] if inputs.trunk_more is not None else []
    return [inputs.theta[: layout.network_size], inputs.dlogits, *inputs.kept, *more]


def writes(layout: NetworkLayout, buffers: AdamGradBuffers) -> list[Buffer]:
    partial = [buffers.partial] if buffers.partial is not None else []
    return [*buffers.dhidden, buffers.grad[: layout.network_size], *partial,
            buffers.norm_part[: buffers.network_parts]]  # fmt: skip


def record(child: Child, layout: NetworkLayout, inputs: AdamGradInputs, buffers: AdamGradBuffers) -> None:
    """One launch per layer, from the heads to the first; then, when the batch is split, the sum of the splits."""
    n = splits(inputs.dlogits.shape[0])
    gradients = [*buffers.dhidden, inputs.dlogits]  # by layer: gradient of its output before the activation
    part = 0
    for i in reversed(range(len(layout.layers))):
        layer = layout.layers[i]
        blocks = _weight_blocks(layer, n)
        squares = buffers.norm_part[part : part + blocks] if buffers.partial is None else None
        _linear_backward(
            child,
            layer,
            inputs.theta,
            inputs.kept[i],
            gradients[i],
            gradients[i - 1] if i else None,
            buffers.grad[: layout.network_size] if buffers.partial is None else buffers.partial,
            n,
            squares,
            inputs.trunk_more if i == len(layout.layers) - 1 else None,
        )
        part += blocks
    if buffers.partial is not None:
        child.launch(
            "grad_reduce",
            grid=(_reduce_blocks(layout),),
            block=(_REDUCE_THREADS,),
            args=dict(
                part=buffers.partial,
                grad=buffers.grad[: layout.network_size],
                norm_part=buffers.norm_part[: buffers.network_parts],
                n=layout.network_size,
                splits=n,
                blocks=_reduce_blocks(layout),
                per_block=per_block(layout),
            ),
        )


def add(plan: StepPlan, layout: NetworkLayout, inputs: AdamGradInputs, buffers: AdamGradBuffers) -> None:
    """Appends the child to a plan."""
    with plan.child("adam_grad", reads=reads(layout, inputs), writes=writes(layout, buffers)) as child:
        record(child, layout, inputs, buffers)


def _linear_backward(
    child: Child,
    layer: Layer,
    theta: Buffer,
    x: Buffer,
    dy: Buffer,
    dx: Buffer | None,
    grad: Buffer,
    n_splits: int,
    squares: Buffer | None,
    more: Buffer | None,
) -> None:
    rows, weight, bias = dy.shape[0], layer.weight, layer.bias
    flat = grad.view((grad.size,))
    height, width = _weight_region(layer, n_splits)
    weight_blocks = _weight_blocks(layer, n_splits)
    dx_rows, dx_cols = _input_region(rows, layer)
    input_blocks = -(-rows // dx_rows) * (layer.k_padded // dx_cols) if dx is not None else 0
    child.launch(
        "linear_backward",
        grid=(n_splits * weight_blocks + input_blocks,),
        block=(max(128, threads(height, width)),),
        args=dict(
            x=x,
            dy=dy,
            w=theta[weight.offset : weight.stop] if dx is not None else None,
            dw=flat[weight.offset :],
            db=flat[bias.offset :],
            dx=dx,
            norm_part=squares,
            dx_more=more,
            split_stride=flat.size // n_splits,
            R=rows,
            K=layer.k,
            Kp=layer.k_padded,
            Np=layer.n_padded,
            splits=n_splits,
            dw_blocks=weight_blocks,
            block_rows=height,
            block_cols=width,
            dx_rows=dx_rows,
            dx_cols=dx_cols,
            more=more.shape[0] if more is not None else 0,
        ),
    )


def _weight_region(layer: Layer, n_splits: int) -> tuple[int, int]:
    return region(layer.k_padded, layer.n_padded, n_splits, 32)  # the dx blocks run beside these


def _input_region(rows: int, layer: Layer) -> tuple[int, int]:
    """Rows and columns of dX that a block makes: 4 x 8 spreads a small layer over every multiprocessor, 16 x 16 reads the
    operands a third as often, 32 x 32 a sixth."""
    if rows * layer.k_padded <= 8192:
        return 4, 8
    return (32, 32) if rows * layer.k_padded >= 1 << 16 and layer.k_padded % 32 == 0 else (16, 16)


def _weight_blocks(layer: Layer, n_splits: int) -> int:
    """Blocks of a split that make dW and, in one more row of blocks, db."""
    height, width = _weight_region(layer, n_splits)
    return (-(-layer.k_padded // height) + 1) * -(-layer.n_padded // width)


def _reduce_blocks(layout: NetworkLayout) -> int:
    return -(-layout.network_size // per_block(layout))


__all__ = ["AdamGradBuffers", "AdamGradInputs", "add", "network_parts", "reads", "record", "splits", "writes"]
