"""Graphs and streams of other libraries: raw handles, cuda.core, and what stands in for PyTorch where it is not installed."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import kernels
from foxhunt_rt.driver import FoxhuntError, Graph, Stream, capture, counts
from foxhunt_rt.graph import Flag, Runtime, StepGraph
from foxhunt_rt.interop import ForeignGraphError, raw_graph, stream_handle

N = 100


def foreign(runtime: Runtime, x: Any, value: float = 10.0) -> Graph:
    """x += value, and again, captured by somebody else."""
    function = runtime.modules.function("somebody else", "add_scalar")
    packed = kernels.pack("add_scalar", dict(x=x, value=value, n=N))
    with Stream(runtime.context) as stream, runtime.context.current():
        with capture(stream) as recording:
            for _ in range(2):
                function.launch((2,), (64,), packed.params, stream)
    return recording.graph


def composed(runtime: Runtime, built: list[StepGraph], graph: Any, x: Any, **options: Any) -> tuple[StepGraph, Any]:
    """x += 1; x += 20 by the foreign graph; total = sum of x."""
    total = runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("composed")
    with plan.child("ours", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (2,), (64,), dict(x=x, value=1.0, n=N))
    plan.child_from_graph("theirs", graph, reads=[], writes=[x], when=options.pop("when", None))
    with plan.child("total", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (64,), dict(x=x, sum=total, n=N))
    built.append(plan.build(**options))
    return built[-1], total


@pytest.mark.parametrize("form", ["Graph", "CUgraph", "int"])
def test_a_foreign_graph_is_a_child(runtime: Runtime, built: list[StepGraph], form: str) -> None:
    x = runtime.zeros(N, np.float32, "x")
    graph = foreign(runtime, x)
    step, total = composed(runtime, built, {"Graph": graph, "CUgraph": graph.handle, "int": int(graph.handle)}[form], x)
    graph.close()  # ours is a clone
    del graph
    gc.collect()
    before = counts["cuGraphLaunch"]
    step.launch()
    assert counts["cuGraphLaunch"] == before + 1
    assert total.to_numpy()[0] == 21 * N
    found = step.verify(steps=3)
    assert found.bitwise_equal, str(found)
    assert [c["name"] for c in step.info()["children"]] == ["ours", "theirs", "total"]
    assert step.info()["children"][1]["kernel_nodes"] == 2
    assert "a foreign graph" in step.dot()
    planted = step.verify(steps=1, plant="theirs")
    assert (planted.bitwise_equal, planted.child) == (False, "theirs")


def test_it_stands_in_the_ledger_as_foreign(runtime: Runtime, built: list[StepGraph]) -> None:
    x = runtime.zeros(N, np.float32, "x")
    step, _ = composed(runtime, built, foreign(runtime, x), x)
    name = f"{step.plan.name}/theirs"
    assert runtime.ledger.foreign[name] == 2
    assert any(name in line and "foreign" in line for line in runtime.ledger.table().splitlines())
    step.close()
    assert name not in runtime.ledger.foreign


def test_it_may_be_gated_and_looped(runtime: Runtime, built: list[StepGraph]) -> None:
    x, word = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.uint32, "word")
    step, _ = composed(runtime, built, foreign(runtime, x), x, when=Flag(word), steps_per_launch=3)
    step.launch()
    word.copy_from(np.ones(1, np.uint32))
    step.launch(2)
    assert x.to_numpy()[0] == 3 + 2 * 21
    assert step.verify(steps=4).bitwise_equal


def test_the_owner_is_kept_alive(runtime: Runtime, built: list[StepGraph]) -> None:
    class Torch:
        """What PyTorch's CUDAGraph(keep_graph=True) offers."""

        def __init__(self, graph: Graph) -> None:
            self.graph = graph

        def raw_cuda_graph(self) -> int:
            return int(self.graph.handle)

    import weakref

    x = runtime.zeros(N, np.float32, "x")
    owner = Torch(foreign(runtime, x))
    alive = weakref.ref(owner)
    step, total = composed(runtime, built, owner, x)
    del owner
    gc.collect()
    assert alive() is not None
    step.launch()
    assert total.to_numpy()[0] == 21 * N


def test_a_nested_child_graph_is_counted(runtime: Runtime, built: list[StepGraph]) -> None:
    x = runtime.zeros(N, np.float32, "x")
    outer = Graph(runtime.context)
    outer.add_child(foreign(runtime, x), [])
    step, total = composed(runtime, built, outer, x)
    assert runtime.ledger.foreign[f"{step.plan.name}/theirs"] == 2
    step.launch()
    assert total.to_numpy()[0] == 21 * N


def refused(runtime: Runtime, graph: Any) -> str:
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("refused")
    with pytest.raises(ForeignGraphError) as caught:
        plan.child_from_graph("theirs", graph, reads=[], writes=[x])
    assert plan.children == []
    return str(caught.value)


