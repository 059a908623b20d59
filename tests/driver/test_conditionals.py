"""Conditional nodes: IF and WHILE, set from kernels, nested, and where the driver refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .raw_driver import RawDriver, add_scalar, countdown, set_condition


class Kernels:
    def __init__(self, cu: RawDriver) -> None:
        self.add = cu.function("basic", "add_scalar")
        module = cu.module("conformance")
        self.countdown = cu.cuModuleGetFunction(module, b"countdown")
        self.set = cu.cuModuleGetFunction(module, b"set_condition")


@pytest.fixture
def k(cu: RawDriver) -> Kernels:
    return Kernels(cu)


def launch(cu: RawDriver, launched: Any) -> None:
    s = cu.stream()
    cu.cuGraphLaunch(launched, s)
    cu.cuStreamSynchronize(s)


@pytest.mark.parametrize("value", [0, 1, 5])
def test_if_follows_a_kernel(cu: RawDriver, k: Kernels, value: int) -> None:
    x = cu.array(np.zeros(2))
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 0, 0)
    setter = cu.add_kernel(graph, [], k.set, 1, 1, set_condition(handle, value))
    node, body = cu.conditional(graph, [setter], "IF", handle)
    cu.add_kernel(body, [], k.add, 1, 32, add_scalar(x, 1.0, 2))
    cu.add_kernel(graph, [node], k.add, 1, 32, add_scalar(x, 10.0, 2))
    assert cu.node_type(node) == "CONDITIONAL"
    launched = cu.instantiate(graph)
    launch(cu, launched)
    launch(cu, launched)
    assert cu.read(x, 2).tolist() == [22.0 if value else 20.0] * 2


def test_if_can_be_set_from_inside_a_child(cu: RawDriver, k: Kernels) -> None:
    x = cu.array(np.zeros(2))
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 0, 0)
    child = cu.cuGraphCreate(0)
    cu.add_kernel(child, [], k.set, 1, 1, set_condition(handle, 1))
    node = cu.cuGraphAddChildGraphNode(graph, [], 0, child)
    _, body = cu.conditional(graph, [node], "IF", handle)
    inner = cu.cuGraphCreate(0)
    cu.add_kernel(inner, [], k.add, 1, 32, add_scalar(x, 1.0, 2))
    cu.cuGraphAddChildGraphNode(body, [], 0, inner)  # the body holds a child
    launch(cu, cu.instantiate(graph))
    assert cu.read(x, 2).tolist() == [1, 1]


@pytest.mark.parametrize("times", [1, 2, 7])
def test_while_runs_until_a_kernel_of_its_body_ends_it(cu: RawDriver, k: Kernels, times: int) -> None:
    x, counter = cu.array(np.zeros(2)), cu.array([times], np.int32)
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 1, cu.api.CU_GRAPH_COND_ASSIGN_DEFAULT)
    _, body = cu.conditional(graph, [], "WHILE", handle)
    step = cu.add_kernel(body, [], k.add, 1, 32, add_scalar(x, 1.0, 2))
    cu.add_kernel(body, [step], k.countdown, 1, 1, countdown(counter, handle))
    launched = cu.instantiate(graph)
    launch(cu, launched)
    assert cu.read(x, 2).tolist() == [times] * 2
    launch(cu, launched)  # the default is assigned anew: the body runs once and finds the counter below zero
    assert cu.read(x, 2).tolist() == [times + 1] * 2
    assert cu.read(counter, 1, np.int32)[0] == -1


def test_while_that_never_starts(cu: RawDriver, k: Kernels) -> None:
    x = cu.array(np.zeros(2))
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 0, cu.api.CU_GRAPH_COND_ASSIGN_DEFAULT)
    _, body = cu.conditional(graph, [], "WHILE", handle)
    cu.add_kernel(body, [], k.add, 1, 32, add_scalar(x, 1.0, 2))
    launch(cu, cu.instantiate(graph))
    assert cu.read(x, 2).tolist() == [0, 0]


def test_if_within_while(cu: RawDriver, k: Kernels) -> None:
    """The IF is taken in every turn but the last, whose countdown clears the shared decision."""
    x, counter = cu.array(np.zeros(2)), cu.array([4], np.int32)
    graph = cu.cuGraphCreate(0)
    assign = cu.api.CU_GRAPH_COND_ASSIGN_DEFAULT
    loop = cu.cuGraphConditionalHandleCreate(graph, cu.context, 1, assign)
    _, body = cu.conditional(graph, [], "WHILE", loop)
    choice = cu.cuGraphConditionalHandleCreate(body, cu.context, 0, 0)
    turn = cu.add_kernel(body, [], k.countdown, 1, 1, countdown(counter, loop))
    setter = cu.add_kernel(body, [turn], k.set, 1, 1, set_condition(choice, 1))
    _, inner = cu.conditional(body, [setter], "IF", choice)
    cu.add_kernel(inner, [], k.add, 1, 32, add_scalar(x, 1.0, 2))
    launch(cu, cu.instantiate(graph))
    assert cu.read(x, 2).tolist() == [4, 4]


def test_a_body_can_be_captured(cu: RawDriver, k: Kernels) -> None:
    s = cu.stream()
    x = cu.array(np.zeros(2))
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 1, cu.api.CU_GRAPH_COND_ASSIGN_DEFAULT)
    _, body = cu.conditional(graph, [], "IF", handle)
    cu.cuStreamBeginCaptureToGraph(s, body, [], None, 0, cu.mode("THREAD_LOCAL"))
    cu.launch(k.add, 1, 32, add_scalar(x, 4.0, 2), s)
    cu.cuStreamEndCapture(s)
    launch(cu, cu.instantiate(graph))
    assert cu.read(x, 2).tolist() == [4, 4]


def test_a_graph_with_a_conditional_has_no_clone(cu: RawDriver) -> None:
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 0, 0)
    cu.conditional(graph, [], "IF", handle)
    assert cu.status("cuGraphClone", graph) == "NOT_SUPPORTED"


def test_a_child_graph_holds_no_conditional(cu: RawDriver) -> None:
    child, parent = cu.cuGraphCreate(0), cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(child, cu.context, 0, 0)
    cu.conditional(child, [], "IF", handle)
    assert cu.status("cuGraphAddChildGraphNode", parent, [], 0, child) == "NOT_SUPPORTED"


def test_a_body_holds_no_event_node(cu: RawDriver) -> None:
    graph = cu.cuGraphCreate(0)
    handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 0, 0)
    _, body = cu.conditional(graph, [], "IF", handle)
    event = cu.cuEventCreate(0)
    cu.cuGraphAddEventRecordNode(body, [], 0, event)
    assert cu.status("cuGraphInstantiate", graph, 0) == "INVALID_VALUE"


def test_a_handle_set_by_an_ungraphed_launch_is_an_illegal_address(script: Callable[..., str]) -> None:
    assert (
        script(
            """
cu = RawDriver()
graph = cu.cuGraphCreate(0)
handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 0, 0)
cu.launch(cu.function("conformance", "set_condition"), 1, 1, set_condition(handle, 1))
print(cu.status("cuCtxSynchronize"))
"""
        )
        == "ILLEGAL_ADDRESS"
    )
