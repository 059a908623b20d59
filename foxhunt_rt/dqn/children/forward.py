"""forward: online on s, online on s', target on s' (docs/step/forward.md).

By the package's kernel one launch per layer, its three passes side by side; by cuBLASLt two products per layer (θ on s and s', θ⁻
on s'), or one in bf16, where the parameters are rounded to three adjacent copies first. A residual block takes one launch more.
Which layer goes which way stands in `NetworkProducts`. Where others of the step work on the trunk's output before ddqn, the heads
are a child of their own, forward.heads, beside which they run. The package's kernel serves acting and evaluation too, always in
f32: `record_forward` records one pass over R rows into any child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foxhunt_rt.dqn.blocks import BlockInputs, BlockWorkspace
from foxhunt_rt.dqn.children.products import (
    PASSES,
    Inputs,
    LayerWeights,
    NetworkProducts,
    flat,
    forward_bf16_spec,
    forward_spec,
    matrices,
)
from foxhunt_rt.dqn.layout import Layer, LayoutError, NetworkLayout
from foxhunt_rt.driver import Buffer
from foxhunt_rt.gemm.products import linear_threads, row_blocks
from foxhunt_rt.graph import Child, Runtime, StepPlan
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Windows

ONLINE, ONLINE_NEXT, TARGET_NEXT = range(PASSES)
"""Index of a pass in the logits: online on s, online on s', target on s'."""

# Regions of outputs that a block may own (rows, columns), by falling reuse of operands.
REGIONS = ((64, 64), (32, 64), (16, 64), (8, 32))
_PAIR_MOST_ROWS = 256  # of a batch whose first two layers may be one launch: 96 blocks with three passes
TARGET_LANE = "target"  # of the workspace of forward.target
_PER_BLOCK = 1024  # elements that a block rounds: a vector a thread, since loads do not overtake stores


@dataclass(frozen=True)
class ForwardInputs:
    """What forward reads."""

    theta: Buffer  # f32 (P,) online parameters
    target: Buffer  # f32 (P,) target parameters
    state: Buffer  # f32 (B, Sp)
    next_state: Buffer  # f32 (B, Sp)
    target_next: Buffer | None = (
        None  # f32 (B, Sp) s' for the target pass, where a block of theta- made it; None: next_state
    )
    depth: Buffer | None = None  # f32 (blocks, B) factors on residual blocks in the pass on s; None: 1

    @property
    def passes(self) -> tuple[Buffer, Buffer, Buffer]:
        """Each pass's input."""
        return self.state, self.next_state, self.next_state if self.target_next is None else self.target_next


@dataclass(frozen=True)
class Operands:
    """Parameters and inputs rounded for the products, made anew each step from the f32 masters."""

    params: Buffer  # bf16 (3, P): theta, theta, target; or f32 (2, P), rounded: theta, target
    states: Buffer  # bf16 (3, B, Sp): s, s', s'; or rounded f32, without the third unless a block makes it another
    head_bias: Buffer | None  # f32 (3, Np) biases of the heads, not rounded; with bf16 alone

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, batch: int, products: NetworkProducts) -> Operands | None:
        """Allocates them; None where the products take the masters."""
        if not (products.bf16 or products.rounded):
            return None
        copies, kind = (PASSES, abi.bf16) if products.bf16 else (2, np.dtype(np.float32))
        head = rt.zeros((PASSES, layout.head_padded), np.float32, "forward.head_bias") if products.bf16 else None
        return cls(rt.zeros((copies, layout.network_size), kind, "forward.params"),
                   rt.zeros((PASSES if layout.blocks else copies, batch, layout.state_padded), kind, "forward.states"),
                   head)  # fmt: skip

    def buffers(self) -> list[Buffer]:
        """All of them, for a child's declared writes."""
        return [self.params, self.states, *([self.head_bias] if self.head_bias is not None else [])]


