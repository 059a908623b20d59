"""per_sample: draws the batch by priority and forms its n-step transitions, in one launch (docs/step/per_sample.md).

per_sample.windows, where the network looks back: `replay_windows`, the states before those of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, StepPlan
from foxhunt_rt.replay import Batch, Replay


@dataclass(frozen=True)
class PerSampleInputs:
    """What per_sample reads."""

    replay: Replay  # the rows that it holds when the step runs
    step: Buffer  # step_block[1]: seed, rng_step, gamma, reward_scale; min_priority becomes the smallest P drawn
    guard: Buffer | None  # guard_block[1]; None: an empty ring shows as index -1 and NaN weights only


def reads(inputs: PerSampleInputs) -> list[Buffer]:
    return [*inputs.replay.sample_reads]


def writes(inputs: PerSampleInputs, batch: Batch) -> list[Buffer]:
    """All of the batch but `td_error` and the windows."""
    return [inputs.step, *batch.transitions]


def private(inputs: PerSampleInputs) -> list[Buffer]:
    """The guard: claimed by an integer minimum, so it orders nothing."""
    return [inputs.guard] if inputs.guard is not None else []


def record(child: Child, inputs: PerSampleInputs, batch: Batch) -> None:
    """One launch: `per_sample`, a block a drawn row."""
    inputs.replay.record_transitions(child, batch, inputs.step, inputs.guard)


def add(plan: StepPlan, inputs: PerSampleInputs, batch: Batch) -> None:
    """Appends the child to a plan; the windows are another, which whoever changes or copies the drawn rows need not wait for."""
    with plan.child("per_sample", reads=reads(inputs), writes=writes(inputs, batch), private=private(inputs)) as child:
        record(child, inputs, batch)
    if batch.windows:
        windows = [buffer for w in batch.windows for buffer in w.buffers()]
        with plan.child("per_sample.windows", reads=[*reads(inputs), batch.index, batch.state, batch.next_state],
                        writes=windows, after="per_sample") as child:  # fmt: skip
            inputs.replay.record_windows(child, batch)


__all__ = ["PerSampleInputs", "add", "private", "reads", "record", "writes"]
