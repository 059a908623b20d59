"""What is not legal inside a capture, through our own calls and past them, from the capturing thread and from another: a named
error, the capture over, and the next capture as good as any. The same table on hostsim and on a GPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import driver, kernels
from foxhunt_rt.driver import CaptureError, DriverError, Event, IllegalInCapture, Stream, capture, captures, memset
from foxhunt_rt.graph import Runtime, StepGraph, StepPlan
from foxhunt_rt.interop import wrap

N = 64


class Bench:
    """What the illegal calls need, made before any capture."""

    def __init__(self, rt: Runtime) -> None:
        self.rt, self.cu, self.call = rt, rt.context.cu, rt.context.call
        self.x, self.y = rt.zeros(N, np.float32, "x"), rt.zeros(N, np.float32, "y")
        self.add = rt.modules.function("capture errors", "add_scalar")
        self.args = kernels.pack("add_scalar", dict(x=self.x, value=1.0, n=N))
        self.own, self.event = Stream(rt.context), Event(rt.context)
        self.event.record(rt.stream)
        self.step: StepGraph = self.plan().build()
        self.image = kernels.images.find("sum", rt.device.architecture).read()
        self.dropped = [rt.zeros(N, np.float32, "dropped")]
        self.host = np.empty(N, np.float32)

    def plan(self) -> StepPlan:
        plan = self.rt.plan("capture errors")
        with plan.child("a", reads=[], writes=[self.y]) as c:
            c.launch("add_scalar", (1,), (N,), dict(x=self.y, value=1.0, n=N))
        return plan

    def launch(self, stream: Stream, grid: int = 1) -> None:
        self.add.launch((grid,), (N,), self.args.params, stream)

    def throw(self, error: BaseException) -> None:
        raise error

    def add_by_copy(self) -> None:
        driver.copy_device(self.rt.context, self.y, self.x, self.rt.stream)

    def check_next(self, stream: Stream) -> None:
        """Nothing is left of the capture before, and a new one on the same stream records, and replays what it recorded."""
        assert not stream.capturing and not captures.active and gc.isenabled()
        self.x.fill(0)
        self.rt.synchronize()
        with self.rt.context.current(), capture(stream) as recording:
            self.launch(stream)
            memset(self.rt.context, self.y[: N // 2], 7, stream)
        assert [n.kind for n in recording.graph.nodes()] == ["kernel", "memset"]
        executable = recording.graph.instantiate(self.rt.stream)
        with self.rt.context.current():
            executable.launch(self.rt.stream)
        assert self.x.to_numpy().tolist() == [1] * N and self.y.to_numpy()[0] == 7
        executable.close()


@pytest.fixture(scope="module")
def bench(runtime: Runtime) -> Iterator[Bench]:
    made = Bench(runtime)
    yield made
    made.step.close()


Call = Callable[[Bench], Any]

#: Calls of the thread that captures a stream of its own, and what they raise: through our API, and past it.
REFUSED: dict[str, tuple[Call, type[BaseException]]] = {
    "raise": (lambda b: b.throw(ValueError("in the middle")), ValueError),
    "interrupt": (lambda b: b.throw(KeyboardInterrupt()), KeyboardInterrupt),
    "launch with no block": (lambda b: b.launch(b.own, 0), DriverError),
    "empty": (lambda b: b.rt.empty(4, np.float32, "e"), CaptureError),
    "zeros": (lambda b: b.rt.zeros(4, np.float32, "z"), CaptureError),
    "array": (lambda b: b.rt.array(b.host, "a"), CaptureError),
    "mapped": (lambda b: b.rt.mapped(4, np.float32, "m"), CaptureError),
    "wrap": (lambda b: wrap(b.rt, b.host, "w"), CaptureError),
    "export": (lambda b: b.x.__dlpack__(), CaptureError),
    "to_numpy": (lambda b: b.x.to_numpy(), CaptureError),
    "copy_from": (lambda b: b.x.copy_from(b.host), CaptureError),
    "fill": (lambda b: b.x.fill(1), CaptureError),
    "copy_from_device": (lambda b: b.x.copy_from_device(b.y), CaptureError),
    "free": (lambda b: b.x.free(), CaptureError),
    "load a module": (lambda b: driver.Module(b.rt.context, b.image, "m"), CaptureError),
    "load a kernel": (lambda b: b.rt.modules.function("a new user", "sum"), CaptureError),
    "unload a module": (lambda b: b.add.module.unload(), CaptureError),
    "launch on another stream": (lambda b: b.launch(b.rt.stream), CaptureError),
    "memset on another stream": (lambda b: memset(b.rt.context, b.x, 0, b.rt.stream), CaptureError),
    "copy on another stream": (lambda b: b.add_by_copy(), CaptureError),
    "ungraphed launch": (
        lambda b: b.rt.ungraphed("u").launch("add_scalar", (1,), (N,), dict(x=b.x, value=1.0, n=N)), CaptureError),
    "synchronize": (lambda b: b.rt.synchronize(), CaptureError),
    "wait for an event": (lambda b: b.event.synchronize(), CaptureError),
    "ask whether a stream is done": (lambda b: b.rt.stream.done, CaptureError),
    "launch a step": (lambda b: b.step.launch(), CaptureError),
    "launch a step behind the default stream": (lambda b: b.step.launch(stream=0), CaptureError),
    "run a step ungraphed": (lambda b: b.step.run_ungraphed(), CaptureError),
    "run a step child by child": (lambda b: b.step.run_children(), CaptureError),
    "verify": (lambda b: b.step.verify(), CaptureError),
    "profile": (lambda b: b.step.profile(2), CaptureError),
    "build": (lambda b: b.plan().build(), CaptureError),
    "update": (lambda b: b.step.update(b.plan()), CaptureError),
    "begin again": (lambda b: capture(b.own).__enter__(), CaptureError),
    "close the runtime": (lambda b: b.rt.close(), CaptureError),
    "past us: allocate": (lambda b: b.call(b.cu.cuMemAlloc, 16), IllegalInCapture),
    "past us: synchronize the stream": (lambda b: b.call(b.cu.cuStreamSynchronize, b.own.handle), IllegalInCapture),
    "past us: synchronize the context": (lambda b: b.call(b.cu.cuCtxSynchronize), IllegalInCapture),
    "past us: query an event": (lambda b: b.call(b.cu.cuEventQuery, b.event.handle), IllegalInCapture),
    "past us: launch a graph into it": (
        lambda b: b.call(b.cu.cuGraphLaunch, b.step.executable.handle, b.own.handle), IllegalInCapture),
    "past us: instantiate": (lambda b: b.call(b.cu.cuGraphInstantiate, b.step.graphs[0].handle, 0), IllegalInCapture),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_this_thread(bench: Bench, what: str) -> None:
    call, expected = REFUSED[what]

    def attempt() -> None:
        with bench.rt.context.current(), capture(bench.own):
            bench.launch(bench.own)
            call(bench)

    with pytest.raises(expected) as caught:
        attempt()
    if issubclass(expected, CaptureError):  # one line, which ends with the mend
        mend = str(caught.value).rpartition(":")[2]
        assert "\n" not in str(caught.value) and any(word in mend for word in (" before", " after", " end "))
    bench.check_next(bench.own)


@pytest.mark.parametrize("what", [w for w, (_, error) in REFUSED.items() if error is CaptureError])
def test_what_we_refuse_leaves_the_capture_as_it_was(bench: Bench, what: str) -> None:
    """The refusal comes before the driver sees the call: whoever catches it may go on."""
    with bench.rt.context.current(), capture(bench.own) as recording:
        bench.launch(bench.own)
        with pytest.raises(CaptureError):
            REFUSED[what][0](bench)
        bench.launch(bench.own)
    assert [n.kind for n in recording.graph.nodes()] == ["kernel", "kernel"]
    bench.check_next(bench.own)


@pytest.mark.parametrize("what", [w for w, (_, error) in REFUSED.items() if error is IllegalInCapture])
def test_an_invalidated_capture_says_so_even_if_nobody_listened(bench: Bench, what: str) -> None:
    with (
        pytest.raises(CaptureError, match="the capture was invalidated"),
        bench.rt.context.current(),
        capture(bench.own),
    ):
        with pytest.raises(IllegalInCapture):
            REFUSED[what][0](bench)
    bench.check_next(bench.own)


#: What does no harm beside a capture in the same thread: the driver allows it, on a stream that never waits for the default one.
HARMLESS: dict[str, Call] = {
    "past us: load a module": lambda b: b.call(b.cu.cuModuleLoadData, b.image),
    "past us: copy to the host": lambda b: b.call(b.cu.cuMemcpyDtoH, b.host.ctypes.data, b.x.ptr, b.x.nbytes),
    "a destructor": lambda b: b.dropped.clear(),
    "a stream is made": lambda b: Stream(b.rt.context).close(),
    "a plan is recorded": lambda b: b.plan(),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_does_no_harm(bench: Bench, what: str) -> None:
    with bench.rt.context.current(), capture(bench.own) as recording:
        HARMLESS[what](bench)
        bench.launch(bench.own)
    assert [n.kind for n in recording.graph.nodes()] == ["kernel"]
    bench.check_next(bench.own)


def test_what_a_destructor_frees_is_freed_when_the_capture_is_over(bench: Bench) -> None:
    kept = bench.rt.zeros(N, np.float32, "kept for a while")
    with bench.rt.context.current(), capture(bench.own):
        before = driver.counts["cuMemFree"]
        del kept
        assert driver.counts["cuMemFree"] == before
    assert driver.counts["cuMemFree"] == before + 1
    bench.check_next(bench.own)


# ---------------------------------------------------------------------- another thread


def elsewhere(call: Call, bench: Bench) -> BaseException | None:
    """What ``call`` raises in another thread."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            with bench.rt.context.current():
                call(bench)
            found.append(None)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return found[0]


