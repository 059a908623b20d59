"""per_priority: new priorities of the drawn rows, and the sums above them (docs/step/per_priority.md)."""

from __future__ import annotations

from dataclasses import dataclass

from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, StepPlan
from foxhunt_rt.replay import Batch, Replay


@dataclass(frozen=True)
class PerPriorityInputs:
    """What per_priority reads."""

    batch: Batch  # index as drawn, td_error >= 0; one that is not finite writes nothing and is counted
    step: Buffer  # step_block[1]: alpha_per, eps_per


def reads(inputs: PerPriorityInputs) -> list[Buffer]:
    return [inputs.batch.index, inputs.batch.td_error, inputs.step]


def writes(replay: Replay) -> list[Buffer]:
    return [*replay.priority_writes]


def record(child: Child, inputs: PerPriorityInputs, replay: Replay) -> None:
    """`per_priority`, a block a drawn row: P = (td_error + eps)^alpha, then the sum of its 256 rows. Above 65,536 rows
    `per_priority_upper` too: the third level of sums."""
    replay.record_priorities(child, inputs.batch, inputs.step)


def add(plan: StepPlan, inputs: PerPriorityInputs, replay: Replay) -> None:
    """Appends the child to a plan."""
    with plan.child("per_priority", reads=reads(inputs), writes=writes(replay)) as child:
        record(child, inputs, replay)


__all__ = ["PerPriorityInputs", "add", "reads", "record", "writes"]
