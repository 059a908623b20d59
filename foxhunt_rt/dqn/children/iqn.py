"""aux.iqn_embed and aux.iqn: implicit quantile networks beside the C51 heads (docs/step/iqn.md).

aux.iqn_embed needs parameters and random numbers alone, so it runs from the step's start, beside everything up to ddqn:
1. `iqn_cosines`, levels and their features; 2. and 3. the embedding by theta of tau, by theta- of tau'.
aux.iqn, after ddqn: 1. `iqn_loss`, a block a row; 2. `iqn_gather`: head, trunk, metrics.
aux.iqn_gradient, beside the way back through the trunk, which does not need it: 1. the embedding's gradient, the rows split; 2.
the sum of the splits, and the squares of the group's gradient. By cuBLASLt the embedding's bias needs no pass of its own over
the gradient: its first feature is cos 0 = 1, so de = dE_0.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.config import ConfigError, IqnConfig
from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.children.side_products import SideProducts, weight_splits
from foxhunt_rt.dqn.extension import Extension, GroupView, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import Layer, NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

_THREADS = 256
_TRUNK_BLOCKS = 128
_SHARED_BYTES = 48 << 10  # what every device gives a block


class Iqn(Extension):
    """Quantiles of the return by implicit quantile networks (IQN, Dabney 2018), whose gradient joins that of the trunk.

    Parameters
    ----------
    config : IqnConfig
        Samples, features of the embedding, Huber threshold, share of the gradient budget, its own optimizer.

    Attributes
    ----------
    tau : Buffer
        f32 (2, B, N): the levels drawn, tau of the online network, tau' of the target network.
    cosines : Buffer
        f32 (2 B N, padded features): of both, row by row.
    rows : Buffer
        f32 (B, 3 + K): loss, squared norm of dx, interquartile range; then each branch's gradient of the head's bias.
    dx : Buffer
        f32 (B, Hp): gradient by the trunk's output before the budget.
    """

    name = "iqn"
    metrics = ("iqn_loss", "iqn_scale", "iqn_spread")
    trunk_gradient = True

    tau: Buffer
    cosines: Buffer
    rows: Buffer
    dx: Buffer

    def __init__(self, config: IqnConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        options, width, actions = self.config, layout.hidden[-1], sum(layout.branches)
        embed, head = uniform_bound(options.cosines), uniform_bound(width)
        tensors = (Tensor("embed.weight", (options.cosines, width), True, embed), Tensor("embed.bias", (width,), False, embed),
                   Tensor("head.weight", (width, actions), True, head), Tensor("head.bias", (actions,), False, head))  # fmt: skip
        return [ParameterGroup("iqn", tensors, options.lr_factor, options.max_grad_norm,
                               output_scaled=("head.weight", "head.bias"))]  # fmt: skip

    def record(self, step: StepView) -> None:
        rt, shape, group = step.runtime, step.shape, step.group("iqn")
        rows, width = shape.batch * self.config.quantiles, step.trunk_output.shape[1]
        layer = _embedding(group)
        side = step.side_products("iqn")
        by_library = side.forward_by_library(layer, rows)

        def floats(name: str, *dims: int) -> Buffer:
            return rt.zeros(dims, np.float32, f"iqn.{name}")

        self.tau = floats("tau", 2, shape.batch, self.config.quantiles)
        cosines = self.cosines = floats("cosines", 2 * rows, layer.k_padded)
        embedded, embedded_next = floats("embedded", rows, width), floats("embedded_next", rows, width)
        parameters = [LayerWeights(of("embed.weight"), of("embed.bias")) for of in (group.theta, group.target)]
        with step.child("aux.iqn_embed", after="ddqn", reads=[step.step, *(b for p in parameters for b in (p.w, p.bias))],
                        writes=[self.tau, cosines, embedded, embedded_next],
                        scratch=side.scratch(by_library)) as child:  # fmt: skip
            blocks = -(-2 * rows // abi.constant("IQN_COSINE_ROWS"))
            child.launch("iqn_cosines", (blocks,), (_THREADS,), dict(
                step=step.step, tau=self.tau, cosines=cosines, rows=2 * rows, C=layer.k, Cp=layer.k_padded))  # fmt: skip
            for i, y in enumerate((embedded, embedded_next)):
                side.forward(child, layer, cosines[i * rows : (i + 1) * rows], parameters[i], y, by_library)
        self._record_loss(step, group, layer, side, cosines[:rows], embedded, embedded_next)

    def _record_loss(self, step: StepView, group: GroupView, layer: Layer, side: SideProducts, cosines: Buffer,
                     embedded: Buffer, embedded_next: Buffer) -> None:  # fmt: skip
        rt, shape, batch, n, k = step.runtime, step.shape, step.batch, self.config.quantiles, len(step.shape.branches)
        rows, width = embedded.shape
        x, trunk = step.trunk_output, step.trunk_gradient(self.name)
        hidden = step.forward.hidden[-1]
        x_target: Buffer = hidden[forward.TARGET_NEXT : forward.TARGET_NEXT + 1].view(hidden.shape[1:])[: shape.batch]
        shared = shared_bytes(k, width, n)
        if shared > _SHARED_BYTES:
            raise ConfigError(f"iqn takes {shared} bytes of shared memory for {k} branches, a trunk {width} wide and {n} "
                              f"quantiles, above {_SHARED_BYTES}: narrow the last of network.hidden")  # fmt: skip

        def floats(name: str, *dims: int) -> Buffer:
            return rt.zeros(dims, np.float32, f"iqn.{name}")

        self.dx = floats("dx", shape.batch, width)
        per_row = self.rows = floats("rows", shape.batch, abi.constant("IQN_COLUMNS") + k)
        column = rt.zeros((shape.batch, k), np.int32, "iqn.column")
        dembedded, dhead = floats("dembedded", rows, width), floats("dhead", shape.batch, k, width)
        by_library = side.weights_by_library(layer, rows)
        n_splits = weight_splits(rows) if by_library else adam_grad.splits(rows)
        stride = layer.weight.size + (0 if by_library else layer.bias.size)
        of_bias = 0 if by_library else layer.weight.size  # dE_0, or a place of its own
        head, head_bias = group.grad("head.weight").size, group.grad("head.bias").size
        at, head_splits, head_stride = n_splits * stride, adam_grad.sum_splits(shape.batch), head + head_bias
        partial = floats("partial", at + head_splits * head_stride)
        of_head = partial[at:]
        runs = group.runs(rt, {
            "embed.weight": (0, stride, n_splits), "embed.bias": (of_bias, stride, n_splits),
            "head.weight": (at, head_stride, head_splits), "head.bias": (at + head, head_stride, head_splits)})  # fmt: skip
        own = [of(f"head.{tensor}") for of in (group.theta, group.target) for tensor in ("weight", "bias")]
        threads = 1024 if shape.batch <= 256 else _THREADS  # wide while the batch leaves multiprocessors idle
        with step.child("aux.iqn", after="ddqn",
                        reads=[x, x_target, embedded, embedded_next, self.tau, cosines, *own, batch.action, step.ret,
                               batch.discount, batch.priority, step.ddqn.next_action, step.step],
                        writes=[per_row, column, dembedded, dhead, self.dx, trunk, of_head,
                                step.metrics_of(self)]) as child:  # fmt: skip
            child.launch("iqn_loss", (shape.batch,), (threads,), shared=shared, args=dict(
                x=x, x_target=x_target, embedded=embedded, embedded_next=embedded_next, tau=self.tau[:1], w=own[0], bias=own[1],
                w_target=own[2], bias_target=own[3], action=batch.action, next_action=step.ddqn.next_action, ret=step.ret,
                discount=batch.discount, priority=batch.priority, step=step.step, rows=per_row, column=column,
                dembedded=dembedded, dhead=dhead, dx=self.dx, branch_sizes=shape.packed_branches, kappa=self.config.kappa,
                branch_scale=1.0 / k if shape.reduction == "mean" else 1.0, B=shape.batch, K=k, N=n, Hp=width,
                Sp=own[1].size))  # fmt: skip
            trunk_blocks = min(shape.batch, _TRUNK_BLOCKS)
            blocks = 1 + trunk_blocks + head_splits * own[1].size * -(-width // abi.constant("IQN_GATHER_COLS"))
            child.launch("iqn_gather", (blocks,), (_THREADS,), dict(
                rows=per_row, column=column, dhead=dhead, dx=self.dx, step=step.step, dw=of_head, dbias=of_head[head:],
                dtrunk=trunk, metrics=step.metrics_of(self), branch_sizes=shape.packed_branches, split_stride=head_stride,
                share=self.config.budget_share, B=shape.batch, K=k, S=shape.actions, Hp=width, Sp=own[1].size,
                splits=head_splits, trunk_blocks=trunk_blocks))  # fmt: skip
        with step.child("aux.iqn_gradient", after="ddqn", reads=[cosines, dembedded, runs],
                        writes=[partial, *group.gradient], scratch=side.scratch(by_library)) as child:  # fmt: skip
            if by_library:
                side.weight_gradient(child, layer, cosines, dembedded, partial)
            else:
                to = partial, partial[layer.weight.size :]
                adam_grad.own_layer(child, layer, own[0], cosines, dembedded, None, to, stride, n_splits, None)
            group.record_squares(child, partial, runs, max(n_splits, head_splits))


def shared_bytes(branches: int, width: int, quantiles: int) -> int:
    """Dynamic shared memory of iqn_loss."""
    return 4 * (2 * branches * width + 4 * branches * quantiles + 3 * branches + 1)


def _embedding(group: GroupView) -> Layer:
    """The embedding as a layer; its offsets are those of the flat buffers."""
    weight, bias = (s for s in group.segments if s.name.startswith("iqn.embed"))
    return Layer(weight, bias, relu=True)


__all__ = ["Iqn", "shared_bytes"]
