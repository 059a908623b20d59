"""What the device charges for each kind of work: the floors under every step, measured on the user's own device.

A row of a graph is the median over replays by events, divided by its nodes; a row of the host is by the host's clock. The figures
of an H200 that stand beside them are from one machine (driver 580.159, CUDA 13.0), measured by another program.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foxhunt_rt import kernels
from foxhunt_rt.driver import Buffer, DriverError, Event, Function, Graph, GraphExec, Stream, capture, memset
from foxhunt_rt.graph.runtime import Runtime

REPLAYS, CHAIN = 15, 60
ONE: tuple[int, ...] = (1,)
WARP = (32,)


@dataclass(frozen=True)
class Floor:
    """One row: microseconds, median with 10th and 90th percentile; None where this driver does not offer it, and then why."""

    what: str
    us: float | None
    low: float | None
    high: float | None
    h200: str
    note: str = ""


def text(device: str, floors: Sequence[Floor]) -> str:
    """The table."""
    lines = [f"{'on ' + device:<74} {'us':>8} {'p10':>8} {'p90':>8}  H200"]
    for f in floors:
        numbers = " ".join("       -" if v is None else f"{v:8.2f}" for v in (f.us, f.low, f.high))
        lines.append(f"{f.what:<74} {numbers}  {f.h200}{'  ' + f.note if f.note else ''}")
    return "\n".join(lines)


def to_dict(device: str, floors: Sequence[Floor]) -> dict[str, Any]:
    """JSON-ready."""
    return {"device": device, "floors": [dataclasses.asdict(f) for f in floors]}


Issue = Callable[[Stream], object]


class FloorProbe:
    """Buffers, functions and graphs of the measurement."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.context, self.stream = runtime, runtime.context, runtime.stream
        self.begin, self.end = Event(self.context), Event(self.context)
        self.x, self.y = runtime.zeros(4096, np.float32, "floor.x"), runtime.zeros(4096, np.float32, "floor.y")
        self.counter = runtime.zeros(1, np.int32, "floor.counter")
        self.mapped = runtime.mapped(64, np.float32, "floor.mapped")
        self.empty = kernels.pack("empty", dict(unused=0))

    def function(self, name: str) -> Function:
        """A function of this probe's own modules."""
        return self.runtime.modules.function("floors", name)

    def captured(self, issue: Issue) -> Graph:
        """What a function queues, as a graph."""
        with Stream(self.context) as stream:
            with capture(stream) as recording:
                issue(stream)
        return recording.graph

    def chain(self, count: int) -> Issue:
        """So many dependent launches of an empty kernel."""
        function = self.function("empty")

        def issue(stream: Stream) -> None:
            for _ in range(count):
                function.launch(ONE, WARP, self.empty.params, stream)

        return issue

    def replay(self, graph: Graph, before: Callable[[], object] = lambda: None) -> list[float]:
        """Microseconds of each replay by events."""
        executable: GraphExec = graph.instantiate(self.stream)
        executable.upload(self.stream)
        samples = []
        for n in range(REPLAYS + 2):
            before()
            self.begin.record(self.stream)
            executable.launch(self.stream)
            self.end.record(self.stream)
            self.stream.synchronize()
            if n >= 2:
                samples.append(self.end.elapsed_ms(self.begin) * 1e3)
        executable.close()
        graph.close()
        return samples

    def close(self) -> None:
        for buffer in (self.x, self.y, self.counter, self.mapped):
            buffer.free()
        self.runtime.modules.drop("floors")


def _row(what: str, samples: Sequence[float], h200: str, note: str = "") -> Floor:
    low, median, high = (float(np.percentile(samples, q)) for q in (10, 50, 90))
    return Floor(what, median, low, high, h200, note)


def _each(samples: Sequence[float], base: Sequence[float], count: int) -> list[float]:
    """The increase over a baseline, a piece of so many."""
    return [(s - float(np.median(base))) / count for s in samples]


