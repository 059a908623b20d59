"""aux: auxiliary losses on what the forward pass made (docs/step/aux.md).

aux.cql, beside ddqn: `cql_gradient`, a block a row: the loss and its gradient by the head's output. aux.cql_blend: `aux_blend`,
within its share of the gradient budget onto dlogits.
aux.iql_target, from the batch on, beside forward: the target network on s. aux.iql, beside ddqn: 1. `iql_value`, a block a row:
V, advantage, loss; 2. `head_gradient`; 3. the squares of its own parameters' gradient.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.config import CqlConfig, IqlConfig
from foxhunt_rt.dqn.children import iql_modulate
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.dqn.children.forward import ONLINE, ForwardWorkspace, record_forward
from foxhunt_rt.dqn.children.linear_head import HeadGradient, linear_head
from foxhunt_rt.dqn.children.row_launch import RowLaunch
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup
from foxhunt_rt.driver import Buffer
from foxhunt_rt.kernels import abi

_BLEND_BLOCKS = 256


class Cql(Extension):
    """Conservative Q-learning on expected returns (Kumar 2020).

    Parameters
    ----------
    config : CqlConfig
        Weight and share of the gradient budget.
    """

    name = "cql"
    metrics = ("cql_loss", "cql_scale")

    part: Buffer  # f32 (B, Np) the loss's gradient by the head's output, before the budget
    rows: Buffer  # f32 (B, 2) loss and squared norm of each row

    def __init__(self, config: CqlConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        shape, rt = step.shape, step.runtime
        part = self.part = rt.zeros((shape.batch, shape.head_padded), np.float32, "cql.part")
        rows = self.rows = rt.zeros((shape.batch, abi.constant("AUX_COLUMNS")), np.float32, "cql.rows")
        logits = step.forward.logits
        online: Buffer = logits[ONLINE : ONLINE + 1].view(logits.shape[1:])[: shape.batch]
        k, s, n = len(shape.branches), shape.actions, shape.atoms
        branch_scale = 1.0 / k if shape.reduction == "mean" else 1.0
        with step.child("aux.cql", after="ddqn", reads=[online, step.batch.action, step.step],
                        writes=[part, rows]) as child:  # fmt: skip
            launch = cql_launch(shape)
            child.launch(launch.kernel, grid=(shape.batch,), block=(launch.threads,), shared=launch.shared,
                         args=dict(logits=online, action=step.batch.action, step=step.step, part=part, rows=rows,
                                   branch_sizes=shape.packed_branches, weight=self.config.alpha * branch_scale,
                                   B=shape.batch, K=k, S=s, N=n, Np=shape.head_padded))  # fmt: skip
        add_blend(step, "aux.cql_blend", self, part, rows, self.config.budget_share)


def cql_launch(shape: LossShape) -> RowLaunch:
    """Of CQL's loss and gradient."""
    k, s, n = len(shape.branches), shape.actions, shape.atoms
    return RowLaunch.of(
        ("cql_gradient", "cql_gradient_wide"), shape, tasks=k, logits=shape.head_padded, work=2 * k * n + 4 * s + 2 * k
    )


def add_blend(step: StepView, name: str, extension: Extension, part: Buffer, rows: Buffer, share: float) -> None:
    """A child of one launch after ddqn: adds ``part``, f32 (B, Np), to dlogits within its share of the gradient budget. ``rows``,
    f32 (B, 2): loss and squared norm of each row. The extension's metrics, two, receive the mean loss and the factor."""
    loss, scale = (step.metric(metric) for metric in extension.metrics)
    with step.child(name, after="ddqn", reads=[part, rows, step.step],
                    writes=[step.dlogits, step.metrics_of(extension)]) as child:  # fmt: skip
        child.launch("aux_blend", grid=(min(step.shape.batch, _BLEND_BLOCKS),), block=(256,),
                     args=dict(part=part, rows=rows, step=step.step, dlogits=step.dlogits, loss=loss, scale=scale, share=share,
                               B=step.shape.batch, Np=step.shape.head_padded))  # fmt: skip


class Iql(Extension):
    """A state value by expectile regression, whose advantage modulates the priorities (IQL, Kostrikov 2022).

    Parameters
    ----------
    config : IqlConfig
        Expectile, temperature and bounds of the modulation, learning rate and clip of its own optimizer.

    Attributes
    ----------
    rows : Buffer
        f32 (B, 4): loss, V, advantage, dloss/dV of each row.
    """

    name = "iql"
    metrics = ("iql_loss", "iql_value", "iql_advantage")
    rows: Buffer

    def __init__(self, config: IqlConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        return [linear_head("iql_v", layout, 1, self.config, normalized=True)]

    def record(self, step: StepView) -> None:
        rt, shape, group, batch = step.runtime, step.shape, step.group("iql_v"), step.shape.batch
        self.rows = rt.zeros((batch, abi.constant("IQL_COLUMNS")), np.float32, "iql.rows")
        target = ForwardWorkspace.create(rt, step.layout, batch, "iql.target")
        x, width = step.trunk_output, step.trunk_output.shape[1]
        network = step.adam.target[: step.layout.forward_size]
        past, back = step.batch.window, HeadGradient.create(step, group, batch)
        products, side = step.products, step.side_products(self.name)
        with step.child("aux.iql_target", before="ddqn", writes=target.buffers(), scratch=side.scratch(any(products.forward)),
                        reads=[network, step.batch.state, *(past.buffers() if past is not None else [])]) as child:  # fmt: skip
            record_forward(child, step.layout, network, step.batch.state, batch, target, past, products, side.lane)
        reads = [target.logits, step.batch.action, *back.reads, group.theta("weight"), group.theta("bias"), step.step]
        with step.child("aux.iql", after="ddqn", reads=reads,
                        writes=[self.rows, *back.writes, step.metrics_of(self)]) as child:  # fmt: skip
            child.launch("iql_value", grid=(batch,), block=(128,), shared=4 * len(shape.branches),
                         args=dict(logits=target.logits, action=step.batch.action, x=x, w=group.theta("weight"),
                                   bias=group.theta("bias"), step=step.step, rows=self.rows,
                                   branch_sizes=shape.packed_branches, expectile=self.config.tau, B=batch,
                                   K=len(shape.branches), N=shape.atoms, Np=shape.head_padded, Hp=width))  # fmt: skip
            back.record(child, self.rows, step.metrics_of(self), outputs=1)
        iql_modulate.add(step, self.config, self.rows)


__all__ = ["Cql", "Iql", "add_blend", "cql_launch"]