@dataclass(frozen=True)
class ForwardBuffers:
    """What forward writes."""

    hidden: tuple[Buffer, ...]  # f32 or bf16 (3, B, Np) outputs of each trunk layer, after ReLU
    logits: Buffer  # f32 (3, B, Np) raw value and advantage logits: the loss combines them
    operands: Operands | None = None
    inner: tuple[
        Buffer | None, ...
    ] = ()  # f32 or bf16 (B, Np) by trunk layer: f(x) of a residual block in the pass on s

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, batch: int,
               products: NetworkProducts | None = None) -> ForwardBuffers:  # fmt: skip
        """Allocates the buffers for ``batch`` rows."""
        products = products or NetworkProducts.own(layout)
        kind = abi.bf16 if products.bf16 else np.dtype(np.float32)
        hidden = tuple(
            rt.zeros((PASSES, batch, layer.n_padded), kind, f"forward.hidden.{i}")
            for i, layer in enumerate(layout.layers[:-1])
        )
        logits = rt.zeros((PASSES, batch, layout.head_padded), np.float32, "forward.logits")
        inner = tuple(
            rt.zeros((batch, layer.n_padded), kind, f"forward.inner.{i}") if layer.residual else None
            for i, layer in enumerate(layout.layers[:-1])
        )
        return cls(hidden, logits, Operands.create(rt, layout, batch, products), inner)

    def kept(self, state: Buffer) -> list[Buffer]:
        """Each layer's input in the pass on s, (B, Kp): what the backward pass needs."""
        first = state if self.operands is None else matrices(self.operands.states, ONLINE, 1)
        return [first, *(matrices(buffer, ONLINE, 1) for buffer in self.hidden)]

    def weights(self, theta: Buffer) -> Buffer:
        """The flat online parameters as the products take them, (P of the network,) at least: what the backward pass needs."""
        return theta if self.operands is None else flat(self.operands.params[:1])


@dataclass(frozen=True)
class ForwardWorkspace:
    """Outputs of `record_forward`."""

    hidden: tuple[Buffer, ...]  # f32 (R, Np) outputs of each trunk layer, after ReLU
    logits: Buffer  # f32 (R, Np)
    blocks: tuple[BlockWorkspace, ...] = ()  # of the blocks in front of the trunk

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, rows: int, label: str) -> ForwardWorkspace:
        """Allocates the buffers for up to ``rows`` rows; ``label`` begins their labels."""
        hidden = tuple(
            rt.zeros((rows, layer.n_padded), np.float32, f"{label}.hidden.{i}")
            for i, layer in enumerate(layout.layers[:-1])
        )
        blocks = tuple(
            BlockWorkspace.create(rt, layout, block, rows, 1, f"{label}.{block.name}") for block in layout.blocks
        )
        return cls(hidden, rt.zeros((rows, layout.head_padded), np.float32, f"{label}.logits"), blocks)

    def buffers(self) -> list[Buffer]:
        """All of them, for a child's declared writes."""
        return [*self.hidden, self.logits, *(buffer for block in self.blocks for buffer in block.buffers())]


def reads(inputs: ForwardInputs) -> list[Buffer]:
    depth = [inputs.depth] if inputs.depth is not None else []
    return [inputs.theta, inputs.target, *inputs.passes, *depth]


def writes(buffers: ForwardBuffers) -> list[Buffer]:
    operands = [] if buffers.operands is None else buffers.operands.buffers()
    inner = [b for b in buffers.inner if b is not None]
    return [*operands, *buffers.hidden, *inner, buffers.logits]