def free_one(bench: Bench) -> None:
    bench.rt.zeros(N, np.float32, "another thread's").free()


#: Calls of another thread while this one captures: on a stream of its own; on the runtime's stream, which those calls would use.
#: The error that thread sees (None: the call works), for each.
OTHER: dict[str, tuple[Call, type[BaseException] | None, type[BaseException] | None]] = {
    "allocate": (lambda b: b.rt.zeros(4, np.float32, "z"), None, CaptureError),
    "allocate and free": (free_one, None, CaptureError),
    "array": (lambda b: b.rt.array(b.host, "a"), None, CaptureError),
    "mapped": (lambda b: b.rt.mapped(4, np.float32, "m"), None, CaptureError),
    "to_numpy": (lambda b: b.x.to_numpy(), None, CaptureError),
    "copy_from": (lambda b: b.x.copy_from(b.host), None, CaptureError),
    "fill": (lambda b: b.y.fill(1), None, CaptureError),
    "load a module": (lambda b: driver.Module(b.rt.context, b.image, "m").unload(), None, None),
    "synchronize": (lambda b: b.rt.synchronize(), None, CaptureError),
    "launch a step": (lambda b: b.step.launch(), None, IllegalInCapture),
    "past us: allocate": (lambda b: b.call(b.cu.cuMemFree, b.call(b.cu.cuMemAlloc, 16)), None, None),
    "past us: fill on the default stream": (lambda b: b.call(b.cu.cuMemsetD32Async, b.y.ptr, 0, 4, 0), None, None),
    "past us: synchronize the context": (lambda b: b.call(b.cu.cuCtxSynchronize), IllegalInCapture, IllegalInCapture),
}


