"""Graph and GraphExec: what a capture gives, how graphs are composed, and what is launched."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foxhunt_rt.driver import captures, loader
from foxhunt_rt.driver.calls import counts, error_for
from foxhunt_rt.driver.context import Context
from foxhunt_rt.driver.errors import CaptureError, IllegalInCapture
from foxhunt_rt.driver.memory import Buffer, memset_pattern
from foxhunt_rt.driver.module import Function
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
        try:
            with context.current():
                context.cu.cuStreamSynchronize(stream.handle)  # never destroyed while a launch of it may be in flight
        finally:
            context.cu.cuGraphExecDestroy(handle)


class Graph:
    """A CUgraph that this object owns, or with ``owned=False`` one that belongs to a node or to somebody else.

    In a capture: legal. Synchronizes: no. Allocates: yes.
    """

    def __init__(self, context: Context, handle: Any | None = None, *, owned: bool = True) -> None:
        self.context = context
        self.handle = handle if handle is not None else context.call(context.cu.cuGraphCreate, 0)
        self._finalizer: Callable[[], object] = lambda: None
        if owned:
            self._finalizer = context.finalize(self, _destroy_graph, self.handle)

    def clone(self) -> Graph:
        """A copy that this process owns. The driver refuses graphs with conditional, allocation or free nodes.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        return Graph(self.context, self.context.call(self.context.cu.cuGraphClone, self.handle))

    def add_child(self, child: Graph, after: Sequence[Any]) -> Any:
        """Adds a copy of ``child`` as one node behind the nodes ``after``; returns the node. The driver refuses a child
        that holds conditional, allocation or free nodes.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        return self.context.call(self.context.cu.cuGraphAddChildGraphNode, self.handle, list(after), len(after),
                                 child.handle)  # fmt: skip

    def embedded(self, node: Any) -> Graph:
        """The copy that a child-graph node holds; what is set in it holds for executables made from then on."""
        return Graph(self.context, self.context.call(self.context.cu.cuGraphChildGraphNodeGetGraph, node), owned=False)

    def add_kernel(self, function: Function, grid: Sequence[int], block: Sequence[int], params: int,
                   after: Sequence[Any], shared: int = 0) -> Any:  # fmt: skip
        """Adds a kernel node; ``params`` as in `Function.launch`, copied by the driver. Returns the node.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        p = kernel_params(function, grid, block, params, shared)
        with self.context.current():
            return self.context.call(self.context.cu.cuGraphAddKernelNode, self.handle, list(after), len(after), p)

    def set_kernel(self, node: Any, function: Function, grid: Sequence[int], block: Sequence[int], params: int,
                   shared: int = 0) -> None:  # fmt: skip
        """Replaces the parameters of a kernel node, which are as in `Graph.add_kernel`. Executables made before keep theirs.

        In a capture: legal. Synchronizes: no. Allocates: no.
        """
        p = kernel_params(function, grid, block, params, shared)
        with self.context.current():
            self.context.call(self.context.cu.cuGraphKernelNodeSetParams, node, p)

    def add_memset(self, buffer: Buffer, value: int | float, after: Sequence[Any]) -> Any:
        """Adds a node that sets every element of ``buffer`` to ``value`` behind the nodes ``after``; returns the node.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        context, (width, pattern) = self.context, memset_pattern(buffer, value)
        p = context.cu.CUDA_MEMSET_NODE_PARAMS()
        p.dst, p.pitch, p.value, p.elementSize = buffer.ptr, 0, pattern, width
        p.width, p.height = buffer.nbytes // width, 1
        with context.current():
            return context.call(
                context.cu.cuGraphAddMemsetNode, self.handle, list(after), len(after), p, context.handle
            )

    def set_memset(self, node: Any, buffer: Buffer, value: int | float) -> None:
        """Has the memset ``node`` set ``buffer`` to ``value``. Executables made before keep theirs.

        In a capture: legal. Synchronizes: no. Allocates: no.
        """
        context, (width, pattern) = self.context, memset_pattern(buffer, value)
        with context.current():
            p = context.call(context.cu.cuGraphMemsetNodeGetParams, node)
            p.dst, p.value, p.elementSize, p.width = buffer.ptr, pattern, width, buffer.nbytes // width
            context.call(context.cu.cuGraphMemsetNodeSetParams, node, p)

    def add_copy(self, target: Buffer, source: Buffer, after: Sequence[Any]) -> Any:
        """Adds a node that copies ``source`` to ``target``, of its size, behind the nodes ``after``; returns the node.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        context, cu = self.context, self.context.cu
        p = cu.CUDA_MEMCPY3D()
        p.srcMemoryType = p.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        p.srcDevice, p.dstDevice = source.ptr, target.ptr
        p.WidthInBytes, p.Height, p.Depth = target.nbytes, 1, 1
        with context.current():
            return context.call(
                context.cu.cuGraphAddMemcpyNode, self.handle, list(after), len(after), p, context.handle
            )

    def set_copy(self, node: Any, target: Buffer, source: Buffer) -> None:
        """Has the copy ``node`` copy ``source`` to ``target``. Executables made before keep theirs.

        In a capture: legal. Synchronizes: no. Allocates: no.
        """
        context = self.context
        with context.current():
            # Only addresses and size: an executable takes over no other kind of memory (CUDA driver API, cuGraphExecUpdate).
            p = context.call(context.cu.cuGraphMemcpyNodeGetParams, node)
            p.srcDevice, p.dstDevice, p.WidthInBytes = source.ptr, target.ptr, target.nbytes
            context.call(context.cu.cuGraphMemcpyNodeSetParams, node, p)

    def conditional_handle(self) -> Any:
        """A handle for one conditional node of this graph. A kernel must set it in every launch before the node is reached.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        with self.context.current():
            return self.context.call(
                self.context.cu.cuGraphConditionalHandleCreate, self.handle, self.context.handle, 0, 0
            )

    def add_conditional(self, kind: str, handle: Any, after: Sequence[Any]) -> tuple[Any, Graph]:
        """Adds a node of ``kind`` ``"IF"`` or ``"WHILE"`` that goes by ``handle``, behind the nodes ``after``; returns it
        and its body, an empty graph that belongs to the node.

        In a capture: legal. Synchronizes: no. Allocates: yes.
        """
        cu = self.context.cu
        p = cu.CUgraphNodeParams()
        p.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        p.conditional.handle = handle
        p.conditional.type = getattr(cu.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
        p.conditional.size = 1
        p.conditional.ctx = self.context.handle
        with self.context.current():
            node = self.context.call(cu.cuGraphAddNode, self.handle, list(after), None, len(after), p)
        return node, Graph(self.context, p.conditional.phGraph_out[0], owned=False)

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
        if not self.context.features.has("edge_data"):
            return _edges_before_12_3(int(self.handle))
        cu = self.context.cu
        count = int(self.context.call(cu.cuGraphGetEdges, self.handle, 0)[-1])
        if not count:
            return []
        sources, targets = self.context.call(cu.cuGraphGetEdges, self.handle, count)[:2]
        return [(int(a), int(b)) for a, b in zip(sources[:count], targets[:count], strict=True)]

    def in_order(self) -> list[Node]:
        """The nodes in an order that the edges allow; of a graph that was captured from one stream, the order of issue."""
        left = {int(n.handle): n for n in self.nodes()}
        waiting = dict.fromkeys(left, 0)
        after: dict[int, list[int]] = {}
        for a, b in self.edges():
            after.setdefault(a, []).append(b)
            waiting[b] += 1
        ready = [key for key in left if not waiting[key]]
        found = []
        while ready:
            key = ready.pop(0)
            found.append(left[key])
            for b in after.get(key, ()):
                waiting[b] -= 1
                if not waiting[b]:
                    ready.append(b)
        return found

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
        """The executable. Does not upload it. In a capture: refused. Synchronizes: no. Allocates: yes."""
        captures.refuse("instantiating a graph")
        with self.context.current():  # kernels and memsets are instantiated for the current context
            handle = self.context.call(self.context.cu.cuGraphInstantiate, self.handle, 0)
            return GraphExec(self.context, handle, stream, self)

    def close(self) -> None:
        """Destroys the graph where this object owns it. In a capture: legal. Synchronizes: no. Allocates: yes."""
        self._finalizer()


class GraphExec:
    """An instantiated graph. Made by `Graph.instantiate`. It keeps its graph alive, and with it whatever the graph layer
    ties to it.
    """

    def __init__(self, context: Context, handle: Any, stream: Stream, graph: Graph) -> None:
        self.context, self.handle, self.graph = context, handle, graph
        self._launch = context.cu.cuGraphLaunch
        self._finalizer = context.finalize(self, _destroy_exec, handle, stream)

    def set_kernel(self, node: Any, function: Function, grid: Sequence[int], block: Sequence[int], params: int,
                   shared: int = 0) -> None:  # fmt: skip
        """Replaces the parameters, as in `Graph.add_kernel`, of a node of the graph it was made from, nested in a child
        too, for the launches from now on; launches that are queued keep theirs.

        In a capture: legal. Synchronizes: no. Allocates: no.
        """
        p = kernel_params(function, grid, block, params, shared)
        with self.context.current():
            self.context.call(self.context.cu.cuGraphExecKernelNodeSetParams, self.handle, node, p)

    def update(self, graph: Graph) -> tuple[str, int]:
        """Takes over every parameter of a graph of the same shape, for the launches from now on.

        In a capture: refused. Synchronizes: no. Allocates: yes, the executable is changed.

        Returns
        -------
        result : str
            ``"SUCCESS"``, or why the driver refused (``"ERROR_TOPOLOGY_CHANGED"``, ...); then nothing was changed.
        node : int
            Handle of the node it stumbled over, 0 where it names none.
        """
        cu = self.context.cu
        captures.refuse("updating an executable")
        self.context.check_usable()
        with self.context.current():
            counts["cuGraphExecUpdate"] += 1
            status = cu.cuGraphExecUpdate(self.handle, graph.handle)[0]
            if status == cu.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
                result, node = _update_refusal(self.handle, graph.handle)
                name: str = cu.CUgraphExecUpdateResult(result).name
                return name.removeprefix("CU_GRAPH_EXEC_UPDATE_"), node
        self.context.raise_for(status, "cuGraphExecUpdate")
        self.graph = graph
        return "SUCCESS", 0

    def upload(self, stream: Stream) -> None:
        """Moves the executable to the device, so that the first launch is not special.

        In a capture: refused. Synchronizes: no. Allocates: yes, on the device.
        """
        captures.refuse("uploading a graph")
        with self.context.current():
            self.context.call(self.context.cu.cuGraphUpload, self.handle, stream.handle)

    def launch(self, stream: Stream) -> None:
        """One cuGraphLaunch. The caller makes the context current.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        if captures.active:
            captures.refuse("launching a graph")
        counts["cuGraphLaunch"] += 1
        status = self._launch(self.handle, stream.handle)[0]
        if status:
            self.context.raise_for(status, "cuGraphLaunch")

    def close(self) -> None:
        """Destroys the executable after waiting for its stream. Idempotent.

        In a capture: legal, it is destroyed after that. Synchronizes: yes. Allocates: yes.
        """
        self._finalizer()


