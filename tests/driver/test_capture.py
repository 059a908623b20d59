"""Stream capture: what may be captured, what invalidates a capture, and that the next capture works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .raw_driver import RawDriver, Status, add_scalar


def capturing(cu: RawDriver, s: Any) -> str:
    return cu.api.CUstreamCaptureStatus(cu.cuStreamIsCapturing(s)).name.removeprefix("CU_STREAM_CAPTURE_STATUS_")


def assert_usable(cu: RawDriver, s: Any) -> None:
    """The stream takes a new capture, and its graph runs."""
    x = cu.array(np.zeros(3))
    with cu.capture(s) as graph:
        cu.launch(cu.function_cache["add_scalar"], 1, 32, add_scalar(x, 1.0, 3), s)
    cu.cuGraphLaunch(cu.instantiate(graph[0]), s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 3).tolist() == [1, 1, 1]


@pytest.fixture(autouse=True)
def loaded(cu: RawDriver) -> None:
    if not hasattr(cu, "function_cache"):
        cu.function_cache = {"add_scalar": cu.function("basic", "add_scalar")}  # type: ignore[attr-defined]
        cu.empty = cu.instantiate(cu.cuGraphCreate(0))  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_a_capture_records_and_does_not_run(cu: RawDriver, mode: str) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(5))
    with cu.capture(s, mode) as graph:
        assert capturing(cu, s) == "ACTIVE"
        cu.launch(cu.function_cache["add_scalar"], 1, 32, add_scalar(x, 2.0, 5), s)
        cu.cuMemsetD32Async(x + 16, 0x3F800000, 1, s)
        cu.cuMemcpyDtoDAsync(x, x + 16, 4, s)
    assert capturing(cu, s) == "NONE"
    assert cu.read(x, 5).tolist() == [0] * 5
    assert [cu.node_type(n) for n in cu.nodes(graph[0])] == ["KERNEL", "MEMSET", "MEMCPY"]
    assert cu.edge_count(graph[0]) == 2
    launched = cu.instantiate(graph[0])
    cu.cuGraphUpload(launched, s)
    cu.cuGraphLaunch(launched, s)
    cu.cuGraphLaunch(launched, s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 5).tolist() == [1, 4, 4, 4, 1]


def test_argument_bytes_are_copied_at_capture(cu: RawDriver) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(3))
    args = add_scalar(x, 4.0, 3)
    with cu.capture(s) as graph:
        cu.launch(cu.function_cache["add_scalar"], 1, 32, args, s)
    del args
    launched = cu.instantiate(graph[0])
    cu.cuGraphDestroy(graph[0])  # the executable stands alone
    cu.cuGraphLaunch(launched, s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 3).tolist() == [4, 4, 4]


ILLEGAL: dict[str, Callable[[RawDriver, Any, int], str]] = {
    "synchronize the stream": lambda cu, s, x: cu.status("cuStreamSynchronize", s),
    "query the stream": lambda cu, s, x: cu.status("cuStreamQuery", s),
    "allocate": lambda cu, s, x: cu.status("cuMemAlloc", 16),
    "synchronize the context": lambda cu, s, x: cu.status("cuCtxSynchronize"),
    "synchronize the legacy stream": lambda cu, s, x: cu.status("cuStreamSynchronize", 0),
    "query an event": lambda cu, s, x: cu.status("cuEventQuery", cu.cuEventCreate(0)),
    "instantiate": lambda cu, s, x: cu.status("cuGraphInstantiate", cu.cuGraphCreate(0), 0),
    "upload into it": lambda cu, s, x: cu.status("cuGraphUpload", cu.empty, s),
    "launch a graph into it": lambda cu, s, x: cu.status("cuGraphLaunch", cu.empty, s),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_call_invalidates_the_capture_and_the_next_works(cu: RawDriver, what: str) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(4))
    cu.begin(s, "GLOBAL")
    assert ILLEGAL[what](cu, s, x) == "STREAM_CAPTURE_UNSUPPORTED"
    assert capturing(cu, s) == "INVALIDATED"
    assert cu.status("cuMemsetD32Async", x, 0, 1, s) == "STREAM_CAPTURE_INVALIDATED"
    assert cu.status("cuStreamEndCapture", s) == "STREAM_CAPTURE_INVALIDATED"
    assert capturing(cu, s) == "NONE"
    assert_usable(cu, s)


def test_a_launch_that_fails_invalidates_the_capture(cu: RawDriver) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(4))
    cu.begin(s)
    with pytest.raises(Status, match="INVALID_VALUE"):
        cu.launch(cu.function_cache["add_scalar"], 0, 32, add_scalar(x, 1.0, 4), s)
    assert cu.status("cuStreamEndCapture", s) == "STREAM_CAPTURE_INVALIDATED"
    assert_usable(cu, s)


def test_no_mode_allows_to_wait_for_the_context(cu: RawDriver) -> None:
    s = cu.stream()
    cu.begin(s, "RELAXED")
    assert cu.status("cuCtxSynchronize") == "STREAM_CAPTURE_UNSUPPORTED"
    assert cu.status("cuStreamEndCapture", s) == "STREAM_CAPTURE_INVALIDATED"


def test_a_module_can_be_loaded_and_memory_copied_beside_a_capture(cu: RawDriver) -> None:
    s = cu.stream()
    x = cu.array([1.0])
    host = np.zeros(1, np.float32)
    cu.begin(s)
    cu.module("basic")
    cu.cuMemcpyDtoH(host.ctypes.data, x, 4)  # on the legacy stream, which does not wait for a non-blocking one
    assert host[0] == 1 and cu.nodes(cu.cuStreamEndCapture(s)) == []


@pytest.mark.parametrize("call", ["cuMemcpyDtoD", "cuMemsetD32"])
def test_a_synchronous_copy_would_wait_for_a_blocking_stream(cu: RawDriver, call: str) -> None:
    s = cu.cuStreamCreate(0)
    x = cu.array([1.0, 2.0])
    cu.begin(s)
    arguments = (x, x + 4, 4) if call == "cuMemcpyDtoD" else (x, 0, 1)
    assert cu.status(call, *arguments) == "STREAM_CAPTURE_IMPLICIT"
    assert cu.status("cuStreamEndCapture", s) == "STREAM_CAPTURE_INVALIDATED"


def test_relaxed_mode_allows_an_allocation(cu: RawDriver) -> None:
    s = cu.stream()
    cu.begin(s, "RELAXED")
    assert cu.status("cuMemAlloc", 16) == "CUDA_SUCCESS"
    assert capturing(cu, s) == "ACTIVE"
    cu.cuStreamEndCapture(s)


def test_the_mode_of_the_thread_can_be_exchanged(cu: RawDriver) -> None:
    s = cu.stream()
    cu.begin(s, "GLOBAL")
    before = cu.cuThreadExchangeStreamCaptureMode(cu.mode("RELAXED"))
    assert cu.status("cuMemAlloc", 16) == "CUDA_SUCCESS"
    assert cu.api.CUstreamCaptureMode(before) == cu.mode("GLOBAL")
    cu.cuThreadExchangeStreamCaptureMode(cu.mode("GLOBAL"))
    cu.cuStreamEndCapture(s)


@pytest.mark.parametrize(
    ("mode", "expected"), [("GLOBAL", "STREAM_CAPTURE_UNSUPPORTED"), ("THREAD_LOCAL", "CUDA_SUCCESS")]
)
def test_only_a_global_capture_forbids_calls_of_other_threads(cu: RawDriver, mode: str, expected: str) -> None:
    s = cu.stream()
    cu.begin(s, mode)
    found = []

    def other() -> None:
        cu.cuCtxSetCurrent(cu.context)
        found.append(cu.status("cuMemAlloc", 16))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [expected]
    cu.status("cuStreamEndCapture", s)
    assert_usable(cu, s)


def test_a_capture_ends_on_its_own_thread(cu: RawDriver) -> None:
    s = cu.stream()
    cu.begin(s, "THREAD_LOCAL")
    found = []

    def other() -> None:
        cu.cuCtxSetCurrent(cu.context)
        found.append(cu.status("cuStreamEndCapture", s))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == ["STREAM_CAPTURE_WRONG_THREAD"]
    cu.status("cuStreamEndCapture", s)
    assert_usable(cu, s)


def test_the_legacy_stream_cannot_be_captured(cu: RawDriver) -> None:
    assert cu.status("cuStreamBeginCapture", 0, cu.mode("GLOBAL")) == "STREAM_CAPTURE_UNSUPPORTED"


def test_the_legacy_stream_would_wait_for_a_blocking_stream(cu: RawDriver) -> None:
    s = cu.cuStreamCreate(0)
    x = cu.array(np.zeros(1))
    cu.begin(s)
    assert cu.status("cuMemsetD32Async", x, 0, 1, 0) == "STREAM_CAPTURE_IMPLICIT"
    assert cu.status("cuStreamEndCapture", s) == "STREAM_CAPTURE_INVALIDATED"
    assert_usable(cu, s)


def test_the_legacy_stream_does_not_wait_for_a_non_blocking_stream(cu: RawDriver) -> None:
    s = cu.stream()
    x = cu.array([9.0])
    cu.begin(s)
    cu.cuMemsetD32Async(x, 0, 1, 0)  # escapes the capture: runs now
    graph = cu.cuStreamEndCapture(s)
    assert cu.read(x, 1)[0] == 0 and cu.nodes(graph) == []


def test_beginning_twice_and_ending_without_beginning(cu: RawDriver) -> None:
    s = cu.stream()
    assert cu.status("cuStreamEndCapture", s) == "ILLEGAL_STATE"
    cu.begin(s)
    assert cu.status("cuStreamBeginCapture", s, cu.mode("THREAD_LOCAL")) == "ILLEGAL_STATE"
    cu.status("cuStreamEndCapture", s)
    assert_usable(cu, s)


def test_an_event_carries_a_capture_to_another_stream_and_back(cu: RawDriver) -> None:
    a, b = cu.stream(), cu.stream()
    fork, join = cu.cuEventCreate(0), cu.cuEventCreate(0)
    x, y = cu.array(np.zeros(2)), cu.array(np.zeros(2))
    add = cu.function_cache["add_scalar"]
    with cu.capture(a) as graph:
        cu.launch(add, 1, 32, add_scalar(x, 1.0, 2), a)
        cu.cuEventRecord(fork, a)
        cu.cuStreamWaitEvent(b, fork, 0)
        assert capturing(cu, b) == "ACTIVE"
        cu.cuMemcpyDtoDAsync(y, x, 8, b)
        cu.launch(add, 1, 32, add_scalar(y, 10.0, 2), b)
        cu.cuEventRecord(join, b)
        cu.cuStreamWaitEvent(a, join, 0)
        cu.launch(add, 1, 32, add_scalar(x, 1.0, 2), a)
    assert capturing(cu, b) == "NONE"
    assert len(cu.nodes(graph[0])) == 4 and cu.edge_count(graph[0]) == 4
    cu.cuGraphLaunch(cu.instantiate(graph[0]), a)
    cu.cuStreamSynchronize(a)
    assert cu.read(x, 2).tolist() == [2, 2] and cu.read(y, 2).tolist() == [11, 11]


def test_a_stream_that_is_not_joined(cu: RawDriver) -> None:
    a, b = cu.stream(), cu.stream()
    event = cu.cuEventCreate(0)
    x = cu.array(np.zeros(2))
    cu.begin(a)
    cu.cuEventRecord(event, a)
    cu.cuStreamWaitEvent(b, event, 0)
    cu.cuMemsetD32Async(x, 0, 1, b)
    assert cu.status("cuStreamEndCapture", a) == "STREAM_CAPTURE_UNJOINED"
    assert capturing(cu, b) == "NONE"
    assert_usable(cu, a)
    assert_usable(cu, b)


def test_a_capture_ends_on_the_stream_it_began_on(cu: RawDriver) -> None:
    a, b = cu.stream(), cu.stream()
    event = cu.cuEventCreate(0)
    cu.begin(a)
    cu.cuEventRecord(event, a)
    cu.cuStreamWaitEvent(b, event, 0)
    assert cu.status("cuStreamEndCapture", b) == "STREAM_CAPTURE_UNMATCHED"
    cu.status("cuStreamEndCapture", a)
    assert_usable(cu, a)


def test_captures_do_not_merge(cu: RawDriver) -> None:
    a, b = cu.stream(), cu.stream()
    event = cu.cuEventCreate(0)
    cu.begin(a)
    cu.begin(b)
    cu.cuEventRecord(event, a)
    assert cu.status("cuStreamWaitEvent", b, event, 0) == "STREAM_CAPTURE_MERGE"
    cu.status("cuStreamEndCapture", a)
    cu.status("cuStreamEndCapture", b)
    assert_usable(cu, a)


def test_a_capture_cannot_wait_for_work_outside(cu: RawDriver) -> None:
    a, b = cu.stream(), cu.stream()
    event = cu.cuEventCreate(0)
    cu.cuEventRecord(event, b)
    cu.begin(a)
    assert cu.status("cuStreamWaitEvent", a, event, 0) == "STREAM_CAPTURE_ISOLATION"
    assert cu.status("cuStreamEndCapture", a) == "STREAM_CAPTURE_INVALIDATED"
    assert_usable(cu, a)


def test_an_event_recorded_in_a_capture_cannot_be_waited_for_on_the_host(cu: RawDriver) -> None:
    s = cu.stream()
    event = cu.cuEventCreate(0)
    cu.begin(s)
    cu.cuEventRecord(event, s)
    assert cu.status("cuEventSynchronize", event) == "CAPTURED_EVENT"
    cu.status("cuStreamEndCapture", s)
    assert_usable(cu, s)


def test_capture_info_and_dependencies(cu: RawDriver) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(4))
    cu.begin(s)
    cu.cuMemsetD32Async(x, 1, 1, s)
    status, number, graph, before, *_ = cu.cuStreamGetCaptureInfo(s)
    assert status == cu.api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE and int(number) > 0
    (first,) = cu.nodes(graph)
    assert [int(n) for n in before] == [int(first)]
    added = cu.cuGraphAddEmptyNode(graph, [first], 1)
    cu.cuStreamUpdateCaptureDependencies(
        s, [added], None, 1, cu.api.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES.value
    )
    cu.cuMemsetD32Async(x, 2, 1, s)
    done = cu.cuStreamEndCapture(s)
    first, middle, last = cu.nodes(done)
    (before, *_) = cu.cuGraphNodeGetDependencies(last, 1)
    assert int(before[0]) == int(middle) == int(added)


def test_a_capture_into_a_graph(cu: RawDriver) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(4))
    graph = cu.cuGraphCreate(0)
    root = cu.cuGraphAddEmptyNode(graph, [], 0)
    cu.began.append(s)
    cu.cuStreamBeginCaptureToGraph(s, graph, [root], None, 1, cu.mode("THREAD_LOCAL"))
    cu.launch(cu.function_cache["add_scalar"], 1, 32, add_scalar(x, 3.0, 4), s)
    assert int(cu.cuStreamEndCapture(s)) == int(graph)
    assert len(cu.nodes(graph)) == 2 and cu.edge_count(graph) == 1
    cu.cuGraphLaunch(cu.instantiate(graph), s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 4).tolist() == [3] * 4


def test_recording_an_external_event_adds_a_node(cu: RawDriver) -> None:
    s = cu.stream()
    event = cu.cuEventCreate(0)
    with cu.capture(s) as graph:
        cu.cuEventRecordWithFlags(event, s, cu.api.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL.value)
    (node,) = cu.nodes(graph[0])
    assert cu.node_type(node) == "EVENT_RECORD"