@pytest.mark.parametrize("what", OTHER)
@pytest.mark.parametrize("captured", ["own", "runtime"])
def test_another_thread(bench: Bench, what: str, captured: str) -> None:
    """Whatever it does on other streams works, and the capture does not notice; what touches the captured stream is refused, and
    the capture is whole or says that it is not."""
    call, *errors = OTHER[what]
    expected = errors[captured == "runtime"]
    stream = bench.own if captured == "own" else bench.rt.stream
    invalidated = expected is IllegalInCapture
    error: BaseException | None = None
    try:
        with bench.rt.context.current(), capture(stream) as recording:
            bench.launch(stream)
            error = elsewhere(call, bench)
            if not invalidated:
                bench.launch(stream)
    except CaptureError:
        assert invalidated
    else:
        assert not invalidated and [n.kind for n in recording.graph.nodes()] == ["kernel", "kernel"]
    assert type(error) is (expected or type(None)), repr(error)
    bench.check_next(stream)


def test_two_threads_capture_at_once(bench: Bench) -> None:
    graphs: list[list[str]] = []
    begun = threading.Barrier(2, timeout=60)

    def record() -> None:
        with Stream(bench.rt.context) as stream, bench.rt.context.current():
            with capture(stream) as recording:
                begun.wait()
                for _ in range(3):
                    bench.launch(stream)
                begun.wait()
            graphs.append([n.kind for n in recording.graph.nodes()])

    threads = [threading.Thread(target=record) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert graphs == [["kernel"] * 3] * 2
    bench.check_next(bench.own)


def test_a_launch_into_the_capture_from_another_thread_is_part_of_it(bench: Bench) -> None:
    with bench.rt.context.current(), capture(bench.own) as recording:
        assert elsewhere(lambda b: b.launch(b.own), bench) is None
    assert [n.kind for n in recording.graph.nodes()] == ["kernel"]
    bench.check_next(bench.own)
