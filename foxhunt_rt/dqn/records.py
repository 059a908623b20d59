"""The mapped ring of step records, read without synchronizing: every step leaves one, and every one is read.

Known failures K7 and K10: statistics were read before the kernel had written them, and a guard that ran every fifth step
missed whole epochs. Here a record counts only when its sequence number is right on both sides of the copy, and a number
that is too large means that records were lost, which raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn.guard import GuardFault, decode
from foxhunt_rt.driver import FoxhuntError, MappedBuffer
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi

_SPIN = 200  # reads before the waiting thread lets others run


class RecordError(FoxhuntError):
    """Records were overwritten before they were read, or never came."""


class RecordReader:
    """Drains a ring of `step_record`.

    Parameters
    ----------
    rt : Runtime
    capacity : int
        Records of the ring: at least twice the steps that may be in flight.
    metrics : sequence of str
        What other children measure, one float each: fields that follow those of `step_record`.

    Attributes
    ----------
    ring : MappedBuffer
        step_record[capacity].
    metrics_ring : MappedBuffer or None
        f32 (capacity, len(metrics)).
    dtype : numpy.dtype
        Of a record as it is handed over.
    """

    def __init__(self, rt: Runtime, capacity: int, metrics: Sequence[str] = ()) -> None:
        self.runtime = rt
        base = abi.dtype("step_record")
        self.ring: MappedBuffer = rt.mapped(capacity, base, "records")
        self.metrics_ring: MappedBuffer | None = None
        self.dtype = base
        if metrics:
            self.metrics_ring = rt.mapped((capacity, len(metrics)), np.float32, "metrics")
            fields = [(name, base.fields[name][0]) for name in base.names or ()]  # type: ignore[index]
            self.dtype = np.dtype([*fields, *((name, np.float32) for name in metrics)])
        self.next_step = 0
        self._host = self.ring.host
        self._sequence = self._host["sequence"]

    def reset(self, step: int = 0) -> None:
        """Forgets every record; the next one is that of ``step``. The stream must be idle."""
        self._host.view(np.uint8)[...] = 0
        if self.metrics_ring is not None:
            self.metrics_ring.host[...] = 0.0
        self.next_step = step

    def poll(self, deliver: Callable[[npt.NDArray[Any]], None]) -> int:
        """Hands over each record that has come, oldest first, and returns how many. Does not synchronize.

        Parameters
        ----------
        deliver : callable
            Given a copy of each record, a structured array of shape ().

        Raises
        ------
        GuardFault
            A record carries a fault; that record was delivered before.
        RecordError
            The ring was overrun.
        """
        self.ring.poll()
        count = 0
        while (record := self._read()) is not None:
            count += 1
            self.next_step += 1
            deliver(record)
            if (finding := decode(int(record["guard_key"]))) is not None:
                raise GuardFault(int(record["step"]), finding)
        return count

    def _read(self) -> npt.NDArray[Any] | None:
        slot, expected = self.next_step % len(self._host), self.next_step + 1
        before = int(self._sequence[slot])
        if before == expected:
            record = self._copy(slot)
            before = int(self._sequence[slot])
            if before == expected:
                copied: npt.NDArray[Any] = record
                return copied
        if before > expected:
            raise RecordError(f"record of step {self.next_step} was overwritten by that of step {before - 1}: drain the "
                              f"ring of {len(self._host)} records more often")  # fmt: skip
        return None  # not there yet, or half written (sequence 0)

    def _copy(self, slot: int) -> npt.NDArray[Any]:
        record = self._host[slot : slot + 1].copy()[0]
        if self.metrics_ring is None:
            return record
        return np.array((*record.item(), *self.metrics_ring.host[slot].tolist()), self.dtype)

    def wait(self, step: int, deliver: Callable[[npt.NDArray[Any]], None], timeout_s: float = 60.0) -> None:
        """Polls until the record of ``step`` was delivered. Does not synchronize, unless the record fails to come.

        Raises
        ------
        RecordError
            It did not come in ``timeout_s`` seconds, or the stream is idle and it is not there.
        """
        deadline = time.monotonic() + timeout_s
        reads = 0
        while self.next_step <= step:
            if self.poll(deliver):
                continue
            reads += 1
            if reads % _SPIN == 0:
                if self.runtime.stream.done and not self.poll(deliver):
                    raise RecordError(f"the stream is idle and step {step} left no record: was it launched?")
                if time.monotonic() > deadline:
                    raise RecordError(f"step {step} left no record in {timeout_s:g} s: is the device hung?")
                time.sleep(0)


__all__ = ["RecordError", "RecordReader"]
