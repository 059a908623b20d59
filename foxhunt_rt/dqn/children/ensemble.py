"""aux.ensemble_*: advantage heads beside the network's own (docs/step/ensemble.md).

aux.ensemble_heads, beside forward.heads: the heads on the trunk's three outputs.
aux.ensemble_values, before ddqn: `ensemble_values`, a block a row: what they add to the choice of a*.
aux.ensemble, after ddqn: `ensemble_loss`, a block a row.
aux.ensemble_blend, the last before adam_grad, so that the other parts of dlogits are added beside the loss: 1. `ensemble_blend`,
within its share of the gradient budget onto dlogits; 2. the heads' gradient and the trunk's.
aux.ensemble_sum, beside the way back through the trunk: the sum of the splits, and the squares of the group's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foxhunt_rt.config import ConfigError, EnsembleConfig
from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.extension import Extension, GroupView, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import Layer, NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

NAME = "ensemble"
_SHARED_BYTES = 48 << 10  # what every device gives a block
_BLEND_BLOCKS = 256
_MOST_WARPS = 32  # of a block of ensemble_loss, wide while the batch leaves multiprocessors idle


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
        weights = LayerWeights(*(of(name) for of in (group.theta, group.target) for name in ("weight", "bias")))
        parameters = [b for b in (weights.w, weights.bias, weights.w_target, weights.bias_target) if b is not None]
        logits = step.forward.logits
        sizes = dict(branch_sizes=shape.packed_branches, K=k, S=shape.actions, N=n, Np=shape.head_padded,
                     Mp=heads.layer.n_padded, E=e)  # fmt: skip
        online_next = forward.ONLINE_NEXT
        with step.child("aux.ensemble_heads", before="ddqn", reads=[hidden, *parameters], writes=[self.more]) as child:
            inputs = [x[: shape.batch] for x in forward.separate(hidden)]  # rows without a loss come last
            forward.own_layer(child, heads.layer, shape.batch, inputs, weights, self.more)
        with step.child("aux.ensemble_values", before="ddqn", reads=[logits, self.more, step.step],
                        writes=[step.next_values]) as child:  # fmt: skip
            child.launch("ensemble_values", (shape.batch,), (32 * min(e * shape.actions, 16),),
                         dict(sizes, logits=_pass(logits, online_next)[: shape.batch], more=_pass(self.more, online_next),
                              step=step.step, values=step.next_values, R=shape.batch),
                         shared=_shared(4 * e * (k * n + shape.actions), shape.batch, e))  # fmt: skip
        self._record_loss(step, group, heads, sizes)

    def _record_loss(self, step: StepView, group: GroupView, heads: EnsembleHeads, sizes: dict[str, int]) -> None:
        rt, shape, batch, layer = step.runtime, step.shape, step.batch, heads.layer
        k, s, n, e, h = len(shape.branches), shape.actions, shape.atoms, heads.count, heads.count + 1
        rows = shape.batch

        def floats(name: str, *dims: int) -> Buffer:
            return rt.zeros(dims, np.float32, f"ensemble.{name}")

        part = self.part = floats("part", rows, shape.head_padded)
        dmore = self.dmore = floats("dmore", rows, layer.n_padded)
        per_row = self.rows = floats("rows", rows, abi.constant("ENSEMBLE_COLUMNS"))
        self.target = floats("target", rows, e, k, n) if step.ddqn.target is not None else None
        n_splits = adam_grad.splits(rows)
        stride = layer.weight.size + layer.bias.size
        partial = floats("partial", n_splits * stride) if n_splits > 1 else None
        runs = rt.array(_runs(layer, n_splits), "ensemble.runs") if partial is not None else None
        to = (group.grad("weight"), group.grad("bias")) if partial is None else (partial, partial[layer.weight.size :])
        x, trunk, weight = step.trunk_output, step.trunk_gradient(NAME), group.theta("weight")
        optional = [self.target] if self.target is not None else []
        gradient = group.gradient[:1] if partial is None else [partial]
        with step.child("aux.ensemble", after="ddqn",
                        reads=[step.forward.logits, self.more, batch.action, step.ddqn.next_action, step.shaped_ret,
                               batch.discount, batch.priority, step.step],
                        writes=[part, dmore, per_row, *optional], private=[step.guard]) as child:  # fmt: skip
            shared = 4 * (2 * (h + e) * k * n + 5 * h * s + s + h * h + 2 * e * k)
            child.launch("ensemble_loss", (rows,), (32 * min(h * s + e * k, _MOST_WARPS if rows <= 256 else 8),), dict(
                sizes, logits=step.forward.logits, more=self.more, action=batch.action, next_action=step.ddqn.next_action,
                ret=step.shaped_ret, discount=batch.discount, priority=batch.priority, step=step.step, part=part, dmore=dmore,
                target=self.target, rows=per_row, guard=step.guard,
                branch_scale=1.0 / k if shape.reduction == "mean" else 1.0, diversity=self.config.diversity,
                spread=self.config.spread, B=rows, R=step.forward.logits.shape[1]), shared=_shared(shared, rows, h))  # fmt: skip
        with step.child("aux.ensemble_blend", before="adam_grad", reads=[x, weight, part, per_row, step.step],
                        writes=[step.dlogits, dmore, trunk, step.metrics_of(self), *gradient]) as child:  # fmt: skip
            child.launch("ensemble_blend", (min(rows, _BLEND_BLOCKS),), (256,), dict(
                part=part, rows=per_row, step=step.step, dlogits=step.dlogits, dmore=dmore, metrics=step.metrics_of(self),
                share=self.config.budget_share, B=rows, Np=shape.head_padded, Mp=layer.n_padded))  # fmt: skip
            # adam_grad applies the derivative of the trunk's last activation to the sum of all heads
            adam_grad.own_layer(child, layer, weight, x, dmore, trunk, to, stride, n_splits, None, relu=False)
        with step.child("aux.ensemble_sum", before="adam_grad",
                        reads=[group.gradient[0] if partial is None else partial, *([runs] if runs is not None else [])],
                        writes=group.gradient if partial is not None else group.gradient[1:]) as child:  # fmt: skip
            group.record_squares(child, partial, runs)


def _pass(buffer: Buffer, index: int) -> Buffer:
    """One pass of a (3, B, width) buffer, (B, width)."""
    view: Buffer = buffer[index : index + 1].view(buffer.shape[1:])
    return view


def _shared(nbytes: int, rows: int, heads: int) -> int:
    """Bytes of shared memory of a block, where every device has them."""
    if nbytes > _SHARED_BYTES:
        raise ConfigError(f"an ensemble of {heads} heads takes {nbytes} bytes of shared memory for a row, above {_SHARED_BYTES}: "
                          "lower ensemble.heads or network.atoms")  # fmt: skip
    return nbytes


def _runs(layer: Layer, n_splits: int) -> npt.NDArray[np.void]:
    """What grad_reduce does with the group: weight and bias are in parts, one behind the other in each split."""
    stride = layer.weight.size + layer.bias.size
    rows = [
        (0, layer.weight.size, 0, stride, n_splits, 0),
        (layer.weight.size, stride, layer.weight.size, stride, n_splits, 0),
    ]
    return np.array(rows, abi.dtype("grad_run"))


__all__ = ["Ensemble", "EnsembleHeads"]
