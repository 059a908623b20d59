"""Graph and GraphExec: what a capture gives, how graphs are composed, and what is launched."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foxhunt_rt.driver.calls import counts
from foxhunt_rt.driver.context import Context
from foxhunt_rt.driver.errors import CaptureError, DriverError
from foxhunt_rt.driver.stream import Stream


@dataclass(frozen=True)
class Node:
    """A node of a graph: ``kind`` is kernel, memset, memcpy, graph, empty, host, conditional, event, ...; ``function`` is
    the CUfunction of a kernel node as an int, else 0."""

    handle: Any
    kind: str
    function: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)


def _destroy_graph(context: Context, handle: Any) -> None:
    if context.usable:
        context.cu.cuGraphDestroy(handle)


def _destroy_exec(context: Context, handle: Any, stream: Stream) -> None:
    if context.usable:
        with context.current():
            context.cu.cuStreamSynchronize(stream.handle)  # never destroyed while a launch of it may be in flight
            context.cu.cuGraphExecDestroy(handle)


class Graph:
    """A CUgraph that this object owns."""

    def __init__(self, context: Context, handle: Any | None = None) -> None:
        self.context = context
        self.handle = handle if handle is not None else context.call(context.cu.cuGraphCreate, 0)
        self._finalizer = weakref.finalize(self, _destroy_graph, context, self.handle)

    def add_child(self, child: Graph, after: Sequence[Any]) -> Any:
        """Adds a copy of ``child`` as one node behind the nodes ``after``; returns the node. The driver refuses a child
        that holds conditional, allocation or free nodes."""
        return self.context.call(self.context.cu.cuGraphAddChildGraphNode, self.handle, list(after), len(after),
                                 child.handle)  # fmt: skip

    def nodes(self, handle: Any | None = None) -> list[Node]:
        """The nodes of this graph (or of an embedded child's handle), in the driver's order."""
        cu = self.context.cu
        graph = self.handle if handle is None else handle
        count = int(self.context.call(cu.cuGraphGetNodes, graph, 0)[1])
        if not count:
            return []
        found = []
        for node in self.context.call(cu.cuGraphGetNodes, graph, count)[0][:count]:
            kind = str(self.context.call(cu.cuGraphNodeGetType, node).name)
            kind = kind.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
            if kind == "kernel":
                p = self.context.call(cu.cuGraphKernelNodeGetParams, node)
                found.append(Node(node, kind, int(p.func), (p.gridDimX, p.gridDimY, p.gridDimZ),
                                  (p.blockDimX, p.blockDimY, p.blockDimZ)))  # fmt: skip
            else:
                found.append(Node(node, kind))
        return found

    def edges(self) -> list[tuple[int, int]]:
        """(from, to) of every edge, as node handles."""
        cu = self.context.cu
        count = int(self.context.call(cu.cuGraphGetEdges, self.handle, 0)[-1])
        if not count:
            return []
        sources, targets = self.context.call(cu.cuGraphGetEdges, self.handle, count)[:2]
        return [(int(a), int(b)) for a, b in zip(sources[:count], targets[:count], strict=True)]

    def longest_chain(self) -> int:
        """Number of nodes on the longest dependent path: at small sizes the price of a launch, about 1 us each."""
        nodes = [int(n.handle) for n in self.nodes()]
        depth = dict.fromkeys(nodes, 1)
        after: dict[int, list[int]] = {}
        waiting = dict.fromkeys(nodes, 0)
        for a, b in self.edges():
            after.setdefault(a, []).append(b)
            waiting[b] += 1
        ready = [n for n in nodes if not waiting[n]]
        while ready:
            a = ready.pop()
            for b in after.get(a, ()):
                depth[b] = max(depth[b], depth[a] + 1)
                waiting[b] -= 1
                if not waiting[b]:
                    ready.append(b)
        return max(depth.values(), default=0)

    def instantiate(self, stream: Stream) -> GraphExec:
        """The executable. Does not upload it."""
        with self.context.current():  # kernels and memsets are instantiated for the current context
            handle = self.context.call(self.context.cu.cuGraphInstantiate, self.handle, 0)
        return GraphExec(self.context, handle, stream, self)

    def close(self) -> None:
        self._finalizer()


class GraphExec:
    """An instantiated graph. It keeps its graph alive, and with it whatever the graph layer ties to it."""

    def __init__(self, context: Context, handle: Any, stream: Stream, graph: Graph) -> None:
        self.context, self.handle, self.graph = context, handle, graph
        self._launch = context.cu.cuGraphLaunch
        self._finalizer = weakref.finalize(self, _destroy_exec, context, handle, stream)

    def upload(self, stream: Stream) -> None:
        """Moves the executable to the device, so that the first launch is not special. Does not synchronize."""
        with self.context.current():
            self.context.call(self.context.cu.cuGraphUpload, self.handle, stream.handle)

    def launch(self, stream: Stream) -> None:
        """One cuGraphLaunch. Does not synchronize. The caller makes the context current."""
        counts["cuGraphLaunch"] += 1
        status = self._launch(self.handle, stream.handle)[0]
        if status:
            self.context.raise_for(status, "cuGraphLaunch")

    def close(self) -> None:
        """Destroys the executable after waiting for its stream. Idempotent."""
        self._finalizer()


class Capture:
    """Captures what is queued on a stream. ``graph`` is there once the block has ended."""

    graph: Graph

    def __init__(self, stream: Stream) -> None:
        self.stream = stream


@contextlib.contextmanager
def capture(stream: Stream) -> Iterator[Capture]:
    """Captures a stream for a with block, in thread-local mode.

    The capture ends on every way out, so that neither this stream nor a later capture is poisoned by an exception in the
    middle. Garbage collection is held off: a collected buffer would be freed inside the capture, which is not legal.
    """
    context = stream.context
    cu = context.cu
    result = Capture(stream)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with context.current():
            context.call(cu.cuStreamBeginCapture, stream.handle,
                         cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)  # fmt: skip
            try:
                yield result
            except BaseException:
                handle = cu.cuStreamEndCapture(stream.handle)[1]  # its status is the echo of what went wrong
                if handle is not None and int(handle):
                    cu.cuGraphDestroy(handle)
                raise
            try:
                handle = context.call(cu.cuStreamEndCapture, stream.handle)
            except DriverError as error:
                raise CaptureError(f"the capture was invalidated ({error.name}): something illegal in a capture ran in "
                                   "it, such as a synchronization or an allocation") from error  # fmt: skip
            result.graph = Graph(context, handle)
    finally:
        if collecting:
            gc.enable()


__all__ = ["Capture", "Graph", "GraphExec", "Node", "capture"]
