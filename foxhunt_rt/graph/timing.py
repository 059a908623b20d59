"""Times of every step, always on: host time of the launch, device time from the record's mapped timestamps.

Nothing here synchronizes or calls the driver. The first and the last kernel of a step write ``%globaltimer`` into the record that
the host reads anyway, so the device's time costs nothing more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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


def next_due(step: int) -> int:
    """The first step from ``step`` on that gets a line."""
    return step if step < FIRST else step + -step % EVERY


class StepTimer:
    """Joins the host time of each launch with the timestamps of its record, which comes a few steps later.

    Attributes
    ----------
    launched, recorded : int
        Steps launched through this timer, and records taken, since the last reset.
    last : StepTime or None
        Of the newest step with a line in the log, whether or not the logger is on.
    children : ChildTimes or None
        Set one to have the children of each logged step in the log.
    last_children : dict
        Microseconds of each child in that step; empty without `children`.
    """

    def __init__(self) -> None:
        self.children: ChildTimes | None = None
        self.reset()

    def reset(self, step: int = 0) -> None:
        """Begins anew with ``step``."""
        self.launched = self.recorded = step
        self._next_launch = self._next_record = next_due(step)
        #: Of launched steps with a line: launch, host wait, queue wait.
        self._host: dict[int, tuple[float, float, float]] = {}
        self._started_before = 0
        self.last: StepTime | None = None
        self.last_children: dict[str, float] = {}

    def launch(self, step: Launchable, queue_ns: int = 0, steps: int = 1) -> None:
        """Launches a step and, of one with a line, notes its host time. ``queue_ns``: what the caller waited for an earlier step;
        ``steps``: how many the launch runs, which share its host time.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        if self._next_launch >= self.launched + steps:
            step.launch(steps)
            self.launched += steps
            return
        cpu = time.thread_time_ns()  # a system call, so not on every step
        step.launch(steps)
        waited = max(0, step.launch_ns - (time.thread_time_ns() - cpu))
        self.launched += steps
        while self._next_launch < self.launched:
            self._host[self._next_launch] = (step.launch_ns / steps / 1e3, waited / steps / 1e3, queue_ns / steps / 1e3)
            self._next_launch = next_due(self._next_launch + 1)

    def record(self, read: Callable[[], Any]) -> StepTime | None:
        """Takes the record of the next step in order, and logs it when it is due.

        Parameters
        ----------
        read : callable
            Gives the record, a mapping or structured array of shape () with ``started_ns`` and ``ended_ns``. Called only for a
            step with a line and for the step before it.

        Returns
        -------
        StepTime or None
            None when the step gets no line.
        """
        step = self.recorded
        self.recorded = step + 1
        if step < self._next_record - 1:
            return None
        record = read()
        started, before, self._started_before = (
            int(record["started_ns"]),
            self._started_before,
            int(record["started_ns"]),
        )
        if step < self._next_record:
            return None
        self._next_record = next_due(step + 1)
        host = self._host.pop(step, (0.0, 0.0, 0.0))  # replays that went past this timer leave records too
        self.last = StepTime(
            step, (int(record["ended_ns"]) - started) / 1e3, (started - before) / 1e3 if before else 0.0, *host
        )
        LOGGER.info("%s", self.last)
        if self.children is not None:
            self.last_children = self.children.read(started, int(record["ended_ns"]))
            LOGGER.info("step %6d  children %s", step,
                        "  ".join(f"{name} {us:.1f}" for name, us in self.last_children.items()))  # fmt: skip
        return self.last


__all__ = ["EVERY", "FIRST", "LOGGER", "StepTime", "StepTimer", "next_due"]
