"""publish: the step's epilogue, which joins every end of the graph. One launch, `publish`: alarms, and one record in the
mapped ring that the host drains (docs/step/counters.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.driver import Buffer, MappedBuffer
from foxhunt_rt.graph import Child, StepPlan

_THREADS = 64  # a warp for the record, one for the fence before it


@dataclass(frozen=True)
class PublishInputs:
    """What publish reads."""

    total: Buffer  # f32 (1, W) statistics of the rows drawn; (2, W): and of the other rows that have a loss
    step: Buffer  # step_block[1]
    optim: Buffer  # optim_stats[1]
    replay: Buffer  # replay_state[1]
    guard: Buffer  # guard_block[1]
    metrics: Buffer | None = None  # f32 (M,) what other children measured; None: nothing


@dataclass(frozen=True)
class PublishBuffers:
    """What publish writes."""

    alarms: Buffer  # alarm_block[1]
    records: MappedBuffer  # step_record[capacity]
    metrics_ring: MappedBuffer | None = None  # f32 (capacity, M)


def record(child: Child, shape: LossShape, inputs: PublishInputs, buffers: PublishBuffers) -> None:
    """One launch of one block."""
    total, metrics = inputs.total, inputs.metrics
    child.launch("publish", grid=(1,), block=(_THREADS,), shared=4 * shape.stats_width,
                 args=dict(total=total[:1], rest=total[1:] if total.shape[0] > 1 else None, step=inputs.step,
                           optim=inputs.optim, replay=inputs.replay, guard=inputs.guard, alarms=buffers.alarms,
                           records=buffers.records, W=shape.stats_width, N=shape.atoms, B=shape.drawn_rows,
                           capacity=buffers.records.shape[0], metrics=metrics, metrics_ring=buffers.metrics_ring,
                           M=metrics.shape[0] if metrics is not None else 0))  # fmt: skip


def add(plan: StepPlan, shape: LossShape, inputs: PublishInputs, buffers: PublishBuffers) -> None:
    """Makes it the plan's epilogue. The record's timestamps are declared volatile."""
    more = [b for b in (inputs.metrics,) if b is not None]
    rings = [b for b in (buffers.records, buffers.metrics_ring) if b is not None]
    with plan.epilogue("publish", reads=[inputs.total, inputs.step, inputs.optim, inputs.replay, *more],
                       writes=[buffers.alarms, *rings], private=[inputs.guard]) as child:  # fmt: skip
        record(child, shape, inputs, buffers)
    plan.volatile(buffers.records, "started_ns", "ended_ns")


__all__ = ["PublishBuffers", "PublishInputs", "add", "record"]
