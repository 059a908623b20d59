"""per_sample: draws the batch by priority and forms its n-step transitions. One launch: `per_sample`, a block a row.

Equations and what is tested: docs/step/per_sample.md.
"""

from __future__ import annotations

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import StepPlan
from foxhunt_rt.replay import Batch, Replay

__all__ = ["record_per_sample"]


def record_per_sample(plan: StepPlan, replay: Replay, batch: Batch, step: DeviceBuffer) -> None:
    """Adds the child to the plan.

    Parameters
    ----------
    plan : StepPlan
    replay : Replay
        Drawn from; the rows that are there when the step runs.
    batch : Batch
        Receives all but ``td_error``.
    step : DeviceBuffer of step_block, (1,)
        seed, rng_step, gamma and reward_scale are read; min_priority becomes the smallest P drawn.
    """
    with plan.child("per_sample", reads=replay.sample_reads, writes=[step, *batch.sampled]) as child:
        replay.record_sample(child, batch, step)
