"""Captures that overlap in two threads: garbage collection is held off until the last of them has ended."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from foxhunt_rt import driver
from foxhunt_rt.driver import Stream, capture
from foxhunt_rt.graph import Runtime


def test_collection_is_off_until_the_last_capture_ends(runtime: Runtime) -> None:
    assert gc.isenabled()
    began, end = threading.Event(), threading.Event()
    seen: list[bool] = []

    def other() -> None:
        with Stream(runtime.context) as stream, capture(stream):
            began.set()
            assert end.wait(10)
            seen.append(gc.isenabled())  # the first capture has ended by now

    thread = threading.Thread(target=other)
    with Stream(runtime.context) as stream, capture(stream):
        thread.start()
        assert began.wait(10)
        seen.append(gc.isenabled())
    end.set()
    thread.join()
    assert seen == [False, False] and gc.isenabled()


@pytest.mark.hostsim
def test_a_runtime_closed_during_the_capture_of_another_thread_frees_all(runtime: Runtime) -> None:
    sim = driver.hostsim()
    assert sim is not None

    def alive() -> list[int]:
        return [
            sim.fxHostsimCounter(f"live.{kind}".encode())
            for kind in ("allocations", "streams", "modules", "graph_execs")
        ]

    with Stream(runtime.context) as stream:
        before = alive()
        began, end = threading.Event(), threading.Event()

        def other() -> None:
            with capture(stream):
                began.set()
                assert end.wait(10)

        thread = threading.Thread(target=other)
        thread.start()
        assert began.wait(10)
        with Runtime() as second:
            x = second.zeros(64, np.float32, "x")
            plan = second.plan()
            with plan.child("clear", [], [x]) as child:
                child.memset(x, 0)
            plan.build(ungraphed=False).launch()
        end.set()
        thread.join()
        assert alive() == before


def test_it_stays_off_where_the_user_turned_it_off(runtime: Runtime) -> None:
    gc.disable()
    try:
        x = runtime.zeros(3, np.float32, "x")
        plan = runtime.plan()
        with plan.child("clear", [], [x]) as child:
            child.memset(x, 0)
        plan.build(ungraphed=False)
        assert not gc.isenabled()
    finally:
        gc.enable()
