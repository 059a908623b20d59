"""isv: the internal state vector, how training stands, as six more columns of every state (docs/step/isv.md).

1. `isv_entropy`, a block a row, beside ddqn; 2. `isv_update`, behind adam and the sums of per_priority: all six, into the vector
that collection appends to states (`Replay.context`) and into the record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from foxhunt_rt.config import Config, IsvConfig
from foxhunt_rt.dqn.children.forward import ONLINE
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.kernels import abi

#: Components in the order of the vector.
COMPONENTS = ("atom_use", "entropy", "td_error", "grad_norm", "drawdown", "phase")


def context_dim(config: Config) -> int:
    """Columns that are appended to an observation: 6 where the vector is on, else 0."""
    return len(COMPONENTS) if config.isv.enabled else 0


def append_context(launcher: Any, context: Buffer, states: Buffer, rows: int, at: int) -> None:
    """Records the context (C,) into ``rows`` states, f32 (rows, Sp), from column ``at`` on; with windows (rows, L, Sp) into the
    last state of each."""
    width = states.size // states.shape[0]
    at += width - states.shape[-1]
    launcher.launch(
        "append_context", (rows,), (32,), dict(context=context, state=states, R=rows, Sp=width, at=at, C=context.size)
    )


class Isv(Extension):
    """The internal state vector.

    Attributes
    ----------
    vector : DeviceBuffer
        f32 (6,), `COMPONENTS` as the last step left them, each within [0, 1]; zeros at the start of a fold.
    """

    name = "isv"
    metrics = tuple(f"isv_{name}" for name in COMPONENTS)
    vector: DeviceBuffer

    def __init__(self, config: IsvConfig) -> None:
        self.config = config

    def record(self, step: StepView) -> None:
        assert step.replay.context is not None, "the learner sees to it where the feature is on"
        self.vector = step.replay.context
        step.replay.track_drawdown()
        assert step.replay.drawdown is not None
        shape, rows, logits = step.shape, step.drawn.size, step.forward.logits
        online: Buffer = logits[ONLINE : ONLINE + 1].view(logits.shape[1:])[:rows]
        entropy = step.runtime.zeros(rows, np.float32, "isv.entropy")
        with step.child("ddqn.entropy", after="forward", reads=[online, step.drawn.action], writes=[entropy]) as child:
            child.launch("isv_entropy", (rows,), (128,),
                         dict(logits=online, action=step.drawn.action, entropy=entropy, branch_sizes=shape.packed_branches,
                              B=rows, K=len(shape.branches), N=shape.atoms, Np=shape.head_padded))  # fmt: skip
        total, optim, metrics = step.total[:1], step.adam.stats[:1], step.metrics_of(self)
        with step.child("adam.isv", after="per_priority", writes=[self.vector, metrics],
                        reads=[total, entropy, optim, step.replay.drawdown, step.step, step.control]) as child:  # fmt: skip
            child.launch("isv_update", (1,), (256,),
                         dict(total=total, entropy=entropy, optim=optim, drawdown=step.replay.drawdown, step=step.step,
                              control=step.control, vector=self.vector, metrics=metrics, B=rows, N=shape.atoms,
                              W=shape.stats_width))  # fmt: skip

    def reset(self) -> None:
        self.vector.fill(0)

    def persistent(self) -> dict[str, DeviceBuffer]:
        return {"vector": self.vector}


assert len(COMPONENTS) == abi.constant("ISV_COMPONENTS")

__all__ = ["COMPONENTS", "Isv", "append_context", "context_dim"]
