"""aux: auxiliary losses on what the forward pass made (docs/step/aux.md).

CQL: 1. `cql_gradient`, a block a row: the loss and its gradient by the head's output; 2. `aux_blend`: within its share of the
gradient budget onto dlogits.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children.forward import ONLINE
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

_BLEND_BLOCKS = 256


class Cql(Extension):
    """Conservative Q-learning on expected returns (Kumar 2020).

    Parameters
    ----------
    config : Config
        ``cql``: weight and share of the gradient budget.
    """

    name = "cql"
    metrics = ("cql_loss", "cql_scale")

    part: Buffer  # f32 (B, Np) the loss's gradient by the head's output, before the budget
    rows: Buffer  # f32 (B, 2) loss and squared norm of each row

    def __init__(self, config: Config) -> None:
        self.config = config.cql

    def record(self, step: StepView) -> None:
        shape, rt = step.shape, step.runtime
        part = self.part = rt.zeros((shape.batch, shape.head_padded), np.float32, "cql.part")
        rows = self.rows = rt.zeros((shape.batch, abi.constant("AUX_COLUMNS")), np.float32, "cql.rows")
        logits = step.forward.logits
        online: Buffer = logits[ONLINE : ONLINE + 1].view(logits.shape[1:])
        loss, scale = step.metric("cql_loss"), step.metric("cql_scale")
        k, s, n = len(shape.branches), shape.actions, shape.atoms
        branch_scale = 1.0 / k if shape.reduction == "mean" else 1.0
        with step.child("aux", after="ddqn", reads=[online, step.batch.action, step.step],
                        writes=[part, rows, step.dlogits, loss, scale]) as child:  # fmt: skip
            child.launch("cql_gradient", grid=(shape.batch,), block=(32 * min(s, 16),), shared=4 * (2 * k * n + 4 * s + k),
                         args=dict(logits=online, action=step.batch.action, step=step.step, part=part, rows=rows,
                                   branch_sizes=shape.packed_branches, weight=self.config.alpha * branch_scale,
                                   B=shape.batch, K=k, S=s, N=n, Np=shape.head_padded))  # fmt: skip
            child.launch("aux_blend", grid=(min(shape.batch, _BLEND_BLOCKS),), block=(256,),
                         args=dict(part=part, rows=rows, step=step.step, dlogits=step.dlogits, loss=loss, scale=scale,
                                   share=self.config.budget_share, B=shape.batch, Np=shape.head_padded))  # fmt: skip


__all__ = ["Cql"]
