"""Overlap mode of hostsim: two graph nodes that need an edge between them and have none are found, and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.hostsim
Script = Callable[..., str]

PAIR = """
cu = RawDriver()
x, y = cu.array(np.zeros(64)), cu.array(np.full(64, 9.0))
cu.hostsim.fxHostsimLabel(x, b"gradient")
cu.hostsim.fxHostsimLabel(y, b"moment")
add, copy = cu.function("basic", "add_scalar"), cu.function("conformance", "copy_element")
graph = cu.cuGraphCreate(0)
def first(args, before=()): return cu.add_kernel(graph, list(before), add, 1, 32, args)
def second(args, before=()): return cu.add_kernel(graph, list(before), copy, 1, 32, args)
{nodes}
replay = cu.instantiate(graph)
cu.cuGraphLaunch(replay, 0)
print(cu.status("cuCtxSynchronize"), cu.hostsim.fxHostsimCounter(b"overlap"))
print(cu.report() or cu.read(x, 1).tolist() + cu.read(y, 1).tolist())
"""


@pytest.mark.parametrize("deferred", [0, 1])
def test_a_read_that_does_not_wait_for_its_write_is_found(script: Script, deferred: int) -> None:
    nodes = "a = first(add_scalar(x, 1.0, 64)); second(copy_element(x, y, 0, 0){})"
    good = script(PAIR.format(nodes=nodes.format(", [a]")), hostsim=f"overlap=1,deferred={deferred}")
    assert good == "CUDA_SUCCESS 0\n[1.0, 1.0]"  # and trying the orders has left nothing behind
    bad = script(PAIR.format(nodes=nodes.format("")), hostsim=f"overlap=1,deferred={deferred}")
    status, report = bad.splitlines()
    assert status == "LAUNCH_FAILED 1"
    assert report == ("overlap: kernel add_scalar (node 0) and kernel copy_element (node 1) have no edge between them, and the "
                      "result depends on which runs first: 2 bytes, the first at offset 2 of moment (256 bytes)")  # fmt: skip


def test_a_write_that_does_not_wait_for_a_read_is_found(script: Script) -> None:
    nodes = "second(copy_element(x, y, 0, 0)); first(add_scalar(x, 1.0, 64))"
    out = script(PAIR.format(nodes=nodes), hostsim="overlap=1")
    assert out.startswith("LAUNCH_FAILED 1\noverlap: kernel copy_element (node 0) and kernel add_scalar (node 1)")


def test_two_sums_into_one_word_are_found_though_their_order_does_not_matter(script: Script) -> None:
    out = script(PAIR.format(nodes="first(add_scalar(x, 1.0, 64)); first(add_scalar(x, 2.0, 64))"), hostsim="overlap=1")
    assert out.startswith("LAUNCH_FAILED 1\n") and "both write the same memory" in out
    assert "of gradient (256 bytes)" in out


def test_parts_of_one_buffer_may_be_written_side_by_side(script: Script) -> None:
    nodes = "first(add_scalar(x, 1.0, 3)); first(add_scalar(x + 12, 2.0, 61))"
    assert script(PAIR.format(nodes=nodes), hostsim="overlap=1") == "CUDA_SUCCESS 0\n[1.0, 9.0]"


def test_the_nearest_node_that_is_to_blame_is_named(script: Script) -> None:
    nodes = """
first(add_scalar(y + 16, 1.0, 4)); a = first(add_scalar(x, 1.0, 64)); b = first(add_scalar(x, 1.0, 64), [a])
first(add_scalar(y + 128, 1.0, 4)); second(copy_element(x, y, 0, 0))"""
    out = script(PAIR.format(nodes=nodes), hostsim="overlap=1")
    assert "kernel add_scalar (node 2) and kernel copy_element (node 4)" in out


@pytest.mark.parametrize("kind", ["IF", "WHILE"])
def test_the_bodies_of_conditional_nodes_are_tried_too(script: Script, kind: str) -> None:
    nodes = f"""
handle = cu.cuGraphConditionalHandleCreate(graph, cu.context, 1, 1)
node, graph_of_body = cu.conditional(graph, [], "{kind}", handle)
top, graph = graph, graph_of_body
a = first(add_scalar(x, 1.0, 64)); b = second(copy_element(x, y, 0, 0), EDGE)
cu.add_kernel(graph, [a, b], cu.function("conformance", "set_condition"), 1, 1, set_condition(handle, 0))
graph = top"""
    good = script(PAIR.format(nodes=nodes.replace("EDGE", "[a]")), hostsim="overlap=1")
    assert good == "CUDA_SUCCESS 0\n[1.0, 1.0]"
    bad = script(PAIR.format(nodes=nodes.replace("EDGE", "[]")), hostsim="overlap=1")
    assert bad.startswith("LAUNCH_FAILED 1\noverlap: kernel add_scalar (node 0) and kernel copy_element (node 1)")


LEARNER = """
import json, subjects, foxhunt_rt as fx
from foxhunt_rt.graph.plan import StepPlan

