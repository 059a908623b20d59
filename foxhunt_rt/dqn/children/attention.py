"""forward.attention and adam_grad.attention: attention over the window in front of the trunk (docs/step/attention.md).

The way there: forward.attention_past projects the windows to keys and values, which needs no other block, so it runs beside
forward.temporal; forward.attention: 1. q_proj, 2. `attention`, a block a row, 3. out_proj, added to the state. The way back on s,
adam_grad.attention: 1. out_proj, 2. `attention_backward`, 3. q_proj, with the state's gradient where another block made that.
adam_grad.attention_past, beside the blocks before it: 1. kv_proj, 2. `grad_reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foxhunt_rt.config import AttentionConfig, Config, ConfigError
from foxhunt_rt.dqn.blocks import BlockInputs, BlockWorkspace, InputBlock
from foxhunt_rt.dqn.children import forward
from foxhunt_rt.dqn.children.block_products import BlockGradients, forward_product, forward_scratch, layers_of
from foxhunt_rt.dqn.children.products import flat, matrices
from foxhunt_rt.dqn.children.side_products import SideProducts
from foxhunt_rt.dqn.extension import Extension, GroupView, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import STATE_PAD, NetworkLayout, ParameterGroup, Tensor, padded
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi

_THREADS = 128
#: Threads of a block: where there are few, the positions of a row are all under way at once; where there are many, many fit.
_WIDE, _NARROW, _FEW_BLOCKS = 256, 64, 264
_SHARED_BYTES = 48 << 10  # what every device gives a block
_PRODUCTS = ("q_proj", "kv_proj", "out_proj")


@dataclass(frozen=True)
class AttentionBlock(InputBlock):
    """The attention block's sizes and its way there.

    Attributes
    ----------
    name : str
        Of its parameter group.
    window : int
        L.
    heads, head_dim : int
        H, D.
    """

    name: str
    window: int
    heads: int
    head_dim: int

    @property
    def inner(self) -> int:
        """I = H D."""
        return self.heads * self.head_dim

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of both kernels."""
        return dict(L=self.window, H=self.heads, D=self.head_dim, Ip=padded(self.inner), Kv=padded(2 * self.inner))

    def tensors(self, state_dim: int) -> tuple[Tensor, ...]:
        """The weights of the three products, none of which has a bias."""
        s, bound, pads = state_dim, uniform_bound(state_dim), (STATE_PAD, 16)
        return (Tensor("q_proj", (s, self.inner), True, bound, pads=pads),
                Tensor("kv_proj", (s, 2 * self.inner), True, bound, pads=pads),
                Tensor("out_proj", (self.inner, s), True, uniform_bound(self.inner), pads=pads[::-1]))  # fmt: skip

    def scratch(self, rt: Runtime, layout: NetworkLayout, rows: int, passes: int, label: str) -> dict[str, Buffer]:
        sizes = self.sizes
        shapes = {"q": (passes, rows, sizes["Ip"]), "kv": (passes, rows * self.window, sizes["Kv"]),
                  "weight": (passes, rows * self.window, self.heads), "o": (passes, rows, sizes["Ip"]),
                  "no_bias": (max(sizes["Kv"], layout.state_padded),)}  # fmt: skip
        return {name: rt.zeros(shape, np.float32, f"{label}.{name}") for name, shape in shapes.items()}

    def record(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
               passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        self.record_past(child, layout, theta, target, passes, work)
        self.record_present(child, layout, theta, target, passes, work)

    def record_past(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
                    passes: Sequence[BlockInputs], work: BlockWorkspace,
                    side: SideProducts | None = None) -> None:  # fmt: skip
        """Keys and values of the windows: one launch, which needs no other block."""
        rows = passes[0].x.shape[0] * self.window
        past = [p.windows.states.view((rows, layout.state_padded)) for p in passes]
        layer = layers_of(layout, self.name, _PRODUCTS)["kv_proj"]
        forward_product(child, layer, rows, past, theta, target, work.scratch["no_bias"], work.scratch["kv"],
                        side=side)  # fmt: skip

    def record_present(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
                       passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        """The state's query, the weighted sum of the values, and what it adds to the state: three launches."""
        rows, made, layers = passes[0].x.shape[0], work.scratch, layers_of(layout, self.name, _PRODUCTS)
        x = [p.x for p in passes]
        if (shared := self.shared_bytes()) > _SHARED_BYTES:
            raise ConfigError(f"attention takes {shared} bytes of shared memory, above {_SHARED_BYTES}; lower network.window or "
                              "attention.heads")  # fmt: skip
        forward_product(child, layers["q_proj"], rows, x, theta, target, made["no_bias"], made["q"])
        states = dict(zip(("x0", "x1", "x2"), [*x, *[None] * (3 - len(x))], strict=True))
        child.launch("attention", (rows, len(x)), (_threads(rows * len(x)),), shared=4 * self.window * self.heads, args=dict(
            q=made["q"], kv=made["kv"], **states, length0=passes[0].windows.length,
            length1=passes[1].windows.length if len(x) > 1 else None, weight=made["weight"], o=made["o"], out=work.out,
            passes=len(x), R=rows, Sp=layout.state_padded, **self.sizes))  # fmt: skip
        forward_product(child, layers["out_proj"], rows, [matrices(made["o"], p, 1) for p in range(len(x))], theta, target,
                        made["no_bias"], work.out, residual=True)  # fmt: skip

    def shared_bytes(self) -> int:
        """Dynamic shared memory of `attention_backward`; `attention` takes half of it."""
        return 4 * 2 * self.window * self.heads


class Attention(Extension):
    """Multi-head attention (Vaswani 2017) of the present state over the last L, added to the state that the trunk takes.

    Parameters
    ----------
    config : AttentionConfig
        Heads, learning rate and clip of its own optimizer.

    Attributes
    ----------
    backward : dict of Buffer
        What the way back writes: ``dq``, ``dkv``, ``d_o``, ``partial``, ``stats``.
    """

    name = "attention"
    metrics = ("attention_ratio", "attention_present", "attention_entropy")
    backward: dict[str, Buffer]

    def __init__(self, config: AttentionConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        tensors = AttentionBlock(self.name, 1, self.config.heads, self.config.head_dim).tensors(layout.state_dim)
        return [ParameterGroup(self.name, tensors, self.config.lr_factor, self.config.max_grad_norm)]

    def block(self, config: Config) -> AttentionBlock:
        return AttentionBlock(self.name, config.network.window, self.config.heads, self.config.head_dim)

    def record(self, step: StepView) -> None:
        chain, layout, theta, target = step.blocks, step.layout, step.adam.theta, step.adam.target
        block = next(b for b in layout.blocks if isinstance(b, AttentionBlock))
        inputs, work = chain.inputs[self.name], chain.work[self.name]
        begin, stop = layout.group_range(self.name)
        params = [theta[begin:stop], target[begin:stop]]
        states, lengths = ([getattr(p.windows, name) for p in inputs] for name in ("states", "length"))
        made, side = work.scratch, step.side_products(forward.TARGET_LANE)  # forward.temporal_past stands beside it
        scratch = forward_scratch(layout, self.name, "kv_proj", inputs[0].x.shape[0] * block.window, side)
        with step.child("forward.attention_past", before="forward", reads=[*params, *states, made["no_bias"]],
                        writes=[made["kv"]], scratch=scratch) as child:  # fmt: skip
            block.record_past(child, layout, theta, target, inputs, work, side)
        reads = [*params, *(p.x for p in inputs), *lengths, made["kv"], made["no_bias"]]
        writes = [work.out, *(made[name] for name in ("q", "weight", "o"))]
        with step.block_forward(self.name, reads, writes) as child:
            block.record_present(child, layout, theta, target, inputs, work)
        self._record_backward(step, block, step.group(self.name), inputs[0], work)

    def _record_backward(self, step: StepView, block: AttentionBlock, group: GroupView, inputs: BlockInputs,
                         work: BlockWorkspace) -> None:  # fmt: skip
        rt, layout, theta = step.runtime, step.layout, step.adam.theta
        rows, sizes, gradient = inputs.x.shape[0], block.sizes, step.blocks.gradient[self.name]
        below = step.blocks.before[self.name]
        past: Buffer = inputs.windows.states.view((rows * block.window, layout.state_padded))
        gradients = BlockGradients(layers_of(layout, self.name, _PRODUCTS),
                                   {"q_proj": rows, "kv_proj": past.shape[0], "out_proj": rows},
                                   step.side_products(forward.TARGET_LANE), ("kv_proj",))  # fmt: skip
        shapes = {"dq": (rows, sizes["Ip"]), "dkv": (past.shape[0], sizes["Kv"]), "d_o": (rows, sizes["Ip"]),
                  "partial": (gradients.size,), "stats": (rows, abi.constant("ATTENTION_STATS"))}  # fmt: skip
        made = self.backward = {
            name: rt.zeros(shape, np.float32, f"attention.{name}") for name, shape in shapes.items()
        }
        runs = gradients.runs(rt, group)
        kept = {name: matrices(work.scratch[name], 0, 1) for name in ("q", "kv", "weight", "o")}
        begin, stop = layout.group_range(self.name)
        partial = made["partial"]
        parts = {name: gradients.part(name, partial) for name in _PRODUCTS}

        def product(name: str, x: Buffer, dy: Buffer, dx: Buffer | None = None, more: Buffer | None = None) -> None:
            gradients.record(child, name, theta, partial, x, dy, dx, more)

        reads = [theta[begin:stop], inputs.x, inputs.windows.length, gradient, work.out, *kept.values()]
        writes = [*(made[name] for name in ("dq", "dkv", "d_o", "stats")), parts["q_proj"], parts["out_proj"]]
        with step.block_backward(self.name, reads, writes if below is None else [*writes, below]) as child:
            product("out_proj", kept["o"], gradient, made["d_o"])
            child.launch("attention_backward", (rows,), (_threads(rows),), shared=block.shared_bytes(), args=dict(
                **{name: flat(kept[name]) for name in ("q", "kv", "weight")}, d_o=made["d_o"], x=inputs.x,
                out=matrices(work.out, 0, 1), length=inputs.windows.length, dq=made["dq"], dkv=made["dkv"], stats=made["stats"],
                R=rows, Sp=layout.state_padded, **sizes))  # fmt: skip
            more = (
                gradient.view((1, *gradient.shape)) if below is not None else None
            )  # the state goes on beside the block
            product("q_proj", inputs.x, made["dq"], below, more)
        with step.child("adam_grad.attention_past", after="adam_grad.attention",
                        reads=[inputs.windows.states, made["dkv"], partial, runs],
                        writes=[parts["kv_proj"], *group.gradient], scratch=gradients.scratch) as child:  # fmt: skip
            product("kv_proj", past, made["dkv"])
            group.record_squares(child, partial, runs, gradients.most_parts)
        metrics = step.metrics_of(self)
        with step.child(
            "adam_grad.attention_metrics", after="adam_grad", reads=[made["stats"]], writes=[metrics]
        ) as child:
            child.launch("attention_metrics", (1,), (_THREADS,), dict(stats=made["stats"], metrics=metrics, R=rows))


def _threads(blocks: int) -> int:
    return _WIDE if blocks <= _FEW_BLOCKS else _NARROW


__all__ = ["Attention", "AttentionBlock"]
