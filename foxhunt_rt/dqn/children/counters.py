"""counters: the first child. One launch, `counters`: advances step, rng_step and Adam's t, and latches every schedule and
every host setting into the step block (docs/step/counters.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, StepPlan

_BLOCK = (32,)


@dataclass(frozen=True)
class CountersInputs:
    """What counters reads."""

    control: Buffer  # control_block[1]


@dataclass(frozen=True)
class CountersBuffers:
    """What counters writes."""

    state: Buffer  # train_state[1]
    step: Buffer  # step_block[1]


def record(child: Child, inputs: CountersInputs, buffers: CountersBuffers, atoms: int) -> None:
    """One launch of one thread."""
    child.launch("counters", grid=(1,), block=_BLOCK,
                 args=dict(control=inputs.control, state=buffers.state, step=buffers.step, N=atoms))  # fmt: skip


def add(plan: StepPlan, inputs: CountersInputs, buffers: CountersBuffers, atoms: int) -> None:
    """Appends the child to a plan. `step_block.started_ns` is declared volatile."""
    with plan.child("counters", reads=[inputs.control], writes=[buffers.state, buffers.step]) as child:
        record(child, inputs, buffers, atoms)
    plan.volatile(buffers.step, "started_ns")


__all__ = ["CountersBuffers", "CountersInputs", "add", "record"]
