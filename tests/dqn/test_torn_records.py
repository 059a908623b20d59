"""Mapped reads can tear: the device writes a record while the host copies it. The reader looks at the sequence number on both
sides of the copy, and hands over no record that changed in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt.dqn.guard import CLEAR
from foxhunt_rt.dqn.records import RecordError, RecordReader
from foxhunt_rt.graph import Runtime

CAPACITY = 4


class Torn(RecordReader):
    """A reader in the middle of whose copy a writer strikes: before it looks at the sequence number for the second time."""

    def __init__(self, runtime: Runtime, capacity: int) -> None:
        super().__init__(runtime, capacity)
        self._words: Any = _Words(self, self._words)

    def strike(self) -> None:
        """What happens while the record is copied."""


class _Words:
    def __init__(self, reader: Torn, words: Any) -> None:
        self.reader, self.words, self.reads = reader, words, 0

    def __getitem__(self, at: int) -> int:
        self.reads += 1
        if self.reads == 2:
            self.reader.strike()
        return int(self.words[at])


def publish(reader: RecordReader, step: int, loss: float) -> None:
    """As guard/publish.cu does: the payload, then the sequence number, which is the step + 1."""
    row = reader.ring.host[step % CAPACITY : step % CAPACITY + 1]
    row["sequence"] = 0
    row["step"], row["guard_key"] = step, CLEAR
    row["loss"] = loss
    row["sequence"] = step + 1


@pytest.fixture
def reader(runtime: Runtime) -> Torn:
    return Torn(runtime, CAPACITY)


def test_a_whole_record_is_handed_over(reader: Torn) -> None:
    found: list[Any] = []
    publish(reader, 0, 1.5)
    assert reader.poll(found.append) == 1 and reader.poll(found.append) == 0
    assert reader.decode(found)["loss"].tolist() == [1.5]


def test_a_record_that_is_being_written_is_left_for_later(reader: Torn) -> None:
    """The writer has begun the next round in this slot, and has not ended: half of each would be read."""
    found: list[Any] = []
    publish(reader, 0, 1.5)

    def begin_anew() -> None:
        reader.ring.host["sequence"][0] = 0
        reader.ring.host["loss"][0] = -1

    reader.strike = begin_anew  # type: ignore[method-assign]
    assert reader.poll(found.append) == 0
    assert found == [] and reader.next_step == 0


def test_a_record_that_was_overwritten_in_between_is_an_error(reader: Torn) -> None:
    found: list[Any] = []
    publish(reader, 0, 1.5)
    reader.strike = lambda: publish(reader, CAPACITY, 2.5)  # type: ignore[method-assign]
    with pytest.raises(RecordError, match=f"record of step 0 was overwritten by that of step {CAPACITY}"):
        reader.poll(found.append)
    assert found == []
    assert np.isfinite(reader.ring.host["loss"]).all()