def record(child: Child, layout: NetworkLayout, inputs: ForwardInputs, buffers: ForwardBuffers,
           products: NetworkProducts | None = None, *, heads: Child | None = None) -> None:  # fmt: skip
    """Operands rounded where the precision asks for it; then layer by layer, each with its three passes, the heads into a child
    of their own where there is one: not in bf16."""
    products = products or NetworkProducts.own(layout)
    batch = inputs.state.shape[0]
    outputs = [*buffers.hidden, buffers.logits]
    if products.bf16:
        _record_bf16(child, layout, inputs, buffers, products)
        return
    x: Inputs = inputs.passes
    theta, target = inputs.theta, inputs.target
    if products.rounded:
        assert buffers.operands is not None
        params, states = buffers.operands.params, buffers.operands.states
        theta, target = flat(params[:1]), flat(params[1:])
        distinct = [matrices(states, p, 1) for p in range(states.shape[0])]
        x = tuple(distinct[min(p, len(distinct) - 1)] for p in range(PASSES))
        n = layout.network_size
        masters = inputs.theta[:n], inputs.target[:n], *inputs.passes[: len(distinct)]
        for source, to in zip(masters, (theta, target, *distinct), strict=True):
            round_mantissa(child, source, to, products.bits)
    done = 0
    if _paired(layout, batch, products):
        own_pair(child, layout.layers[:2], batch, separate(x), theta, target, outputs[:2])
        done, x = 2, outputs[1]
    for i, (layer, y) in list(enumerate(zip(layout.layers, outputs, strict=True)))[done:]:
        if heads is not None and y is buffers.logits:
            child = heads
        weights = LayerWeights.of(layer, theta, target)
        if products.rounded and not (
            products.precision == "bf16" and layer.relu
        ):  # as the library has it: biases in f32
            weights = LayerWeights.of(layer, theta, target, inputs.theta, inputs.target)
        if products.forward[i]:
            library_layer(child, products, layer, batch, x, weights, y)
        else:
            own_layer(child, layer, batch, separate(x), weights, y)
        if layer.residual:
            assert isinstance(x, Buffer)
            residual_add(child, x, y, batch, buffers.inner[i], depth_of(inputs.depth, layer))
        if products.rounded and layer.relu:
            round_mantissa(child, y, y, products.bits)
        x = y


def _paired(layout: NetworkLayout, rows: int, products: NetworkProducts) -> bool:
    """Whether the first two layers are one launch: both narrow and by the package's kernels, and few rows."""
    first, second = layout.layers[:2]
    widest = max(first.k_padded, first.n_padded, second.n_padded)
    own = not (products.rounded or products.forward[0] or products.forward[1] or first.residual or second.residual)
    return own and second.relu and widest <= abi.constant("PAIR_WIDTH") and rows <= _PAIR_MOST_ROWS