def test_what_no_child_may_hold_is_refused_in_our_own_words(runtime: Runtime) -> None:
    cu = runtime.context.cu
    conditional = Graph(runtime.context)
    with runtime.context.current():
        conditional.add_conditional("IF", conditional.conditional_handle(), [])
    assert refused(runtime, conditional).endswith("holds a conditional node, which no child graph may hold")

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
    host = Graph(runtime.context)
    params = cu.CUDA_HOST_NODE_PARAMS()
    params.fn = cu.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value)
    with runtime.context.current():
        runtime.context.call(cu.cuGraphAddHostNode, host.handle, [], 0, params)
    assert "a host node: Python has no place" in refused(runtime, host)

    nested = Graph(runtime.context)
    nested.add_child(host, [])
    assert "a host node" in refused(runtime, nested)

    assert "the graph is empty" in refused(runtime, Graph(runtime.context))
    assert "object is no graph" in refused(runtime, object())
    assert "the graph handle is null" in refused(runtime, 0)
    executable = Graph(runtime.context).instantiate(runtime.stream)
    assert "this is an executable" in refused(runtime, executable)


@pytest.mark.gpu
def test_allocations_are_refused(runtime: Runtime) -> None:
    cu = runtime.context.cu
    with Stream(runtime.context) as stream:
        with capture(stream) as recording:
            pointer = runtime.context.call(cu.cuMemAllocAsync, 256, stream.handle)
            runtime.context.call(cu.cuMemFreeAsync, pointer, stream.handle)
    assert "an allocation, which no child graph may hold" in refused(runtime, recording.graph)


def test_a_cuda_core_graph_is_a_child(runtime: Runtime, built: list[StepGraph]) -> None:
    core = pytest.importorskip("cuda.core")
    x = runtime.zeros(N, np.float32, "x")
    device = core.Device(runtime.device.ordinal)
    device.set_current()
    builder = device.create_graph_builder().begin_building()
    with runtime.context.current():
        runtime.context.call(runtime.context.cu.cuMemsetD32Async, x.ptr, 0x40000000, N,
                             runtime.context.cu.CUstream(stream_handle(builder.stream)))  # fmt: skip
    builder.end_building()
    if not hasattr(builder, "graph_definition"):
        pytest.skip("this cuda.core keeps its graph to itself")
    step, total = composed(runtime, built, builder, x)
    step.launch()
    step.launch()
    assert total.to_numpy()[0] == 2 * N
    assert step.verify().bitwise_equal


# ---------------------------------------------------------------------- streams


def test_a_launch_in_the_order_of_another_stream(runtime: Runtime, built: list[StepGraph]) -> None:
    """Theirs sets 1, we double by adding, theirs copies: queued without the host waiting."""
    context, cu = runtime.context, runtime.context.cu
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    plan = runtime.plan("between")
    with plan.child("add", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (2,), (64,), dict(x=x, value=1.0, n=N))
    step = plan.build()
    built.append(step)
    theirs = Stream(context)
    runtime.synchronize()
    before = counts["cuStreamSynchronize"]
    with context.current():
        context.call(cu.cuMemsetD32Async, x.ptr, 0x3F800000, N, theirs.handle)
    step.launch(stream=theirs)
    with context.current():
        context.call(cu.cuMemcpyDtoDAsync, y.ptr, x.ptr, x.nbytes, theirs.handle)
    assert counts["cuStreamSynchronize"] == before
    theirs.synchronize()
    assert (y.to_numpy() == 2).all()


def test_what_counts_as_a_stream(runtime: Runtime) -> None:
    class Torch:
        cuda_stream = 77

    class Core:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 78

    class Future:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 1, 79

    assert stream_handle(runtime.stream) == int(runtime.stream.handle)
    assert [stream_handle(s) for s in (Torch(), Core(), 0, 2)] == [77, 78, 0, 2]
    with pytest.raises(FoxhuntError, match="version 1 is not supported"):
        stream_handle(Future())
    for wrong in (True, -1, "stream", None):
        with pytest.raises(FoxhuntError, match="is no stream"):
            stream_handle(wrong)


def test_cuda_core_takes_our_stream(runtime: Runtime) -> None:
    core = pytest.importorskip("cuda.core")
    device = core.Device(runtime.device.ordinal)
    device.set_current()
    theirs = device.create_stream(runtime.stream)
    assert stream_handle(theirs) == int(runtime.stream.handle)
    runtime.stream.wait(device.create_stream())


def test_handles(runtime: Runtime) -> None:
    graph = Graph(runtime.context)
    assert raw_graph(graph) == raw_graph(graph.handle) == raw_graph(int(graph.handle))
