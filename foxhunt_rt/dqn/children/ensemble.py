"""aux.ensemble_*: advantage heads beside the network's own (docs/step/ensemble.md).

aux.ensemble_heads, beside forward.heads: the heads on the trunk's three outputs.
aux.ensemble_values, before ddqn: `ensemble_values`, a block a row: a*, by the mean of all heads.
aux.ensemble, beside ddqn: 1. `ensemble_loss`, a block a row; 2. `ensemble_scale`: the gradient by the heads' output within its
share of the gradient budget; 3. the heads' gradient and the trunk's.
aux.ensemble_blend, the last before adam_grad: `ensemble_blend`: what the network's own head has of it, onto dlogits.
aux.ensemble_sum, beside the way back through the trunk: the sum of the splits, and the squares of the group's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foxhunt_rt.config import EnsembleConfig
from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.children.row_launch import RowLaunch
from foxhunt_rt.dqn.children.side_products import SideProducts
from foxhunt_rt.dqn.extension import Extension, GroupView, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import Layer, NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

NAME = "ensemble"
_BLEND_BLOCKS = 256
_LOWER = "ensemble.heads or network.atoms"
_BESIDE_ROWS = 256  # rows up to which a block is as wide as it can be; above, several share a multiprocessor


@dataclass(frozen=True)
class EnsembleHeads:
    """The heads beside the network's own, as one linear layer on the trunk's output."""

    layer: Layer
    count: int  # E

    @classmethod
    def of(cls, layout: NetworkLayout) -> EnsembleHeads | None:
        """Those of a layout; None where it has none."""
        if NAME not in layout.group_segments:
            return None
        weight, bias = layout.group_segments[NAME]
        return cls(Layer(weight, bias, relu=False), weight.shape[1] // (sum(layout.branches) * layout.atoms))


class Ensemble(Extension):
    """H advantage heads on one value head, each with its own target; a* is chosen by their mean.

    Parameters
    ----------
    config : EnsembleConfig
        H, weight and width of the diversity term, share of the gradient budget, the heads' optimizer.

    Attributes
    ----------
    more : Buffer
        f32 (3, B, Mp): advantages of the E = H - 1 heads beside the network's own, passes as in `ForwardBuffers.logits`.
    next_action : Buffer
        i32 (B, K): a*.
    part : Buffer
        f32 (B, Np): gradient by the network's head output, before the budget.
    dmore : Buffer
        f32 (B, Mp): gradient by the heads' output.
    target : Buffer or None
        f32 (B, E, K, N): projected targets, where the learner keeps those of ddqn.
    rows : Buffer
        f32 (B, 5): loss, cross-entropy, disagreement, similarity; squared norm.
    """

    name = NAME
    metrics = ("ensemble_loss", "ensemble_ce", "ensemble_disagreement", "ensemble_similarity", "ensemble_scale")
    trunk_gradient = True
    next_values = True

    more: Buffer
    next_action: Buffer
    part: Buffer
    dmore: Buffer
    target: Buffer | None
    rows: Buffer

    def __init__(self, config: EnsembleConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        width = layout.hidden[-1]
        columns, bound = (self.config.heads - 1) * sum(layout.branches) * layout.atoms, uniform_bound(width)
        tensors = (Tensor("weight", (width, columns), True, bound), Tensor("bias", (columns,), False, bound))
        return [ParameterGroup(NAME, tensors, self.config.lr_factor, self.config.max_grad_norm)]

    def record(self, step: StepView) -> None:
        heads = EnsembleHeads.of(step.layout)
        assert heads is not None
        rt, shape, group, hidden = step.runtime, step.shape, step.group(NAME), step.forward.hidden[-1]
        _ = step.trunk_output  # refuses a trunk in bf16
        k, n, e = len(shape.branches), shape.atoms, heads.count
        self.more = rt.zeros((forward.ONLINE_NEXT + 2, shape.batch, heads.layer.n_padded), np.float32, "ensemble.more")
        self.next_action = rt.zeros((shape.batch, k), np.int32, "ensemble.next_action")
        weights = LayerWeights(*(of(name) for of in (group.theta, group.target) for name in ("weight", "bias")))
        parameters = [b for b in (weights.w, weights.bias, weights.w_target, weights.bias_target) if b is not None]
        logits = step.forward.logits
        sizes = dict(branch_sizes=shape.packed_branches, K=k, S=shape.actions, N=n, Np=shape.head_padded,
                     Mp=heads.layer.n_padded, E=e)  # fmt: skip
        online_next, side = forward.ONLINE_NEXT, step.side_products(NAME)
        by_library = side.forward_by_library(heads.layer, shape.batch)
        with step.child("aux.ensemble_heads", before="ddqn", reads=[hidden, *parameters], writes=[self.more],
                        scratch=side.scratch(by_library)) as child:  # fmt: skip
            inputs = [x[: shape.batch] for x in forward.separate(hidden)]  # rows without a loss come last
            if by_library:
                for p, x in enumerate(inputs):
                    side.forward(child, heads.layer, x, weights.of_pass(p), _pass(self.more, p), True)
            else:
                forward.own_layer(child, heads.layer, shape.batch, inputs, weights, self.more)
        with step.child("aux.ensemble_values", before="ddqn", reads=[logits, self.more, step.step],
                        writes=[self.next_action, step.next_values]) as child:  # fmt: skip
            launch = values_launch(shape, e + 1, heads.layer.n_padded)
            child.launch(launch.kernel, (shape.batch,), (launch.threads,),
                         dict(sizes, logits=_pass(logits, online_next)[: shape.batch], more=_pass(self.more, online_next),
                              step=step.step, values=step.next_values, next_action=self.next_action, R=shape.batch),
                         shared=launch.shared)  # fmt: skip
        self._record_loss(step, group, heads, side, sizes)

    def _record_loss(self, step: StepView, group: GroupView, heads: EnsembleHeads, side: SideProducts,
                     sizes: dict[str, int]) -> None:  # fmt: skip
        rt, shape, batch, layer = step.runtime, step.shape, step.batch, heads.layer
        k, n, e, h = len(shape.branches), shape.atoms, heads.count, heads.count + 1
        rows = shape.batch

        def floats(name: str, *dims: int) -> Buffer:
            return rt.zeros(dims, np.float32, f"ensemble.{name}")

        part = self.part = floats("part", rows, shape.head_padded)
        dmore = self.dmore = floats("dmore", rows, layer.n_padded)
        per_row = self.rows = floats("rows", rows, abi.constant("ENSEMBLE_COLUMNS"))
        self.target = floats("target", rows, e, k, n) if step.ddqn.target is not None else None
        by_library = side.backward_by_library(layer, rows)
        n_splits, stride = adam_grad.splits(rows), layer.weight.size + layer.bias.size
        parts, size = (
            {"weight": (0, stride, n_splits), "bias": (layer.weight.size, stride, n_splits)},
            n_splits * stride,
        )
        if by_library:
            parts, size = side.backward_parts(layer, rows)
        partial = floats("partial", size) if by_library or n_splits > 1 else None
        runs = group.runs(rt, parts) if partial is not None else None
        to = (group.grad("weight"), group.grad("bias")) if partial is None else (partial, partial[layer.weight.size :])
        x, trunk, weight = step.trunk_output, step.trunk_gradient(NAME), group.theta("weight")
        optional = [self.target] if self.target is not None else []
        gradient = group.gradient[:1] if partial is None else [partial]
        # behind ddqn in the order of the step, so that whoever changes what ddqn takes has done so; it waits for nothing of ddqn
        with step.child("aux.ensemble", after="ddqn",
                        reads=[x, weight, step.forward.logits, self.more, batch.action, self.next_action, step.shaped_ret,
                               batch.discount, batch.priority, step.step],
                        writes=[part, dmore, per_row, trunk, step.metrics_of(self), *gradient, *optional],
                        private=[step.guard], scratch=side.scratch(by_library)) as child:  # fmt: skip
            launch = loss_launch(shape, h, layer.n_padded)
            child.launch(launch.kernel, (rows,), (launch.threads,), dict(
                sizes, logits=step.forward.logits, more=self.more, action=batch.action, next_action=self.next_action,
                ret=step.shaped_ret, discount=batch.discount, priority=batch.priority, step=step.step, part=part, dmore=dmore,
                target=self.target, rows=per_row, guard=step.guard,
                branch_scale=1.0 / k if shape.reduction == "mean" else 1.0, diversity=self.config.diversity,
                spread=self.config.spread, B=rows, R=step.forward.logits.shape[1]), shared=launch.shared)  # fmt: skip
            child.launch("ensemble_scale", (min(rows, _BLEND_BLOCKS) + 1,), (256,), dict(
                rows=per_row, step=step.step, dmore=dmore, metrics=step.metrics_of(self), share=self.config.budget_share, B=rows,
                Mp=layer.n_padded))  # fmt: skip
            # adam_grad applies the derivative of the trunk's last activation to the sum of all heads
            if by_library:
                assert partial is not None
                side.backward(child, layer, weight, x, dmore, trunk, partial)
            else:
                adam_grad.own_layer(child, layer, weight, x, dmore, trunk, to, stride, n_splits, None, relu=False)
        with step.child("aux.ensemble_blend", before="adam_grad", reads=[part, per_row, step.step],
                        writes=[step.dlogits]) as child:  # fmt: skip
            child.launch("ensemble_blend", (min(rows, _BLEND_BLOCKS),), (256,), dict(
                part=part, rows=per_row, step=step.step, dlogits=step.dlogits, share=self.config.budget_share, B=rows,
                Np=shape.head_padded))  # fmt: skip
        with step.child("aux.ensemble_sum", before="adam_grad",
                        reads=[group.gradient[0] if partial is None else partial, *([runs] if runs is not None else [])],
                        writes=group.gradient if partial is not None else group.gradient[1:]) as child:  # fmt: skip
            group.record_squares(child, partial, runs, max(count for _, _, count in parts.values()))


def _pass(buffer: Buffer, index: int) -> Buffer:
    """One pass of a (3, B, width) buffer, (B, width)."""
    view: Buffer = buffer[index : index + 1].view(buffer.shape[1:])
    return view


def loss_launch(shape: LossShape, heads: int, more_padded: int) -> RowLaunch:
    """Of the heads' losses; ``heads`` is H, ``more_padded`` Mp, floats of a row of those beside the network's."""
    k, s, n, h, e = len(shape.branches), shape.actions, shape.atoms, heads, heads - 1
    return RowLaunch.of(("ensemble_loss", "ensemble_loss_wide"), shape, tasks=(h + e) * k + 1,
                        most=_most_threads(shape), lower=_LOWER,
                        work=2 * (h + e) * k * n + 5 * h * s + s + h * h + h * k + 2 * e * k + 2,
                        logits=shape.head_padded + 2 * more_padded + -(-n // 4) * 4)  # fmt: skip


def values_launch(shape: LossShape, heads: int, more_padded: int) -> RowLaunch:
    """Of the choice of a*, as `loss_launch`."""
    k, s, n, h = len(shape.branches), shape.actions, shape.atoms, heads
    return RowLaunch.of(("ensemble_values", "ensemble_values_wide"), shape, tasks=h * k, most=_most_threads(shape), lower=_LOWER,
                        work=h * (k * n + s), logits=shape.head_padded + more_padded)  # fmt: skip


def _most_threads(shape: LossShape) -> tuple[int, int]:
    """Of a block: as wide as its registers allow where multiprocessors are left over, else several share one."""
    if shape.batch > _BESIDE_ROWS:
        return abi.constant("HEAD_THREADS"), abi.constant("HEAD_THREADS")
    return abi.constant("ENSEMBLE_THREADS"), abi.constant("ENSEMBLE_WIDE_THREADS")


__all__ = ["Ensemble", "EnsembleHeads", "loss_launch", "values_launch"]