def _record_bf16(child: Child, layout: NetworkLayout, inputs: ForwardInputs, buffers: ForwardBuffers,
                 products: NetworkProducts) -> None:  # fmt: skip
    """The operands in one launch, then one batched product a layer."""
    operands, batch = buffers.operands, inputs.state.shape[0]
    assert operands is not None and operands.head_bias is not None and products.gemm is not None
    n, m, head = layout.network_size, inputs.state.size, layout.layers[-1].bias
    child.launch("round_inputs", (-(-(n + m) // _PER_BLOCK),), (256,),
                 dict(theta=inputs.theta[:n], target=inputs.target[:n],
                      **{f"x{p}": x for p, x in enumerate(inputs.passes)}, w=operands.params, x=operands.states,
                      bias=operands.head_bias, n=n, m=m, bias_at=head.offset, n_bias=layout.head_padded,
                      per_block=_PER_BLOCK))  # fmt: skip
    x, params, last = operands.states, flat(operands.params), (PASSES - 1) * n
    for i, (layer, y) in enumerate(zip(layout.layers, [*buffers.hidden, buffers.logits], strict=True)):
        spec = forward_bf16_spec(layer, batch, n, layout.head_padded)
        bias = params[layer.bias.offset : last + layer.bias.stop] if layer.relu else flat(operands.head_bias)
        products.gemm.call(child, spec, x, params[layer.weight.offset : last + layer.weight.stop], y, bias)
        if layer.residual:
            residual_add(child, x, y, batch, buffers.inner[i], depth_of(inputs.depth, layer))
        x = y


def add(plan: StepPlan, layout: NetworkLayout, inputs: ForwardInputs, buffers: ForwardBuffers,
        products: NetworkProducts | None = None, *, apart: bool = False) -> None:  # fmt: skip
    """Appends the child to a plan; with ``apart``, and parameters that are not rounded first, the heads as another; and where
    `target_beside` the passes of theta- as ``forward.target``."""
    products = products or NetworkProducts.own(layout)
    apart = apart and buffers.operands is None
    if target_beside(layout, products):
        _add_target_beside(plan, layout, inputs, buffers, products, apart)
        return
    written = [b for b in writes(buffers) if not apart or b is not buffers.logits]
    with plan.child("forward", reads=reads(inputs), writes=written, scratch=products.scratch) as child:
        if not apart:
            record(child, layout, inputs, buffers, products)
            return
        with plan.child("forward.heads", reads=[inputs.theta, inputs.target, buffers.hidden[-1]], writes=[buffers.logits],
                        scratch=products.scratch, after="forward") as heads:  # fmt: skip
            record(child, layout, inputs, buffers, products, heads=heads)


def target_beside(layout: NetworkLayout, products: NetworkProducts) -> bool:
    """Whether the pass of theta- is a child of its own, beside those of theta: where the library makes most of the forward pass
    in f32. Its products are one or two waves of tiles, the last of them seldom full, and side by side they fill each other's."""
    sizes = [layer.weight.size for layer in layout.layers]
    library = sum(size for size, by_library in zip(sizes, products.forward, strict=True) if by_library)
    return products.precision != "bf16" and not products.rounded and 2 * library > sum(sizes)


def _add_target_beside(plan: StepPlan, layout: NetworkLayout, inputs: ForwardInputs, buffers: ForwardBuffers,
                       products: NetworkProducts, apart: bool) -> None:  # fmt: skip
    """The passes of theta and that of theta-, each a child; with ``apart`` the heads of all three another."""
    assert products.gemm is not None
    depth, inner = ([b for b in found if b is not None] for found in ((inputs.depth,), buffers.inner))
    x, layers = inputs.passes, layout.layers[:-1] if apart else layout.layers
    outputs = [*buffers.hidden, buffers.logits][: len(layers)]
    with plan.child("forward", reads=[inputs.theta, *x[:TARGET_NEXT], *depth],
                    writes=[*(y[:TARGET_NEXT] for y in outputs), *inner], scratch=products.scratch) as child:  # fmt: skip
        _record_passes(child, layers, inputs.theta, inputs, buffers, products, slice(0, TARGET_NEXT), "main")
    with plan.child("forward.target", reads=[inputs.target, x[TARGET_NEXT]], writes=[y[TARGET_NEXT:] for y in outputs],
                    scratch=products.gemm.scratch(TARGET_LANE)) as child:  # fmt: skip
        _record_passes(child, layers, inputs.target, inputs, buffers, products, slice(TARGET_NEXT, PASSES), TARGET_LANE)
    if not apart:
        return
    head, batch = layout.layers[-1], inputs.state.shape[0]
    with plan.child("forward.heads", reads=[inputs.theta, inputs.target, buffers.hidden[-1]], writes=[buffers.logits],
                    scratch=products.scratch) as child:  # fmt: skip
        weights = LayerWeights.of(head, inputs.theta, inputs.target)
        if products.forward[-1]:
            library_layer(child, products, head, batch, buffers.hidden[-1], weights, buffers.logits)
        else:
            own_layer(child, head, batch, separate(buffers.hidden[-1]), weights, buffers.logits)


def _record_passes(child: Child, layers: Sequence[Layer], params: Buffer, inputs: ForwardInputs, buffers: ForwardBuffers,
                   products: NetworkProducts, which: slice, lane: str) -> None:  # fmt: skip
    """The first layers of adjacent passes, of one network's parameters."""
    batch, x, online = inputs.state.shape[0], inputs.passes[which], which.start == ONLINE
    for i, (layer, out) in enumerate(zip(layers, [*buffers.hidden, buffers.logits], strict=False)):
        y, weights = out[which], LayerWeights.of(layer, params, None)
        if products.forward[i]:
            library_passes(child, products, layer, batch, x, weights, y, lane)
        else:
            own_layer(child, layer, batch, separate(x), weights, y)
        if layer.residual:
            assert isinstance(x, Buffer)
            inner, depth = (buffers.inner[i], depth_of(inputs.depth, layer)) if online else (None, None)
            residual_add(child, x, y, batch, inner, depth)
        x = y


def round_mantissa(child: Child, source: Buffer, to: Buffer, bits: int) -> None:
    """Records to = source rounded to ``bits`` bits of mantissa, both f32; they may be one buffer."""
    child.launch("round_mantissa", (-(-source.size // _PER_BLOCK),), (256,),
                 dict(x=source, y=to, n=source.size, per_block=_PER_BLOCK, bits=bits))  # fmt: skip


def record_forward(
    child: Child, layout: NetworkLayout, params: Buffer, x: Buffer, rows: int, workspace: ForwardWorkspace,
    windows: Windows | None = None, products: NetworkProducts | None = None, lane: str = "main",
) -> None:  # fmt: skip
    """Records one pass of the network over the first ``rows`` rows of ``x``: acting, evaluation, a pass beside the step's three.

    Parameters
    ----------
    child : Child
        Must declare ``params``, ``x`` and ``windows`` as read and ``workspace.buffers()`` as written.
    layout : NetworkLayout
    params : Buffer
        Flat parameters, f32 (P,); at least the first ``layout.forward_size``.
    x : Buffer
        f32 (at least ``rows``, Sp), pads zero.
    rows : int
        R, at least 1 and at most the workspace's.
    workspace : ForwardWorkspace
        Its ``logits[:rows]`` receive the raw logits. A row's result does not depend on the other rows or on R.
    windows : Windows, optional
        The states that end in ``x``: where ``layout.blocks`` stand in front of the trunk.
    products : NetworkProducts, optional
        Who makes the trunk and the heads, with f32 operands: the library those layers that it makes in the step, too, in the
        workspace of ``lane``, the child's scratch. None: the package's kernel, for acting and evaluation.
    """
    for block, work in zip(layout.blocks, workspace.blocks, strict=True):
        if windows is None:
            raise LayoutError(
                f"block {block.name} looks back on {block.window} states: give record_forward windows of them"
            )
        block.record(child, layout, params, None, [BlockInputs(x[:rows], windows[:rows])], work)
        x = matrices(work.out, 0, 1)
    for layer, y in zip(layout.layers, (*workspace.hidden, workspace.logits), strict=True):
        weights = LayerWeights.of(layer, params, None)
        if products is not None and products.forward[layout.layers.index(layer)]:
            assert products.gemm is not None
            spec = forward_spec(layer, rows, products.precision)
            products.gemm.call(child, spec, x, weights.w, y, weights.bias, lane)
        else:
            own_layer(child, layer, rows, [x], weights, y)
        if layer.residual:
            residual_add(child, x, y, rows)
        x = y


def residual_add(child: Child, x: Buffer, y: Buffer, rows: int, inner: Buffer | None = None,
                 scale: Buffer | None = None) -> None:  # fmt: skip
    """Records y = x + y, the end of a residual block: a pass of ``rows`` rows, or three.

    Parameters
    ----------
    x, y : Buffer
        (R, Np) or (passes, R, Np), f32 or bf16.
    inner : Buffer, optional
        (R, Np), receives what y was in the first pass.
    scale : Buffer, optional
        f32 (R,), factors on y in the first pass.
    """
    passes = y.shape[0] if len(y.shape) == 3 else 1
    kernel = "residual_add_bf16" if y.dtype == abi.bf16 else "residual_add"
    child.launch(kernel, (-(-passes * rows * y.shape[-1] // _PER_BLOCK),), (256,),
                 dict(x=x, y=y, inner=inner, scale=scale, passes=passes, R=rows, Np=y.shape[-1],
                      per_block=_PER_BLOCK))  # fmt: skip


def depth_of(depth: Buffer | None, layer: Layer) -> Buffer | None:
    """The factors (B,) of a residual block."""
    return None if depth is None or layer.block is None else flat(depth[layer.block : layer.block + 1])


def region(rows: int, columns: int, products: int, blocks: int) -> tuple[int, int]:
    """The largest of `REGIONS` that cuts ``products`` results of (rows, columns) into ``blocks``; else the last."""
    for height, width in REGIONS:
        if -(-rows // height) * -(-columns // width) * products >= blocks:
            return height, width
    return REGIONS[-1]


def library_layer(child: Child, products: NetworkProducts, layer: Layer, rows: int, x: Inputs, weights: LayerWeights,
                  y: Buffer) -> None:  # fmt: skip
    """Records a layer's three passes by cuBLASLt: θ on s and s' as one product where their inputs lie one under the other, as a
    trunk layer leaves them; then θ⁻ on s'."""
    for which in (slice(0, TARGET_NEXT), slice(TARGET_NEXT, PASSES)):
        library_passes(child, products, layer, rows, x[which], weights.of_pass(which.start), y[which])


def library_passes(child: Child, products: NetworkProducts, layer: Layer, rows: int, x: Inputs, weights: LayerWeights, y: Buffer,
                   lane: str = "main") -> None:  # fmt: skip
    """Records passes of one network's parameters: as one product where their inputs lie one under the other."""
    assert products.gemm is not None
    n = y.shape[0]
    if isinstance(x, Buffer):
        spec = forward_spec(layer, n * rows, products.precision)
        products.gemm.call(child, spec, matrices(x, 0, n), weights.w, matrices(y, 0, n), weights.bias, lane)
        return
    for p in range(n):
        products.gemm.call(child, forward_spec(layer, rows, products.precision), x[p], weights.w, matrices(y, p, 1),
                           weights.bias, lane)  # fmt: skip


def own_pair(child: Child, layers: Sequence[Layer], rows: int, x: Sequence[Buffer], theta: Buffer, target: Buffer | None,
             y: Sequence[Buffer]) -> None:  # fmt: skip
    """Records two narrow layers with ReLU, one to three passes, in one launch of the package's kernel."""
    (first, second), padded = layers, [*x, None, None]
    w, w2 = (LayerWeights.of(layer, theta, target) for layer in layers)
    child.launch("linear_pair", grid=(-(-rows // abi.constant("PAIR_ROWS")), len(x)), block=(128,),
                 args=dict(x0=padded[0], x1=padded[1], x2=padded[2], w=w.w, bias=w.bias, w_target=w.w_target,
                           bias_target=w.bias_target, w2=w2.w, bias2=w2.bias, w2_target=w2.w_target,
                           bias2_target=w2.bias_target, y=y[0], y2=y[1], passes=len(x), R=rows, K=first.k,
                           Kp=first.k_padded, Mp=first.n_padded, Np=second.n_padded))  # fmt: skip


def separate(x: Inputs) -> Sequence[Buffer]:
    """Each pass's input (B, Kp)."""
    return [matrices(x, p, 1) for p in range(x.shape[0])] if isinstance(x, Buffer) else x


def own_layer(child: Child, layer: Layer, rows: int, x: Sequence[Buffer], weights: LayerWeights, y: Buffer, *,
              residual: bool = False) -> None:  # fmt: skip
    """Records a layer's passes, one to three, by the package's kernel. With ``residual`` they are added to what ``y`` holds."""
    padded = [*x, None, None]
    height, width = region(rows, layer.n_padded, len(x), 128)  # an H200 has 132 multiprocessors
    grid = (-(-layer.n_padded // width), row_blocks(rows, height), len(x))
    child.launch(
        "linear_forward",
        grid=grid,
        block=(linear_threads(height, width),),
        args=dict(
            x0=padded[0],
            x1=padded[1],
            x2=padded[2],
            y=y,
            w=weights.w,
            bias=weights.bias,
            w_target=weights.w_target,
            bias_target=weights.bias_target,
            passes=len(x),
            R=rows,
            K=layer.k,
            Kp=layer.k_padded,
            Np=layer.n_padded,
            relu=int(layer.relu),
            residual=int(residual),
            block_rows=height,
            block_cols=width,
        ),
    )


__all__ = [
    "ONLINE",
    "ONLINE_NEXT",
    "TARGET_LANE",
    "TARGET_NEXT",
    "ForwardBuffers",
    "ForwardInputs",
    "ForwardWorkspace",
    "Operands",
    "add",
    "depth_of",
    "library_layer",
    "own_layer",
    "own_pair",
    "reads",
    "record",
    "record_forward",
    "region",
    "residual_add",
    "round_mantissa",
    "separate",
    "writes",
]