def measure_floors(runtime: Runtime) -> list[Floor]:
    """Every row. Allocates, loads, captures and synchronizes; not legal inside a capture."""
    probe = FloorProbe(runtime)
    try:
        with runtime.context.current():
            short = probe.replay(probe.captured(probe.chain(CHAIN)))
            long = probe.replay(probe.captured(probe.chain(4 * CHAIN)))
            said = f"{CHAIN} nodes: {np.median(short):.1f}; {4 * CHAIN}: {np.median(long):.1f}"
            rows = _host(probe)
            rows.append(_row("one dependent kernel node inside a graph", _each(long, short, 3 * CHAIN), "1.0", said))
            rows += [*_children(probe), *_plain_nodes(probe), _programmatic(probe)]
            rows += [*_mapped(probe), *_products(probe), *_conditionals(probe)]
    finally:
        runtime.synchronize()
        probe.close()
    return rows


def _host(probe: FloorProbe) -> list[Floor]:
    executable = probe.captured(probe.chain(1)).instantiate(probe.stream)
    function, clock = probe.function("empty"), time.perf_counter
    launches: list[float] = []
    ungraphed: list[float] = []
    queued: list[float] = []
    waited: list[float] = []
    for _ in range(REPLAYS):
        probe.stream.synchronize()
        for _ in range(20):
            started = clock()
            executable.launch(probe.stream)
            launches.append((clock() - started) * 1e6)
        probe.stream.synchronize()
        started = clock()
        for _ in range(65):
            function.launch(ONE, WARP, probe.empty.params, probe.stream)
        probe.stream.synchronize()
        ungraphed.append((clock() - started) / 65 * 1e6)
        for wait, samples in ((False, queued), (True, waited)):
            started = clock()
            for _ in range(20):
                executable.launch(probe.stream)
                if wait:
                    probe.stream.synchronize()
            probe.stream.synchronize()
            samples.append((clock() - started) / 20 * 1e6)
    executable.close()
    return [_row("cuGraphLaunch from Python, host side", launches, "3.0"),
            _row("one ungraphed launch from Python, of 65 in a row", ungraphed, "5.3"),
            _row("waiting for each launch before the next one, added", _each(waited, queued, 1), "7")]  # fmt: skip


def _children(probe: FloorProbe) -> list[Floor]:
    flat = probe.replay(probe.captured(probe.chain(130)))
    parent, before, children = Graph(probe.context), list[Any](), [probe.captured(probe.chain(10)) for _ in range(13)]
    for child in children:
        before = [parent.add_child(child, before)]
    nested = probe.replay(parent)
    for child in children:
        child.close()
    return [_row("the same through 13 child graphs of 10 instead of 130 flat", [s / 130 for s in nested], "1.0",
                 f"13 x 10: {np.median(nested):.1f}; flat 130: {np.median(flat):.1f}")]  # fmt: skip


def _plain_nodes(probe: FloorProbe) -> list[Floor]:
    context = probe.context

    def memsets(stream: Stream) -> None:
        for _ in range(CHAIN):
            memset(context, probe.x, 0, stream)

    def copies(stream: Stream) -> None:
        for _ in range(CHAIN):
            context.call(context.cu.cuMemcpyDtoDAsync, probe.y.ptr, probe.x.ptr, probe.x.nbytes, stream.handle)

    return [_row(f"{name} node (16 KB)", [s / CHAIN for s in probe.replay(probe.captured(issue))], "0.95")
            for name, issue in (("memset", memsets), ("device-to-device copy", copies))]  # fmt: skip


def _programmatic(probe: FloorProbe) -> Floor:
    what, h200 = "programmatic dependent launch between nodes", "0.78"
    cu, function = probe.context.cu, probe.function("empty")

    def issue(stream: Stream) -> None:
        for _ in range(CHAIN):
            config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
            config.blockDimX, config.hStream = WARP[0], stream.handle
            config.attrs, config.numAttrs = [attribute], 1
            probe.context.call(cu.cuLaunchKernelEx, config, function.handle, probe.empty.params, 0)

    try:
        return _row(what, [s / CHAIN for s in probe.replay(probe.captured(issue))], h200)
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_SUPPORTED":
            raise
        return Floor(what, None, None, None, h200, "not supported by this driver")