rt = fx.Runtime()
step = subjects.odd_learner(rt).graph
sim = fx.driver.hostsim()
for _ in range(2): step.launch()
rt.synchronize()

def findings(executable):
    before = sim.fxHostsimCounter(b"overlap")
    assert sim.fxHostsimConfigure(b"overlap", 2) == 0
    with rt.context.current(): executable.launch(rt.stream)
    rt.synchronize()
    assert sim.fxHostsimConfigure(b"overlap", 0) == 0
    return sim.fxHostsimCounter(b"overlap") - before

print(json.dumps(["whole step", True, findings(step.executable)]))
every, order = list(step.edges), step.plan.sequence()
for edge in every:
    StepPlan.dependencies = lambda plan, total_order=False: [e for e in every if e != edge]
    with rt.context.current():
        made = step._composer.compose(step.graphs, step.conditions)
        executable = made.parent.instantiate(rt.stream)
    a, b = (order[i] for i in edge)
    print(json.dumps([f"{a.name} -> {b.name}", b.must_follow(a), findings(executable)]))
print(json.dumps(["isolation", False, sim.fxHostsimCounter(b"isolation")]))
"""


def test_each_edge_of_the_learners_step_is_needed_and_missed_when_it_is_removed() -> None:
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": "audit=1",
           "PYTHONPATH": os.pathsep.join([str(root), str(root / "tools")])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", LEARNER], env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    whole, *edges, isolation = (json.loads(line) for line in done.stdout.splitlines())
    assert whole[2] == 0, "the step as it is has an order that gives other bits"
    assert len(edges) >= 6
    for edge, declared, found in edges:
        # An epilogue follows everything; where no declaration asks for that, there is nothing to miss.
        assert (found > 0) is declared, edge
    assert isolation[2] == 0


COMPOSED = """
import json, sys
sys.path.insert(0, "tests/graph")
import numpy as np, foxhunt_rt as fx
from foxhunt_rt.graph import Flag
from foxhunt_rt.graph.plan import StepPlan
import composed

rt = fx.Runtime()
sim = fx.driver.hostsim()
word = rt.array(np.ones(1, np.uint32), "word")
for seed in range({seeds}):
    when = {{k: Flag(word) for k in (3, 7, 11)}} if seed % 2 else {{}}
    on = composed.buffers(rt, 8, seed)
    step = composed.composed(rt, on, 13, seed, when).build()
    every, order, start = list(step.edges), step.children, step.state.snapshot()
    def findings(executable):
        step.state.restore(start)  # after some steps without an input nothing changes any more, and no order can be told
        before = sim.fxHostsimCounter(b"overlap")
        assert sim.fxHostsimConfigure(b"overlap", 2) == 0
        with rt.context.current(): executable.launch(rt.stream)
        rt.synchronize()
        assert sim.fxHostsimConfigure(b"overlap", 0) == 0
        return sim.fxHostsimCounter(b"overlap") - before
    whole = findings(step.executable)
    missed = []
    for edge in every:
        StepPlan.dependencies, kept = (lambda plan, total_order=False: [e for e in every if e != edge]), StepPlan.dependencies
        with rt.context.current():
            made = step._composer.compose(step.graphs, step.conditions)
            executable = made.parent.instantiate(rt.stream)
        StepPlan.dependencies = kept
        if not findings(executable): missed.append([order[i].name for i in edge])
        executable.close()
    print(json.dumps([seed, len(step.children), len(every), whole, missed]))
    step.close()
"""


@pytest.mark.parametrize("seeds", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_each_edge_of_plans_of_thirteen_children_is_missed_when_it_is_removed(seeds: int) -> None:
    """Random plans, half of them with children behind IF nodes (not neighbours, which share one and with it their edges)."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": "", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", COMPOSED.format(seeds=seeds)], env=env, cwd=root, text=True, capture_output=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    plans = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(plans) == seeds
    for seed, children, edges, whole, missed in plans:
        assert (children, whole, missed) == (13, 0, []), f"seed {seed}"
        assert edges >= 10