def _edges_before_12_3(graph: int) -> list[tuple[int, int]]:
    """Asks for edges in the form without edge data, which cuda.bindings no longer have."""
    libcuda, count = loader.libcuda(), ctypes.c_size_t(0)
    status = libcuda.cuGraphGetEdges(ctypes.c_void_p(graph), None, None, ctypes.byref(count))
    if status or not count.value:
        if status:
            raise error_for(status, "cuGraphGetEdges")
        return []
    sources, targets = ((ctypes.c_void_p * count.value)() for _ in range(2))
    status = libcuda.cuGraphGetEdges(ctypes.c_void_p(graph), sources, targets, ctypes.byref(count))
    if status:
        raise error_for(status, "cuGraphGetEdges")
    return [(int(a or 0), int(b or 0)) for a, b in zip(sources, targets, strict=True)]


class _UpdateResult(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = (("result", ctypes.c_int), ("error_node", ctypes.c_void_p), ("error_from_node", ctypes.c_void_p))


def _update_refusal(executable: Any, graph: Any) -> tuple[int, int]:
    """Asks again for the reason of a refused update, past cuda.bindings, which drop it when the status is an error."""
    info = _UpdateResult()
    loader.libcuda().cuGraphExecUpdate_v2(
        ctypes.c_void_p(int(executable)), ctypes.c_void_p(int(graph)), ctypes.byref(info)
    )
    return info.result, info.error_node or 0


def kernel_params(function: Function, grid: Sequence[int], block: Sequence[int], params: int, shared: int) -> Any:
    """CUDA_KERNEL_NODE_PARAMS. The array behind ``params`` must live until the call that takes it."""
    p = function.module.context.cu.CUDA_KERNEL_NODE_PARAMS()
    p.func = function.handle
    p.gridDimX, p.gridDimY, p.gridDimZ = (*grid, 1, 1)[:3]
    p.blockDimX, p.blockDimY, p.blockDimZ = (*block, 1, 1)[:3]
    p.sharedMemBytes = shared
    p.kernelParams = params
    return p


class Capture:
    """Captures what is queued on a stream. ``graph`` is there once the block has ended."""

    graph: Graph

    def __init__(self, stream: Stream) -> None:
        self.stream = stream


_collection = threading.Lock()
_capturing = 0  # captures of all threads
_collected_before = False


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Holds garbage collection off until the last of the captures that overlap, in whatever threads, has ended."""
    global _capturing, _collected_before
    with _collection:
        if not _capturing:
            _collected_before = gc.isenabled()
            gc.disable()
        _capturing += 1
    try:
        yield
    finally:
        with _collection:
            _capturing -= 1
            if not _capturing and _collected_before:
                gc.enable()


@contextlib.contextmanager
def capture(stream: Stream) -> Iterator[Capture]:
    """Captures a stream for a with block, in thread-local mode.

    The capture ends on every way out, so that neither this stream nor a later capture is poisoned by an exception in the
    middle. Garbage collection is held off, and what a destructor would free inside the block it frees after it.

    In a capture: legal, of another stream. Synchronizes: no. Allocates: yes, the graph.

    Raises
    ------
    CaptureError
        The stream is capturing already; what is not legal in a capture was tried in it (`IllegalInCapture` where the driver said
        so), or it was invalidated without anybody being told.
    """
    context = stream.context
    cu = context.cu
    if stream.capturing:
        raise CaptureError("this stream is capturing already: end that capture first")
    result = Capture(stream)
    with _no_collection(), captures.noted(stream):
        with context.current():
            try:
                context.call(cu.cuStreamBeginCapture, stream.handle,
                             cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)  # fmt: skip
                yield result
                try:
                    result.graph = Graph(context, context.call(cu.cuStreamEndCapture, stream.handle))
                except IllegalInCapture as error:
                    raise CaptureError(f"the capture was invalidated ({error.name}): something illegal in a capture ran in "
                                       "it, such as a synchronization or an allocation") from error  # fmt: skip
            except BaseException:
                _abandon(stream)
                raise


def _abandon(stream: Stream) -> None:
    """Ends a capture whose graph nobody wants. Its status, the echo of what went wrong, is not looked at; nor is whether the
    capture had begun, since an interrupt may come just before or just after that."""
    cu = stream.context.cu
    if stream.context._forked:
        return
    handle = cu.cuStreamEndCapture(stream.handle)[1]
    if handle is not None and int(handle):
        cu.cuGraphDestroy(handle)


__all__ = ["Capture", "Graph", "GraphExec", "Node", "capture"]
