"""per_priority: what the step does with the losses beside the backward pass (docs/step/per_priority.md): new priorities of
the drawn rows, the sums above them, and the statistics that publish reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from foxhunt_rt.dqn.children import row_stats
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, StepPlan
from foxhunt_rt.replay import Batch, Replay


@dataclass(frozen=True)
class PerPriorityInputs:
    """What per_priority reads."""

    batch: Batch  # the rows drawn alone: index, td_error >= 0; one that is not finite writes nothing and is counted
    step: Buffer  # step_block[1]: alpha_per, eps_per
    stats: Buffer | None = None  # f32 (R, W) rows of statistics; None: nobody wants their total
    drawn: int = 0  # how many of them come from the rows drawn; 0: all


def reads(inputs: PerPriorityInputs) -> list[Buffer]:
    return [inputs.batch.index, inputs.batch.td_error, inputs.step, *([] if inputs.stats is None else [inputs.stats])]


def writes(replay: Replay, total: Buffer | None = None) -> list[Buffer]:
    return [*replay.priority_writes, *([] if total is None else [total])]


def record(child: Child, inputs: PerPriorityInputs, replay: Replay, total: Buffer | None = None) -> None:
    """`per_priority`, a block a drawn row: P = (td_error + eps)^alpha, then the sum of its 256 rows. Above 65,536 rows
    `per_priority_upper` too: the third level of sums. With statistics `row_stats` adds them up to total, f32 (1, W); where some
    are not of drawn rows, to (2, W), in one launch more."""
    replay.record_priorities(child, inputs.batch, inputs.step)
    if inputs.stats is not None and total is not None:
        drawn = inputs.drawn or inputs.stats.shape[0]
        row_stats.record(child, inputs.stats[:drawn], total[:1])
        if drawn < inputs.stats.shape[0]:
            row_stats.record(child, inputs.stats[drawn:], total[1:])


def add(plan: StepPlan, inputs: PerPriorityInputs, replay: Replay, total: Buffer | None = None) -> None:
    """Appends the child to a plan."""
    with plan.child("per_priority", reads=reads(inputs), writes=writes(replay, total)) as child:
        record(child, inputs, replay, total)


__all__ = ["PerPriorityInputs", "add", "reads", "record", "writes"]
