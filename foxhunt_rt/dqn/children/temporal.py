"""forward.temporal and adam_grad.temporal: a Mamba-2 block in front of the trunk (docs/step/temporal.md).

The way there, by three passes side by side: forward.temporal_past: in_proj on all positions of the windows; beside it
forward.temporal_gate: z_proj on the state; forward.temporal: 1. `mamba_scan`, a block a row, 2. out_proj, added to the state. The
way back on s: adam_grad.temporal: 1. out_proj, 2. `mamba_scan_backward`; adam_grad.temporal_gate: z_proj; beside it
adam_grad.temporal_past: 1. in_proj, 2. `grad_reduce`: what was split, and the squares of the group's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foxhunt_rt.config import Config, ConfigError, TemporalConfig
from foxhunt_rt.dqn.blocks import BlockInputs, BlockWorkspace, InputBlock
from foxhunt_rt.dqn.children.block_products import BlockGradients, forward_product, forward_scratch, layers_of
from foxhunt_rt.dqn.children.products import flat, matrices
from foxhunt_rt.dqn.children.side_products import SideProducts
from foxhunt_rt.dqn.extension import Extension, GroupView, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import STATE_PAD, Layer, NetworkLayout, ParameterGroup, Segment, Tensor, padded
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi

_THREADS = 128
_SHARED_FLOATS = (48 << 10) // 4  # what every device gives a block
#: Threads of a block of the scans: where blocks are few a row's latency counts, where they are many how many of them fit (with
#: twice as many 1.8 and 1.3 times as long: tools/bench/NOTES.md, entry 26).
_SCAN_THREADS, _BACKWARD_THREADS, _FEW_BLOCKS = (256, 64), (512, 128), 264  # 2 blocks a multiprocessor of an H200
_MOST_BLOCKS = 512  # of mamba_scan_backward: as many partial gradients of the small parameters
_PRODUCTS = ("in_proj", "z_proj", "out_proj")
#: Small parameters, side by side behind the products, in the order of the kernels' offsets.
_SMALL = ("conv.weight", "conv.bias", "dt_bias", "a_log", "d", "norm")
#: softplus^-1 of the smallest and the largest step that a head starts with, as in the authors' code; and log of the largest -A.
_DT_MIN, _DT_MAX, _A_MAX = 1e-3, 0.1, 16.0


@dataclass(frozen=True)
class MambaBlock(InputBlock):
    """The Mamba-2 block's sizes and its way there.

    Attributes
    ----------
    name : str
        Of its parameter group.
    window : int
        L.
    heads, head_dim, state_dim, conv : int
        H, D, N, W.
    """

    name: str
    window: int
    heads: int
    head_dim: int
    state_dim: int
    conv: int

    @property
    def inner(self) -> int:
        """I = H D."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """C = I + 2 N: those under the convolution."""
        return self.inner + 2 * self.state_dim

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of both kernels."""
        return dict(L=self.window, H=self.heads, D=self.head_dim, N=self.state_dim, W=self.conv,
                    Wp=padded(self.channels + self.heads), Ip=padded(self.inner), Cp=padded(self.channels))  # fmt: skip

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The small ones; those of the products depend on the state."""
        low, high = (math.log(math.expm1(dt)) for dt in (_DT_MIN, _DT_MAX))
        a = math.log(_A_MAX) / 2.0
        taps = uniform_bound(self.conv)
        return (Tensor("conv.weight", (self.conv, self.channels), False, taps, pads=(1, 16)),
                Tensor("conv.bias", (self.channels,), False, taps),
                Tensor("dt_bias", (self.heads,), False, (high - low) / 2.0, (high + low) / 2.0),
                Tensor("a_log", (self.heads,), False, a, a), Tensor("d", (self.heads,), False, 0.0, 1.0),
                Tensor("norm", (self.inner,), False, 0.0, 1.0))  # fmt: skip

    def products(self, state_dim: int) -> tuple[Tensor, ...]:
        """The weights of the three products, none of which has a bias."""
        s, pads = state_dim, (STATE_PAD, 16)
        width, bound = self.channels + self.heads, uniform_bound(state_dim)
        return (Tensor("in_proj", (s, width), True, bound, pads=pads), Tensor("z_proj", (s, self.inner), True, bound, pads=pads),
                Tensor("out_proj", (self.inner, s), True, uniform_bound(self.inner), pads=pads[::-1]))  # fmt: skip

    def layers(self, layout: NetworkLayout) -> dict[str, Layer]:
        """The three products."""
        return layers_of(layout, self.name, _PRODUCTS)

    def small(self, layout: NetworkLayout) -> tuple[Segment, ...]:
        """The segments of the small parameters, side by side."""
        return layout.group_segments[self.name][len(_PRODUCTS) :]

    def small_args(self, layout: NetworkLayout) -> dict[str, int]:
        """How many floats the small parameters take, and their offsets in them."""
        segments = self.small(layout)
        begin = segments[0].offset
        names = ("bias_at", "dt_at", "a_at", "d_at", "norm_at")
        return {
            "P": segments[-1].stop - begin,
            **{n: s.offset - begin for n, s in zip(names, segments[1:], strict=True)},
        }

    def cut_small(self, layout: NetworkLayout, params: Buffer) -> Buffer:
        """The small parameters of flat ones."""
        segments = self.small(layout)
        view: Buffer = params[segments[0].offset : segments[-1].stop]
        return view

    def scratch(self, rt: Runtime, layout: NetworkLayout, rows: int, passes: int, label: str) -> dict[str, Buffer]:
        sizes = self.sizes
        shapes = {"proj": (passes, rows * self.window, sizes["Wp"]), "z": (passes, rows, sizes["Ip"]),
                  "gated": (passes, rows, sizes["Ip"]), "y": (passes, rows, sizes["Ip"]), "memory": (passes, rows),
                  "no_bias": (max(sizes["Wp"], sizes["Ip"], layout.state_padded),)}  # fmt: skip
        return {name: rt.zeros(shape, np.float32, f"{label}.{name}") for name, shape in shapes.items()}

    def record(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
               passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        self.record_past(child, layout, theta, target, passes, work)
        self.record_gate(child, layout, theta, target, passes, work)
        self.record_scan(child, layout, theta, target, passes, work)

    def record_past(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
                    passes: Sequence[BlockInputs], work: BlockWorkspace,
                    side: SideProducts | None = None) -> None:  # fmt: skip
        """in_proj on all positions of the windows: one launch."""
        rows = passes[0].x.shape[0] * self.window
        past = [p.windows.states.view((rows, layout.state_padded)) for p in passes]
        forward_product(child, self.layers(layout)["in_proj"], rows, past, theta, target, work.scratch["no_bias"],
                        work.scratch["proj"], side=side)  # fmt: skip

    def record_gate(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
                    passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        """z_proj on the state: one launch, which in_proj does not wait for, nor it for in_proj."""
        x = [p.x for p in passes]
        forward_product(child, self.layers(layout)["z_proj"], x[0].shape[0], x, theta, target, work.scratch["no_bias"],
                        work.scratch["z"])  # fmt: skip

    def record_scan(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
                    passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        """The scan, and out_proj onto the state: two launches."""
        rows, made, sizes, x = passes[0].x.shape[0], work.scratch, self.sizes, [p.x for p in passes]
        others = [None] * (3 - len(x))
        states = dict(zip(("x0", "x1", "x2"), [*x, *others], strict=True))
        tile, shared = self.tile(layout, backward=False)
        threads = _SCAN_THREADS[rows * len(x) > _FEW_BLOCKS]
        child.launch("mamba_scan", (rows, len(x)), (threads,), shared=shared, args=dict(
            proj=made["proj"], z=made["z"], **states, length0=passes[0].windows.length,
            length1=passes[1].windows.length if len(x) > 1 else None, theta=self.cut_small(layout, theta),
            target=None if target is None else self.cut_small(layout, target), out=work.out, gated=made["gated"], y=made["y"],
            memory=made["memory"], passes=len(x), R=rows, Sp=layout.state_padded, tile=tile, **sizes,
            **self.small_args(layout)))  # fmt: skip
        forward_product(child, self.layers(layout)["out_proj"], rows, [matrices(made["gated"], p, 1) for p in range(len(x))],
                        theta, target, made["no_bias"], work.out, residual=True)  # fmt: skip

    def tile(self, layout: NetworkLayout, *, backward: bool) -> tuple[int, int]:
        """Positions that a block of a kernel holds at once, the window if it fits; and the bytes of dynamic shared memory.

        Raises
        ------
        ConfigError
            Not one position fits in what every device has.
        """
        sizes, window, heads, states = self.sizes, self.window, self.heads, self.state_dim
        row, inner = sizes["Cp"] + 1, sizes["Ip"]  # as in mamba.cu
        small = self.small_args(layout)["P"]
        fixed, rows = small + states + window * heads + 2 * inner + heads, 1
        if backward:
            fixed = 2 * small + 3 * states + 2 * window + 5 * window * heads + inner
            fixed += (self.conv - 1) * row
            rows = 2
        whole = fixed + (window + self.conv - 1) * sizes["Wp"] + rows * window * row
        if whole <= _SHARED_FLOATS:
            return window, 4 * whole
        tile = min((_SHARED_FLOATS - fixed) // (rows * row), window - 1)
        if tile < 1:
            raise ConfigError(f"temporal takes {4 * (fixed + rows * row)} bytes of shared memory, above "
                              f"{4 * _SHARED_FLOATS}; lower network.window, temporal.heads or temporal.head_dim")  # fmt: skip
        return tile, 4 * (fixed + rows * tile * row)


class Temporal(Extension):
    """A Mamba-2 block (Dao & Gu 2024) over the last L states, added to the state that the trunk takes.

    Parameters
    ----------
    config : TemporalConfig
        Heads and widths, learning rate and clip of its own optimizer.

    Attributes
    ----------
    backward : dict of Buffer
        What the way back writes: ``dproj``, ``dz``, ``dgated``, ``partial``, ``stats``.
    """

    name = "temporal"
    metrics = ("temporal_ratio", "temporal_memory", "temporal_length")
    backward: dict[str, Buffer]

    def __init__(self, config: TemporalConfig) -> None:
        self.config = config

    def _sizes(self, window: int) -> MambaBlock:
        c = self.config
        return MambaBlock(self.name, window, c.heads, c.head_dim, c.state_dim, c.conv)

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        block = self._sizes(1)  # whose parameters no window changes
        tensors = (*block.products(layout.state_dim), *block.tensors)
        return [ParameterGroup(self.name, tensors, self.config.lr_factor, self.config.max_grad_norm)]

    def block(self, config: Config) -> MambaBlock:
        return self._sizes(config.network.window)

    def record(self, step: StepView) -> None:
        chain, group, theta, target = step.blocks, step.group(self.name), step.adam.theta, step.adam.target
        block = next(b for b in step.layout.blocks if isinstance(b, MambaBlock))
        inputs, work = chain.inputs[self.name], chain.work[self.name]
        begin, stop = step.layout.group_range(self.name)
        params, made = [theta[begin:stop], target[begin:stop]], work.scratch
        states, lengths = ([getattr(p.windows, name) for p in inputs] for name in ("states", "length"))
        x, side = [p.x for p in inputs], step.side_products()
        scratch = forward_scratch(step.layout, self.name, "in_proj", x[0].shape[0] * block.window, side)
        with step.child("forward.temporal_past", before="forward", reads=[*params, *states, made["no_bias"]],
                        writes=[made["proj"]], scratch=scratch) as child:  # fmt: skip
            block.record_past(child, step.layout, theta, target, inputs, work, side)
        with step.child("forward.temporal_gate", before="forward", reads=[*params, *x, made["no_bias"]],
                        writes=[made["z"]]) as child:  # fmt: skip
            block.record_gate(child, step.layout, theta, target, inputs, work)
        reads = [*params, *x, *lengths, made["proj"], made["z"], made["no_bias"]]
        writes = [work.out, *(made[name] for name in ("gated", "y", "memory"))]
        with step.block_forward(self.name, reads, writes) as child:
            block.record_scan(child, step.layout, theta, target, inputs, work)
        self._record_backward(step, block, group, inputs[0], work)

    def _record_backward(self, step: StepView, block: MambaBlock, group: GroupView, inputs: BlockInputs,
                         work: BlockWorkspace) -> None:  # fmt: skip
        rt, layout, chain = step.runtime, step.layout, step.blocks
        assert chain.before[self.name] is None, (
            "temporal is the first of the blocks: nobody asks for the state's gradient"
        )
        rows, sizes, small, layers = inputs.x.shape[0], block.sizes, block.small_args(layout), block.layers(layout)
        past: Buffer = inputs.windows.states.view((rows * block.window, layout.state_padded))
        blocks = min(rows, _MOST_BLOCKS)
        gradients = BlockGradients(layers, {"in_proj": past.shape[0], "z_proj": rows, "out_proj": rows},
                                   step.side_products(), ("in_proj", "z_proj"))  # fmt: skip
        at = gradients.size
        shapes = {"dproj": (past.shape[0], sizes["Wp"]), "dz": (rows, sizes["Ip"]), "dgated": (rows, sizes["Ip"]),
                  "partial": (at + blocks * small["P"],), "stats": (blocks, abi.constant("TEMPORAL_STATS"))}  # fmt: skip
        made = self.backward = {name: rt.zeros(shape, np.float32, f"temporal.{name}") for name, shape in shapes.items()}
        first_small = block.small(layout)[0].offset
        of_small = {s.name.removeprefix(f"{self.name}."): (at + s.offset - first_small, small["P"], blocks)
                    for s in block.small(layout)}  # fmt: skip
        runs = gradients.runs(rt, group, of_small)
        theta, gradient = step.adam.theta, chain.gradient[self.name]
        kept = {name: work.scratch[name][:1] for name in ("proj", "z", "gated", "y", "memory")}
        begin, stop = layout.group_range(self.name)

        def product(name: str, x: Buffer, dy: Buffer, dx: Buffer | None = None) -> None:
            gradients.record(child, name, theta, made["partial"], x, dy, dx)

        tile, shared = block.tile(layout, backward=True)
        partial = made["partial"]
        parts = {name: gradients.part(name, partial) for name in _PRODUCTS}
        reads = [theta[begin:stop], inputs.x, inputs.windows.length, gradient, work.out, *kept.values()]
        writes = [*(made[name] for name in ("dproj", "dz", "dgated", "stats")), parts["out_proj"], partial[at:]]
        with step.block_backward(self.name, reads, writes) as child:
            product("out_proj", matrices(work.scratch["gated"], 0, 1), gradient, made["dgated"])
            child.launch("mamba_scan_backward", (blocks,), (_BACKWARD_THREADS[blocks > _FEW_BLOCKS],), shared=shared, args=dict(
                **{name: flat(kept[name]) for name in ("proj", "z", "y", "memory")}, dgated=made["dgated"], x=inputs.x,
                out=matrices(work.out, 0, 1), length=inputs.windows.length, theta=block.cut_small(layout, theta),
                dproj=made["dproj"], dz=made["dz"], partial=made["partial"][at:], stats=made["stats"], R=rows, blocks=blocks,
                rows_per_block=-(-rows // blocks), Sp=layout.state_padded, tile=tile, **sizes, **small))  # fmt: skip
        with step.child("adam_grad.temporal_gate", after="adam_grad.temporal", reads=[inputs.x, made["dz"]],
                        writes=[parts["z_proj"]], scratch=gradients.scratch) as child:  # fmt: skip
            product("z_proj", inputs.x, made["dz"])
        with step.child("adam_grad.temporal_past", after="adam_grad.temporal",
                        reads=[inputs.windows.states, made["dproj"], partial, runs],
                        writes=[parts["in_proj"], *group.gradient], scratch=gradients.scratch) as child:  # fmt: skip
            product("in_proj", past, made["dproj"])
            group.record_squares(child, partial, runs, max(blocks, gradients.most_parts))
        metrics = step.metrics_of(self)
        with step.child(
            "adam_grad.temporal_metrics", after="adam_grad", reads=[made["stats"]], writes=[metrics]
        ) as child:
            child.launch("temporal_metrics", (1,), (_THREADS,),
                         dict(stats=made["stats"], metrics=metrics, blocks=blocks, R=rows, L=block.window))  # fmt: skip


__all__ = ["MambaBlock", "Temporal"]
