"""Times of every step, always on: host time of the launch, device time from the record's mapped timestamps.

Nothing here synchronizes or calls the driver. The first and the last kernel of a step write ``%globaltimer`` into the record that
the host reads anyway, so the device's time costs nothing more.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from foxhunt_rt.graph.child_times import ChildTimes

#: INFO: one line for each of the first `FIRST` steps after a reset, then for every `EVERY`-th.
LOGGER = logging.getLogger("foxhunt_rt.step")
FIRST, EVERY = 5, 50


class Launchable(Protocol):
    """What is timed: `launch` queues one step and leaves its host time in `launch_ns`."""

    launch_ns: int

    def launch(self, steps: int | None = None) -> None: ...


@dataclass(frozen=True)
class StepTime:
    """Where the time of one step went, in microseconds.

    Attributes
    ----------
    step : int
        Steps since the last reset, from 0.
    device_us : float
        From the start of its first kernel to the end of its last.
    period_us : float
        From the start of the step before to the start of this one; 0 for the first. Far above `device_us`: the device waits for
        the host.
    launch_us : float
        Host time of the launch.
    host_wait_us : float
        The part of it in which this thread did not run: locks, the GIL, the scheduler. Measured on logged steps, else 0.
    queue_wait_us : float
        Host time spent waiting for an earlier step before the launch, since the queue was full.
    """

    step: int
    device_us: float
    period_us: float
    launch_us: float
    host_wait_us: float
    queue_wait_us: float

    def __str__(self) -> str:
        return (f"step {self.step:>6}  device {self.device_us:9.1f} us  period {self.period_us:9.1f}  launch "
                f"{self.launch_us:7.1f}  host wait {self.host_wait_us:6.1f}  queue wait {self.queue_wait_us:8.1f}")  # fmt: skip


def due(step: int) -> bool:
    """Whether a step gets a line in the log."""
    return step < FIRST or step % EVERY == 0


class StepTimer:
    """Joins the host time of each launch with the timestamps of its record, which comes a few steps later.

    Parameters
    ----------
    capacity : int
        Launches remembered: at least the steps that may be in flight.

    Attributes
    ----------
    last : StepTime or None
        Of the newest step with a line in the log, whether or not the logger is on.
    children : ChildTimes or None
        Set one to have the children of each logged step in the log.
    last_children : dict
        Microseconds of each child in that step; empty without `children`.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = max(capacity, 1) + 1
        self.children: ChildTimes | None = None
        self._launch_ns, self._wait_ns, self._queue_ns = ([0] * self._capacity for _ in range(3))
        self.reset()

    def reset(self, step: int = 0) -> None:
        """Begins anew with ``step``."""
        self.launched = self.recorded = step
        self._started_before = 0
        self.last: StepTime | None = None
        self.last_children: dict[str, float] = {}

    def launch(self, step: Launchable, queue_ns: int = 0, steps: int = 1) -> None:
        """Launches a step and notes its host time. ``queue_ns``: what the caller waited for an earlier step; ``steps``: how many
        the launch runs, which share its host time.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        waited = 0
        if any(map(due, range(self.launched, self.launched + steps))):
            cpu = time.thread_time_ns()  # a system call, so not on every step
            step.launch(steps)
            waited = max(0, step.launch_ns - (time.thread_time_ns() - cpu))
        else:
            step.launch(steps)
        for _ in range(steps):
            slot = self.launched % self._capacity
            self._launch_ns[slot], self._wait_ns[slot], self._queue_ns[slot] = (
                step.launch_ns // steps, waited // steps, queue_ns // steps)  # fmt: skip
            self.launched += 1

    def record(self, record: Any) -> StepTime | None:
        """Takes the record of the next step in order, and logs it when it is due.

        Parameters
        ----------
        record : mapping or structured array of shape ()
            With ``started_ns`` and ``ended_ns``.

        Returns
        -------
        StepTime or None
            None when the step gets no line: then hardly anything is done.
        """
        step = self.recorded
        self.recorded = step + 1
        if not due(step):
            if due(step + 1):
                self._started_before = int(record["started_ns"])
            return None
        started, ended, before = int(record["started_ns"]), int(record["ended_ns"]), self._started_before
        self._started_before = started
        slot, known = step % self._capacity, step < self.launched  # replays that went past this timer leave records too
        host = (self._launch_ns[slot], self._wait_ns[slot], self._queue_ns[slot]) if known else (0, 0, 0)
        self.last = StepTime(step, (ended - started) / 1e3, (started - before) / 1e3 if before else 0.0,
                             *(ns / 1e3 for ns in host))  # fmt: skip
        LOGGER.info("%s", self.last)
        if self.children is not None:
            self.last_children = self.children.read(started, ended)
            LOGGER.info("step %6d  children %s", step,
                        "  ".join(f"{name} {us:.1f}" for name, us in self.last_children.items()))  # fmt: skip
        return self.last


__all__ = ["EVERY", "FIRST", "LOGGER", "StepTime", "StepTimer", "due"]
