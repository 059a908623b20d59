"""The mapped ring of step records, read without synchronizing: every step leaves one, and every one is read.

Known failures K7 and K10: statistics were read before the kernel had written them, and a guard that ran every fifth step
missed whole epochs. Here a record counts only when its sequence number is right on both sides of the copy, and a number
that is too large means that records were lost, which raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn import guard
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.driver import FoxhuntError, MappedBuffer, hostsim
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import abi

_SPIN = 200  # reads before the waiting thread lets others run
_CLEAR = guard.CLEAR.to_bytes(8, "little")


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
        fields: Mapping[str, Any] = base.fields or {}
        self.ring: MappedBuffer = rt.mapped(capacity, base, "records")
        self.metrics_ring: MappedBuffer | None = None
        self.dtype = base
        # The rings as bytes and as 64-bit words: reading one costs a tenth of a field of a NumPy array.
        self._bytes = self.ring.host.view(np.uint8).data
        self._words = self._bytes.cast("Q")
        self._metrics: memoryview | None = None
        if metrics:
            self.metrics_ring = rt.mapped((capacity, len(metrics)), np.float32, "metrics")
            self._metrics = self.metrics_ring.host.reshape(-1).view(np.uint8).data
            self.dtype = np.dtype([*((name, fields[name][0]) for name in base.names or ()),
                                   *((name, np.float32) for name in metrics)])  # fmt: skip
        self.next_step = 0
        self._capacity, self._size, self._metrics_size = capacity, base.itemsize, 4 * len(metrics)
        self._sequence, self._key_at = fields["sequence"][1] // 8, fields["guard_key"][1]
        sim = hostsim()
        self._run_late_work = None if sim is None else sim.fxHostsimPoll  # which hostsim does only when asked

    def reset(self, step: int = 0) -> None:
        """Forgets every record; the next one is that of ``step``. The stream must be idle."""
        for ring in (self._bytes, self._metrics):
            if ring is not None:
                ring[:] = bytes(len(ring))
        self.next_step = step

    def poll(self, deliver: Callable[[bytes], None]) -> int:
        """Hands over each record that has come, oldest first, and returns how many. Does not synchronize.

        Parameters
        ----------
        deliver : callable
            Given the bytes of each record, of which `decode` makes an array.

        Raises
        ------
        GuardFault
            A record carries a fault; that record was delivered before.
        RecordError
            The ring was overrun.
        """
        if self._run_late_work is not None:
            self._run_late_work()
        count = 0
        while (record := self._read()) is not None:
            count += 1
            self.next_step += 1
            deliver(record)
            if not record.startswith(_CLEAR, self._key_at):
                self._raise_fault(record)
        return count

    def _raise_fault(self, record: bytes) -> None:
        (found,) = self.decode([record])
        finding = guard.decode(int(found["guard_key"]))
        assert finding is not None
        raise GuardFault(int(found["step"]), finding)

    def decode(self, records: Sequence[bytes]) -> npt.NDArray[Any]:
        """Records as an array of shape (n,)."""
        return np.frombuffer(bytearray().join(records), self.dtype)

    def _read(self) -> bytes | None:
        slot, expected = self.next_step % self._capacity, self.next_step + 1
        begin = slot * self._size
        at = begin // 8 + self._sequence
        found = self._words[at]
        if found == expected:
            record = bytes(self._bytes[begin : begin + self._size])
            if self._metrics is not None:
                record += self._metrics[slot * self._metrics_size : (slot + 1) * self._metrics_size]
            found = self._words[at]
            if found == expected:
                return record
        if found > expected:
            raise RecordError(f"record of step {self.next_step} was overwritten by that of step {found - 1}: drain the ring of "
                              f"{self._capacity} records more often")  # fmt: skip
        return None  # not there yet, or half written (sequence 0)

    def wait(self, step: int, deliver: Callable[[bytes], None], timeout_s: float = 60.0) -> None:
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
