"""forward: online on s, online on s', target on s', one launch per layer (docs/step/forward.md).

The same kernel serves acting and evaluation: `record_forward` records one pass over R rows into any child.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foxhunt_rt.dqn.layout import Layer, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime, StepPlan
from foxhunt_rt.kernels import abi

ONLINE, ONLINE_NEXT, TARGET_NEXT = range(3)
"""Index of a pass in the logits: online on s, online on s', target on s'."""

# Regions of outputs that a block may own (rows, columns), by falling reuse of operands.
REGIONS = ((64, 64), (32, 64), (16, 64), (8, 32))


@dataclass(frozen=True)
class ForwardInputs:
    """What forward reads."""

    theta: Buffer  # f32 (P,) online parameters
    target: Buffer  # f32 (P,) target parameters
    state: Buffer  # f32 (B, Sp)
    next_state: Buffer  # f32 (B, Sp)


@dataclass(frozen=True)
class ForwardBuffers:
    """What forward writes."""

    hidden: tuple[Buffer, ...]  # f32 (3, B, Np) outputs of each trunk layer, after ReLU
    logits: Buffer  # f32 (3, B, Np) raw value and advantage logits: the loss combines them

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, batch: int) -> ForwardBuffers:
        """Allocates the buffers for ``batch`` rows."""
        hidden = tuple(
            rt.zeros((3, batch, layer.n_padded), np.float32, f"forward.hidden.{i}")
            for i, layer in enumerate(layout.layers[:-1])
        )
        return cls(hidden, rt.zeros((3, batch, layout.head_padded), np.float32, "forward.logits"))

    def kept(self, state: Buffer) -> list[Buffer]:
        """Each layer's input in the pass on s, (B, Kp): what the backward pass needs."""
        return [state, *(_pass(buffer, ONLINE) for buffer in self.hidden)]


@dataclass(frozen=True)
class ForwardWorkspace:
    """Outputs of `record_forward`."""

    hidden: tuple[Buffer, ...]  # f32 (R, Np) outputs of each trunk layer, after ReLU
    logits: Buffer  # f32 (R, Np)

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, rows: int, label: str) -> ForwardWorkspace:
        """Allocates the buffers for up to ``rows`` rows; ``label`` begins their labels."""
        hidden = tuple(
            rt.zeros((rows, layer.n_padded), np.float32, f"{label}.hidden.{i}")
            for i, layer in enumerate(layout.layers[:-1])
        )
        return cls(hidden, rt.zeros((rows, layout.head_padded), np.float32, f"{label}.logits"))

    def buffers(self) -> list[Buffer]:
        """All of them, for a child's declared writes."""
        return [*self.hidden, self.logits]


def reads(inputs: ForwardInputs) -> list[Buffer]:
    return [inputs.theta, inputs.target, inputs.state, inputs.next_state]


def writes(buffers: ForwardBuffers) -> list[Buffer]:
    return [*buffers.hidden, buffers.logits]


def record(child: Child, layout: NetworkLayout, inputs: ForwardInputs, buffers: ForwardBuffers) -> None:
    """One launch per layer; each computes its three passes side by side."""
    batch = inputs.state.shape[0]
    x = [inputs.state, inputs.next_state, inputs.next_state]
    for layer, y in zip(layout.layers, [*buffers.hidden, buffers.logits], strict=True):
        _linear(child, layer, batch, x, inputs.theta, inputs.target, y)
        x = [_pass(y, p) for p in (ONLINE, ONLINE_NEXT, TARGET_NEXT)]


def add(plan: StepPlan, layout: NetworkLayout, inputs: ForwardInputs, buffers: ForwardBuffers) -> None:
    """Appends the child to a plan."""
    with plan.child("forward", reads=reads(inputs), writes=writes(buffers)) as child:
        record(child, layout, inputs, buffers)


def record_forward(
    child: Child, layout: NetworkLayout, params: Buffer, x: Buffer, rows: int, workspace: ForwardWorkspace
) -> None:
    """Records one pass of the network over the first ``rows`` rows of ``x``: acting, evaluation.

    Parameters
    ----------
    child : Child
        Must declare ``params`` and ``x`` as read and ``workspace.buffers()`` as written.
    layout : NetworkLayout
    params : Buffer
        Flat parameters, f32 (P,).
    x : Buffer
        f32 (at least ``rows``, Sp), pads zero.
    rows : int
        R, at least 1 and at most the workspace's.
    workspace : ForwardWorkspace
        Its ``logits[:rows]`` receive the raw logits. A row's result does not depend on the other rows or on R.
    """
    for layer, y in zip(layout.layers, workspace.buffers(), strict=True):
        _linear(child, layer, rows, [x], params, None, y)
        x = y


def region(rows: int, columns: int, products: int, blocks: int) -> tuple[int, int]:
    """The largest of `REGIONS` that cuts ``products`` results of (rows, columns) into ``blocks``; else the last."""
    for height, width in REGIONS:
        if -(-rows // height) * -(-columns // width) * products >= blocks:
            return height, width
    return REGIONS[-1]


def threads(height: int, width: int) -> int:
    """Threads of a block: one a tile of 2 x 4 outputs, or of 8 x 4 in a block of 64 rows (cuda_src/network/tile.h)."""
    return height * width // (32 if height == abi.constant("LINEAR_BIG_ROWS") else 8)


def _linear(
    child: Child, layer: Layer, rows: int, x: list[Buffer], params: Buffer, target: Buffer | None, y: Buffer
) -> None:
    weight, bias = layer.weight, layer.bias
    padded = [*x, None, None]
    height, width = region(rows, layer.n_padded, len(x), 128)  # an H200 has 132 multiprocessors
    grid = (-(-layer.n_padded // width), -(-rows // height), len(x))
    child.launch(
        "linear_forward",
        grid=grid,
        block=(threads(height, width),),
        args=dict(
            x0=padded[0],
            x1=padded[1],
            x2=padded[2],
            y=y,
            w=params[weight.offset : weight.stop],
            bias=params[bias.offset : bias.stop],
            w_target=target[weight.offset : weight.stop] if target else None,
            bias_target=target[bias.offset : bias.stop] if target else None,
            passes=len(x),
            R=rows,
            K=layer.k,
            Kp=layer.k_padded,
            Np=layer.n_padded,
            relu=int(layer.relu),
            block_rows=height,
            block_cols=width,
        ),
    )


def _pass(buffer: Buffer, index: int) -> Buffer:
    """One pass (B, Np) of a (3, B, Np) buffer."""
    view: Buffer = buffer[index : index + 1].view(buffer.shape[1:])
    return view


__all__ = [
    "ONLINE",
    "ONLINE_NEXT",
    "TARGET_NEXT",
    "ForwardBuffers",
    "ForwardInputs",
    "ForwardWorkspace",
    "add",
    "reads",
    "record",
    "record_forward",
    "region",
    "threads",
    "writes",
]