def _mapped(probe: FloorProbe) -> list[Floor]:
    """15 kernels that each read one word: `sum` of one element, all blocks writing the same result."""

    def chain(source: Buffer, target: Buffer, blocks: int) -> list[float]:
        packed = kernels.pack("sum", dict(x=source, sum=target, n=1))
        function = probe.function("sum")

        def issue(stream: Stream) -> None:
            for _ in range(15):
                function.launch((blocks,), WARP, packed.params, stream)

        return probe.replay(probe.captured(issue))

    word, result, mapped, out = probe.x[:1], probe.y[:1], probe.mapped[:1], probe.mapped[32:33]
    return [_row("15 kernels that each read one word of device memory, 1 block", chain(word, result, 1), "16.5"),
            *(_row(f"the same of mapped memory, {n} block{'s' * (n > 1)}", chain(mapped, result, n), h200)
              for n, h200 in ((1, "31"), (4, "80"), (132, "259 to 2,077"))),
            _row("15 kernels that each write one word of mapped memory, 1 block", chain(word, out, 1), "16.5")]  # fmt: skip


def _products(probe: FloorProbe) -> list[Floor]:
    """Small kernels that work: a chain in which each reads the same factors, as dependent as an empty one."""
    rows, function = [], probe.function("naive_product")
    for inner, cols, h200 in ((64, 64, "3.0"), (64, 765, "3.7")):
        x, w = (probe.runtime.zeros(n, np.float32, "floor.factor") for n in (64 * inner, inner * cols))
        y = probe.runtime.zeros(64 * cols, np.float32, "floor.product")
        packed = kernels.pack("naive_product", dict(x=x, w=w, y=y, rows=64, inner=inner, cols=cols))

        def issue(stream: Stream, packed: kernels.PackedArgs = packed, blocks: int = -(-64 * cols // 256)) -> None:
            for _ in range(CHAIN):
                function.launch((blocks,), (256,), packed.params, stream)

        samples = [s / CHAIN for s in probe.replay(probe.captured(issue))]
        rows.append(_row(f"a real small kernel in the chain: a naive 64 x {inner} x {cols} product", samples, h200))
        for buffer in (x, w, y):
            buffer.free()
    return rows


def _conditionals(probe: FloorProbe) -> list[Floor]:
    # on hostsim a node costs what waking its workers costs: up to a millisecond on a busy machine, 60 nodes an iteration
    iterations = 100 if probe.runtime.driver_kind == "cuda" else 5

    def loop() -> list[float]:
        graph = Graph(probe.context)
        handle = graph.conditional_handle()
        first = _set(probe, graph, handle, 1, [])
        _, body = graph.add_conditional("WHILE", handle, [first])
        inner = probe.captured(probe.chain(CHAIN - 1))
        last = body.add_child(inner, [])
        packed = kernels.pack("countdown", dict(counter=probe.counter, handle=int(handle)))
        body.add_kernel(probe.function("countdown"), ONE, ONE, packed.params, [last])
        found = probe.replay(graph, lambda: probe.counter.fill(iterations))
        inner.close()
        return found

    def chain(nodes: int, value: int, branch: bool) -> list[float]:
        graph, after = Graph(probe.context), list[Any]()
        for _ in range(nodes):
            handle = graph.conditional_handle() if branch else None
            if handle is None:
                after = [graph.add_kernel(probe.function("empty"), ONE, ONE, probe.empty.params, after)]
                continue
            after = [_set(probe, graph, handle, value, after)]
            node, body = graph.add_conditional("IF", handle, after)
            body.add_kernel(probe.function("empty"), ONE, WARP, probe.empty.params, [])
            after = [node]
        return probe.replay(graph)

    nodes = 10
    base, idle, taken = chain(nodes, 0, False), chain(nodes, 0, True), chain(nodes, 1, True)
    return [_row(f"WHILE node around a body of {CHAIN} nodes, an iteration", [s / iterations for s in loop()], "62.0"),
            _row("a not-taken IF node, added to the kernel that sets it", _each(idle, base, nodes), "3 to 5"),
            _row("a taken IF node with one empty kernel, added likewise", _each(taken, base, nodes), "")]  # fmt: skip


def _set(probe: FloorProbe, graph: Graph, handle: Any, value: int, after: Sequence[Any]) -> Any:
    packed = kernels.pack("set_condition", dict(handle=int(handle), value=value))
    return graph.add_kernel(probe.function("set_condition"), ONE, ONE, packed.params, after)


__all__ = ["Floor", "measure_floors", "text", "to_dict"]
