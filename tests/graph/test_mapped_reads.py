"""Known failure K7: the host read mapped statistics before the kernel had written them.

On hardware such a read is usually lucky. hostsim's deferred mode runs queued work as late as it may, so the unlucky read happens
every time, and each proper way of reading is shown to be one.
"""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.driver import Event

N = 64


@pytest.fixture
def queued(runtime):
    """Mapped memory that a queued kernel is about to set to 1, and an event behind that kernel."""
    runtime.synchronize()
    mapped, done = runtime.mapped(N, np.float32, "statistics"), Event(runtime.context)
    runtime.ungraphed("mapped reads").launch("add_scalar", (1,), (N,), {"x": mapped, "value": 1.0, "n": N})
    done.record(runtime.stream)
    return mapped, done


@pytest.mark.hostsim
def test_a_read_without_waiting_sees_the_old_value(runtime, queued):
    mapped, _ = queued
    assert mapped.host.tolist() == [0.0] * N
    runtime.synchronize()
    assert mapped.host.tolist() == [1.0] * N


def test_a_read_after_an_event_sees_the_new_value(queued):
    mapped, done = queued
    assert mapped.read(after=done).tolist() == [1.0] * N


def test_a_copy_waits_for_the_stream(queued):
    assert queued[0].to_numpy().tolist() == [1.0] * N


def test_polling_lets_queued_work_move_on(queued):
    mapped, _ = queued
    for _ in range(10_000_000):
        if mapped.poll()[0] == 1.0:
            break
    assert mapped.host.tolist() == [1.0] * N
