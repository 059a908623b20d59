"""The isolation audit of hostsim: breaches of the isolation rule that no ledger sees, since the driver itself is called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.hostsim
Script = Callable[..., str]

CAPTURED = """
cu = RawDriver()
x = cu.array([0.0])
module = cu.module("basic")
add, empty = (cu.cuModuleGetFunction(module, name) for name in (b"add_scalar", b"empty"))
s = cu.stream()
{before}
with cu.capture(s) as graph: cu.launch(add, 1, 32, add_scalar(x, 1.0, 1), s)
{after}
print(cu.hostsim.fxHostsimCounter(b"isolation"), cu.report())
"""
LAUNCH = "cu.launch(empty, 1, 32, bytes(8))"


def test_an_ungraphed_launch_from_a_module_with_captured_functions_is_recorded(script: Script) -> None:
    out = script(CAPTURED.format(before="", after=LAUNCH), hostsim="audit=1")
    assert (
        out
        == "1 isolation: kernel empty is launched ungraphed, and a graph launches kernel add_scalar of the same module"
    )


def test_so_is_a_capture_from_a_module_that_has_launched_ungraphed(script: Script) -> None:
    out = script(CAPTURED.format(before=LAUNCH, after=""), hostsim="audit=1,deferred=1")
    assert out == "1 isolation: a graph takes kernel add_scalar, of whose module kernel empty was launched ungraphed"


def test_so_is_one_function_in_two_graphs_that_live(script: Script) -> None:
    again = """
with cu.capture(s) as other: cu.launch(add, 1, 32, add_scalar(x, 1.0, 1), s)"""
    out = script(CAPTURED.format(before="", after=again), hostsim="audit=1")
    assert out == "1 isolation: kernel add_scalar is launched by two graphs through one function (add_scalar)"
    out = script(CAPTURED.format(before="", after="cu.cuGraphDestroy(graph[0])" + again), hostsim="audit=1")
    assert out == "0"


def test_another_load_of_the_image_and_composition_are_no_breach(script: Script) -> None:
    after = """
cu.launch(cu.function("basic", "empty"), 1, 32, bytes(8))
parent = cu.cuGraphCreate(0)
cu.cuGraphAddChildGraphNode(parent, [], 0, graph[0])
cu.cuGraphLaunch(cu.instantiate(parent), s)
cu.cuStreamSynchronize(s)
cu.cuGraphClone(parent)"""
    assert script(CAPTURED.format(before="", after=after), hostsim="audit=1") == "0"


def test_breaches_are_counted_without_the_option_and_reported_with_it(script: Script) -> None:
    assert script(CAPTURED.format(before="", after=LAUNCH)) == "1"
