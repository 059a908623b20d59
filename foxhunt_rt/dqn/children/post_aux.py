"""post_aux: heads with optimizers of their own that learn from what the row's n-step return was (docs/step/post_aux.md).

A child a head, beside ddqn: 1. the head's kernel, a block a row; 2. `head_gradient`; 3. the squares of its gradient.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.config import RiskConfig, SelectivityConfig
from foxhunt_rt.dqn.children.linear_head import HeadGradient, linear_head
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi


class Selectivity(Extension):
    """The chance that the return is positive, by logistic regression.

    Attributes
    ----------
    rows : Buffer
        f32 (B, 4): loss, probability, label; dloss/dlogit.
    """

    name = "selectivity"
    metrics = ("selectivity_loss", "selectivity_probability", "selectivity_rate")
    rows: Buffer

    def __init__(self, config: SelectivityConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        return [linear_head(self.name, layout, 1, self.config)]

    def record(self, step: StepView) -> None:
        self.rows = _record(step, self, "selectivity", abi.constant("SELECTIVITY_COLUMNS"), 1)


class Risk(Extension):
    """A low quantile of the return and the expected shortfall below it.

    Attributes
    ----------
    rows : Buffer
        f32 (B, 7): pinball loss, squared error, quantile, expected shortfall, whether below; two gradients.
    """

    name = "risk"
    metrics = ("risk_pinball", "risk_shortfall_error", "risk_quantile", "risk_shortfall", "risk_below")
    rows: Buffer

    def __init__(self, config: RiskConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        return [linear_head(self.name, layout, 2, self.config)]

    def record(self, step: StepView) -> None:
        self.rows = _record(step, self, "risk", abi.constant("RISK_COLUMNS"), 2, level=self.config.level)


def _record(step: StepView, extension: Extension, kernel: str, columns: int, outputs: int, **scalars: float) -> Buffer:
    """Appends the child of one head after ddqn; returns its rows."""
    batch, group = step.drawn, step.group(extension.name)
    x = step.trunk_output[: batch.size]
    width = x.shape[1]
    rows = step.runtime.zeros((batch.size, columns), np.float32, f"{extension.name}.rows")
    weight, bias, back = group.theta("weight"), group.theta("bias"), HeadGradient.create(step, group, batch.size)
    with step.child(f"post_aux.{extension.name}", after="ddqn", reads=[*back.reads, batch.ret, weight, bias],
                    writes=[rows, *back.writes, step.metrics_of(extension)]) as child:  # fmt: skip
        child.launch(kernel, grid=(batch.size,), block=(128,), args=dict(scalars, x=x, ret=batch.ret, w=weight,
                     bias=bias, rows=rows, B=batch.size, Hp=width))  # fmt: skip
        back.record(child, rows, step.metrics_of(extension), outputs=outputs)
    return rows


__all__ = ["Risk", "Selectivity"]
