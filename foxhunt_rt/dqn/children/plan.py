"""post_aux.plan: conviction, and the readiness that it earns on rows it was not trained on (docs/step/plan.md).

Beside ddqn: 1. `plan_rows`, a block a row: label from the ring, probability, held out or not; 2. `head_gradient`; 3. the squares
of the gradient; 4. `plan_update`: skill and readiness. `Conviction` is what acting makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from foxhunt_rt.config import PlanConfig
from foxhunt_rt.dqn.children.linear_head import HeadGradient, linear_head
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi

_THREADS = 128
_NAME = "plan"


class Plan(Extension):
    """The chance that the next steps earn something, by logistic regression, and whether it may be believed.

    Attributes
    ----------
    rows : DeviceBuffer
        f32 (B, 9): the PLAN_* columns of cuda_src/abi/plan.h, then dloss/dlogit.
    state : DeviceBuffer
        plan_state[1]: skill and readiness.
    """

    name = _NAME
    metrics = ("plan_loss", "plan_probability", "plan_rate", "plan_held_out", "plan_skill", "plan_readiness",
               "plan_conviction")  # fmt: skip
    rows: DeviceBuffer
    state: DeviceBuffer

    def __init__(self, config: PlanConfig) -> None:
        self.config = config

    def parameters(self, layout: NetworkLayout) -> list[ParameterGroup]:
        return [linear_head(self.name, layout, 1, self.config)]

    def record(self, step: StepView) -> None:
        rt, config, drawn, replay = step.runtime, self.config, step.drawn, step.replay
        x, group = step.trunk_output[: drawn.size], step.group(self.name)
        rows, width = x.shape
        replay.ahead = max(replay.ahead, config.length)
        self.rows = rt.zeros((rows, abi.constant("PLAN_COLUMNS")), np.float32, "plan.rows")
        self.state = rt.zeros(1, abi.dtype("plan_state"), "plan.state")
        means = rt.zeros(abi.constant("PLAN_MEANS"), np.float32, "plan.means")
        weight, bias, metrics = group.theta("weight"), group.theta("bias"), step.metrics_of(self)
        back = HeadGradient.create(step, group, rows)
        with step.child("post_aux.plan", after="ddqn",
                        reads=[*back.reads, weight, bias, drawn.index, replay.rows, replay.ring, step.step,
                               *([replay.conviction] if replay.conviction is not None else [])],
                        writes=[self.rows, means, *back.writes, self.state, metrics]) as child:  # fmt: skip
            child.launch("plan_rows", (rows,), (_THREADS,), dict(
                x=x, w=weight, bias=bias, index=drawn.index, ring_rows=replay.rows, ring=replay.ring, step=step.step,
                conviction=replay.conviction, rows=self.rows, holdout=config.holdout,
                block_bars=config.block_bars if replay.mode == "market" else 0,
                length=config.length, B=rows, Hp=width, capacity=replay.capacity))  # fmt: skip
            back.record(child, self.rows, means, outputs=1)
            child.launch("plan_update", (1,), (32,), dict(means=means, state=self.state, metrics=metrics,
                                                         rate=config.rate, ready_steps=config.ready_steps))  # fmt: skip

    def reset(self) -> None:
        self.state.fill(0)

    def persistent(self) -> Mapping[str, DeviceBuffer]:
        return {"state": self.state}

    def report(self) -> dict[str, Any]:
        state = self.state.to_numpy()[0]
        return {"skill": float(state["skill"]), "readiness": float(state["readiness"])}


class Conviction:
    """What decisions are scaled by: the plan head's probability once its readiness has reached the gate, until then exactly 1.

    Parameters
    ----------
    rt : Runtime
    layout : NetworkLayout
        With the plan head's group.
    config : PlanConfig
    state : Buffer
        plan_state[1]: the readiness that counts, the learner's or a checkpoint's.
    rows : int
        R.
    label : str

    Attributes
    ----------
    value : DeviceBuffer
        f32 (R,): written by `record`.
    """

    def __init__(
        self, rt: Runtime, layout: NetworkLayout, config: PlanConfig, state: Buffer, rows: int, label: str
    ) -> None:
        self.layout, self.config, self.state = layout, config, state
        self.value = rt.array(np.ones(rows, np.float32), label)

    def record(self, child: Child, hidden: Buffer, params: Buffer) -> None:
        """Records one launch.

        Parameters
        ----------
        child : Child
            Declares ``hidden``, ``params`` and `state` as read, `value` as written.
        hidden : Buffer
            f32 (R, Hp): the trunk's output on the states to act in.
        params : Buffer
            Flat parameters, f32 (P,).
        """
        weight, bias = (params[s.offset : s.stop] for s in self.layout.group_segments[_NAME])
        rows, width = self.value.shape[0], hidden.shape[1]
        child.launch("conviction", (rows,), (_THREADS,), dict(
            x=hidden, w=weight, bias=bias, state=self.state, conviction=self.value, gate=self.config.gate_readiness,
            R=rows, Hp=width))  # fmt: skip


__all__ = ["Conviction", "Plan"]
