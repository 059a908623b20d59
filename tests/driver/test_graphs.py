"""Graphs built by hand: nodes, edges, children, clones, updates, printing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .raw_driver import RawDriver, Status, add_scalar


@pytest.fixture
def add(cu: RawDriver) -> Any:
    return cu.function("basic", "add_scalar")


def run(cu: RawDriver, graph: Any, times: int = 1) -> None:
    s = cu.stream()
    launched = cu.instantiate(graph)
    for _ in range(times):
        cu.cuGraphLaunch(launched, s)
    cu.cuStreamSynchronize(s)


def memset_params(cu: RawDriver, dst: int, value: int, count: int) -> Any:
    p = cu.api.CUDA_MEMSET_NODE_PARAMS()
    p.dst, p.value, p.elementSize, p.width, p.height, p.pitch = dst, value, 4, count, 1, 4 * count
    return p


def test_nodes_run_in_the_order_of_their_edges(cu: RawDriver, add: Any) -> None:
    x = cu.array(np.full(4, 7.0))
    graph = cu.cuGraphCreate(0)
    last = cu.add_kernel(graph, [], add, 1, 32, add_scalar(x, 1.0, 4))
    first = cu.cuGraphAddMemsetNode(graph, [], 0, memset_params(cu, x, 0x40000000, 4), cu.context)
    cu.cuGraphAddDependencies(graph, [first], [last], None, 1)  # against the order of creation
    run(cu, graph, times=2)
    assert cu.read(x, 4).tolist() == [3] * 4


def test_a_cycle_is_refused(cu: RawDriver) -> None:
    graph = cu.cuGraphCreate(0)
    a = cu.cuGraphAddEmptyNode(graph, [], 0)
    b = cu.cuGraphAddEmptyNode(graph, [a], 1)
    assert cu.status("cuGraphAddDependencies", graph, [b], [a], None, 1) == "CUDA_SUCCESS"
    assert cu.status("cuGraphInstantiate", graph, 0) == "INVALID_VALUE"


def test_questions_about_a_graph(cu: RawDriver, add: Any) -> None:
    x = cu.array(np.zeros(4))
    graph = cu.cuGraphCreate(0)
    a = cu.cuGraphAddEmptyNode(graph, [], 0)
    b = cu.add_kernel(graph, [a], add, 2, 64, add_scalar(x, 1.5, 4))
    c = cu.add_kernel(graph, [a, b], add, 3, 96, add_scalar(x, 2.5, 4))
    assert [cu.node_type(n) for n in cu.nodes(graph)] == ["EMPTY", "KERNEL", "KERNEL"]
    assert [int(n) for n in cu.cuGraphGetRootNodes(graph, 1)[0]] == [int(a)]
    from_, to, _, count = cu.cuGraphGetEdges(graph, 3)
    pairs = {(int(f), int(t)) for f, t in zip(from_[:count], to[:count], strict=True)}
    assert pairs == {(int(a), int(b)), (int(a), int(c)), (int(b), int(c))}
    p = cu.cuGraphKernelNodeGetParams(c)
    assert (p.gridDimX, p.blockDimX, int(p.func)) == (3, 96, int(add))
    pointer = ctypes.c_void_p.from_address(int(p.kernelParams)).value
    assert pointer is not None and ctypes.string_at(pointer, 16) == add_scalar(x, 2.5, 4)


def test_a_child_graph_is_copied_in(cu: RawDriver, add: Any) -> None:
    x = cu.array(np.zeros(4))
    child = cu.cuGraphCreate(0)
    one = cu.add_kernel(child, [], add, 1, 32, add_scalar(x, 1.0, 4))
    parent = cu.cuGraphCreate(0)
    first = cu.cuGraphAddChildGraphNode(parent, [], 0, child)
    cu.cuGraphAddChildGraphNode(parent, [first], 1, child)
    cu.add_kernel(child, [one], add, 1, 32, add_scalar(x, 100.0, 4))  # comes too late for the copies
    cu.cuGraphDestroy(child)
    assert cu.node_type(first) == "GRAPH"
    embedded = cu.cuGraphChildGraphNodeGetGraph(first)
    assert [cu.node_type(n) for n in cu.nodes(embedded)] == ["KERNEL"]
    run(cu, parent)
    assert cu.read(x, 4).tolist() == [2] * 4


def test_children_are_ordered_as_wholes(cu: RawDriver, add: Any) -> None:
    x, y = cu.array(np.zeros(1)), cu.array(np.zeros(1))
    write, move = cu.cuGraphCreate(0), cu.cuGraphCreate(0)
    head = cu.cuGraphAddEmptyNode(write, [], 0)
    for value in (1.0, 2.0, 4.0):
        head = cu.add_kernel(write, [head], add, 1, 32, add_scalar(x, value, 1))
    p = cu.api.CUDA_MEMCPY3D()
    p.srcMemoryType = p.dstMemoryType = cu.api.CUmemorytype.CU_MEMORYTYPE_DEVICE
    p.srcDevice, p.dstDevice, p.WidthInBytes, p.Height, p.Depth = x, y, 4, 1, 1
    cu.cuGraphAddMemcpyNode(move, [], 0, p, cu.context)
    parent = cu.cuGraphCreate(0)
    a = cu.cuGraphAddChildGraphNode(parent, [], 0, write)
    cu.cuGraphAddChildGraphNode(parent, [a], 1, move)
    run(cu, parent)
    assert cu.read(y, 1)[0] == 7


def test_parameters_of_a_kernel_inside_a_child_can_be_set_in_the_executable(cu: RawDriver, add: Any) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(4))
    child = cu.cuGraphCreate(0)
    cu.add_kernel(child, [], add, 1, 32, add_scalar(x, 1.0, 4))
    parent = cu.cuGraphCreate(0)
    node = cu.cuGraphAddChildGraphNode(parent, [], 0, child)
    (inner,) = cu.nodes(cu.cuGraphChildGraphNodeGetGraph(node))
    launched = cu.instantiate(parent)
    cu.cuGraphLaunch(launched, s)
    p, alive = cu.kernel_node_params(add, 1, 32, add_scalar(x, 0.5, 2))
    cu.cuGraphExecKernelNodeSetParams(launched, inner, p)
    cu.cuGraphLaunch(launched, s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 4).tolist() == [1.5, 1.5, 1, 1] and alive
    again = cu.instantiate(parent)  # the graph itself is as it was
    cu.cuGraphLaunch(again, s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 4).tolist() == [2.5, 2.5, 2, 2]


def test_a_whole_executable_can_be_updated(cu: RawDriver, add: Any) -> None:
    s = cu.stream()
    x, y = cu.array(np.zeros(2)), cu.array(np.zeros(2))

    def build(p: int, value: float, kernels: int) -> Any:
        graph = cu.cuGraphCreate(0)
        before: list[Any] = []
        for _ in range(kernels):
            before = [cu.add_kernel(graph, before, add, 1, 32, add_scalar(p, value, 2))]
        return graph

    launched = cu.instantiate(build(x, 1.0, 2))
    info = cu.cuGraphExecUpdate(launched, build(y, 3.0, 2))
    assert info.result == cu.api.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_SUCCESS
    cu.cuGraphLaunch(launched, s)
    cu.cuStreamSynchronize(s)
    assert cu.read(x, 2).tolist() == [0, 0] and cu.read(y, 2).tolist() == [6, 6]
    assert cu.status("cuGraphExecUpdate", launched, build(y, 1.0, 3)) == "GRAPH_EXEC_UPDATE_FAILURE"
    cu.cuGraphLaunch(launched, s)  # a refused update changes nothing
    cu.cuStreamSynchronize(s)
    assert cu.read(y, 2).tolist() == [12, 12]


def test_a_clone_stands_alone(cu: RawDriver, add: Any) -> None:
    x = cu.array(np.zeros(2))
    graph = cu.cuGraphCreate(0)
    node = cu.add_kernel(graph, [], add, 1, 32, add_scalar(x, 2.0, 2))
    clone = cu.cuGraphClone(graph)
    twin = cu.cuGraphNodeFindInClone(node, clone)
    assert int(twin) == int(cu.nodes(clone)[0]) != int(node)
    cu.cuGraphDestroy(graph)
    run(cu, clone)
    assert cu.read(x, 2).tolist() == [2, 2]


def test_event_record_nodes_time_what_lies_between(cu: RawDriver, add: Any) -> None:
    s = cu.stream()
    start, end = cu.cuEventCreate(0), cu.cuEventCreate(0)
    x = cu.array(np.zeros(2))
    graph = cu.cuGraphCreate(0)
    node = cu.cuGraphAddEventRecordNode(graph, [], 0, start)
    for _ in range(3):
        node = cu.add_kernel(graph, [node], add, 1, 32, add_scalar(x, 1.0, 2))
    cu.cuGraphAddEventRecordNode(graph, [node], 1, end)
    launched = cu.instantiate(graph)
    for _ in range(2):
        cu.cuGraphLaunch(launched, s)
        cu.cuStreamSynchronize(s)
        assert 0 < cu.cuEventElapsedTime(start, end) < 10_000


def test_host_nodes_run(cu: RawDriver) -> None:
    seen = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append(data))
    graph = cu.cuGraphCreate(0)
    p = cu.api.CUDA_HOST_NODE_PARAMS()
    p.fn = cu.api.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value)
    p.userData = 77
    cu.cuGraphAddHostNode(graph, [], 0, p)
    run(cu, graph, times=2)
    assert seen == [77, 77]


def test_an_empty_graph_can_be_launched(cu: RawDriver) -> None:
    run(cu, cu.cuGraphCreate(0))


def test_a_node_takes_dependencies_of_its_own_graph_only(cu: RawDriver) -> None:
    one, other = cu.cuGraphCreate(0), cu.cuGraphCreate(0)
    node = cu.cuGraphAddEmptyNode(one, [], 0)
    with pytest.raises(Status, match="INVALID_VALUE"):
        cu.cuGraphAddEmptyNode(other, [node], 1)


def test_dot_names_the_kernels(cu: RawDriver, add: Any, tmp_path: Path) -> None:
    x = cu.array(np.zeros(2))
    child, parent = cu.cuGraphCreate(0), cu.cuGraphCreate(0)
    cu.add_kernel(child, [], add, 1, 32, add_scalar(x, 2.0, 2))
    cu.cuGraphAddChildGraphNode(parent, [], 0, child)
    path = tmp_path / "graph.dot"
    cu.cuGraphDebugDotPrint(parent, str(path).encode(), 1)
    text = path.read_text()
    assert text.startswith("digraph dot {") and "add_scalar" in text


def test_a_destroyed_graph_is_refused(cu: RawDriver) -> None:
    graph = cu.cuGraphCreate(0)
    launched = cu.instantiate(graph)
    cu.cuGraphExecDestroy(launched)
    cu.cuGraphDestroy(graph)
    assert cu.status("cuGraphInstantiate", None, 0) == "INVALID_VALUE"
