"""per_priority: new priorities of the drawn rows, and the sums above them. Launches, in order:

1. `per_priority`, a block a drawn row: P = (td_error + eps_per)^alpha_per, then the sum of its 256 rows;
2. `per_priority_upper`, above 65,536 rows: the third level of sums.

Equations and what is tested: docs/step/per_priority.md.
"""

from __future__ import annotations

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import StepPlan
from foxhunt_rt.replay import Batch, Replay

__all__ = ["record_per_priority"]


def record_per_priority(plan: StepPlan, replay: Replay, batch: Batch, step: DeviceBuffer) -> None:
    """Adds the child to the plan.

    Parameters
    ----------
    plan : StepPlan
    replay : Replay
        That the batch was drawn from.
    batch : Batch
        ``index`` as drawn, ``td_error`` >= 0 by the learner. An error that is not finite writes nothing and is counted in
        ``replay_state.skipped``.
    step : DeviceBuffer of step_block, (1,)
        alpha_per and eps_per are read.
    """
    with plan.child("per_priority", reads=[batch.index, batch.td_error, step], writes=replay.priority_writes) as child:
        replay.record_priorities(child, batch, step)
