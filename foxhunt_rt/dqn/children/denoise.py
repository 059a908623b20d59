"""per_sample.denoise and post_aux.denoise: noised rows, and a head that says what they were before (docs/step/denoise.md).

per_sample.denoise, behind per_sample: `denoise_rows`, a block a row, and `replay_windows` where the network looks back.
post_aux.denoise, beside ddqn: 1. the head, a product; 2. `denoise_loss`, a block a row; 3. its gradient by parameters and trunk;
4. with denoise.shape_trunk `denoise_trunk`, within the budget.
post_aux.denoise_sum, for which the trunk does not wait: 1. `column_means`, the metrics; 2. the squares of the group's gradient.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.config import DenoiseConfig
from foxhunt_rt.dqn.children import adam_grad, forward
from foxhunt_rt.dqn.children.products import LayerWeights
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.groups import uniform_bound
from foxhunt_rt.dqn.layout import Layer, NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

_THREADS = 128
_TRUNK_ELEMENTS = 4096  # of a block of denoise_trunk
_DIRECT_ELEMENTS = 1 << 16  # squares that each of its blocks adds up faster than one more node would


class Denoise(Extension):
    """Reconstruction of the state from the trunk's output on a noised copy (Vincent 2008).

    Attributes
    ----------
    source : Buffer
        i32 (H,): row of the batch that each noised row copies.
    output : Buffer
        f32 (H, padded S): the reconstruction.
    rows : Buffer
        f32 (H, 2): squared error, square of the noise, means over the state.
    dx : Buffer
        f32 (H, Hp): gradient by the trunk's output before the budget; with ``denoise.shape_trunk``.
    """

    name = "denoise"
    in_loss = False
    source: Buffer
    output: Buffer
    rows: Buffer
    dx: Buffer | None = None

    def __init__(self, config: DenoiseConfig) -> None:
        self.config, self.appends, self.trunk_gradient = config, config.rows, config.shape_trunk
        self.metrics = ("denoise_loss", "denoise_noise", *(("denoise_scale",) if config.shape_trunk else ()))

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        width, bound = layout.hidden[-1], uniform_bound(layout.hidden[-1])
        tensors = (
            Tensor("weight", (width, layout.state_dim), True, bound),
            Tensor("bias", (layout.state_dim,), False, bound),
        )
        return [ParameterGroup(self.name, tensors, self.config.lr_factor, self.config.max_grad_norm)]

    def record(self, step: StepView) -> None:
        rt, noised, drawn = step.runtime, step.appended(self.name), step.drawn
        layout = step.layout
        self.source = source = rt.zeros(noised.size, np.int32, "denoise.source")
        reads = [*drawn.transitions, step.step, *(step.replay.sample_reads if noised.window is not None else ())]
        with step.child("per_sample.denoise", after="per_sample", reads=reads,
                        writes=[*noised.sampled, source]) as child:  # fmt: skip
            child.launch("denoise_rows", (noised.size,), (_THREADS,), dict(
                step=step.step, drawn_state=drawn.state, drawn_next_state=drawn.next_state, drawn_return=drawn.ret,
                drawn_discount=drawn.discount, drawn_priority=drawn.priority, drawn_action=drawn.action,
                drawn_index=drawn.index, batch_state=noised.state, batch_next_state=noised.next_state,
                batch_action=noised.action, batch_return=noised.ret, batch_discount=noised.discount,
                batch_index=noised.index, batch_priority=noised.priority, source=source, H=noised.size, B=drawn.size,
                S=layout.state_dim, Sp=layout.state_padded, sigma=self.config.sigma))  # fmt: skip
            if noised.window is not None:
                step.replay.record_windows(child, noised)
        self._record_head(step)

    def _record_head(self, step: StepView) -> None:
        rt, group, noised, clean = step.runtime, step.group(self.name), step.appended(self.name), step.drawn.state
        layer = Layer(group.segments[0], group.segments[1], relu=False)
        x, h = step.appended_trunk_output(self.name), noised.size

        def floats(name: str, *dims: int) -> Buffer:
            return rt.zeros(dims, np.float32, f"denoise.{name}")

        self.output, doutput = floats("output", h, layer.n_padded), floats("doutput", h, layer.n_padded)
        rows = self.rows = floats("rows", h, abi.constant("DENOISE_COLUMNS"))
        n_splits = adam_grad.splits(h)
        stride = layer.weight.size + layer.bias.size
        partial = floats("partial", n_splits * stride)
        runs = group.runs(rt, {"weight": (0, stride, n_splits), "bias": (layer.weight.size, stride, n_splits)})
        weight, bias, means = group.theta("weight"), group.theta("bias"), step.metrics_of(self)
        through: list[Buffer] = []
        norms: Buffer | None = None
        if self.config.shape_trunk:
            self.dx = floats("dx", *x.shape)
            norms = floats("norms", h) if self.dx.size > _DIRECT_ELEMENTS else None
            through = [self.dx, step.trunk_gradient(self.name), *([norms] if norms is not None else [])]
            through.append(step.metric("denoise_scale"))
        reads = [x, weight, bias, noised.state, clean, self.source, step.step]
        with step.child("post_aux.denoise", after="ddqn", reads=reads,
                        writes=[self.output, doutput, rows, partial, *through]) as child:  # fmt: skip
            forward.own_layer(child, layer, h, [x], LayerWeights(weight, bias), self.output)
            child.launch("denoise_loss", (h,), (_THREADS,), dict(
                output=self.output, noised=noised.state, clean=clean, source=self.source, doutput=doutput, rows=rows, H=h,
                B=clean.shape[0], S=step.layout.state_dim, Sp=step.layout.state_padded, Np=layer.n_padded))  # fmt: skip
            to = partial, partial[layer.weight.size :]
            adam_grad.own_layer(child, layer, weight, x, doutput, self.dx, to, stride, n_splits, None, relu=False)
            if self.dx is not None:
                width = self.dx.shape[1]
                if norms is not None:
                    child.launch("denoise_norms", (h,), (_THREADS,), dict(dx=self.dx, norms=norms, H=h, Hp=width))
                child.launch("denoise_trunk", (-(-self.dx.size // _TRUNK_ELEMENTS),), (256,), dict(
                    dx=self.dx, norms=norms, step=step.step, dtrunk=through[1], scale=step.metric("denoise_scale"),
                    share=self.config.budget_share, weight=self.config.trunk_weight, H=h, Hp=width))  # fmt: skip
        reported = means[: rows.shape[1]]
        with step.child("post_aux.denoise_sum", after="post_aux.denoise", reads=[rows, partial, runs],
                        writes=[reported, *group.gradient]) as child:  # fmt: skip
            child.launch("column_means", (1,), (_THREADS,), dict(
                rows=rows, means=reported, R=h, C=rows.shape[1], means_of=rows.shape[1]))  # fmt: skip
            group.record_squares(child, partial, runs)


__all__ = ["Denoise"]
