"""Faults: an access out of range is named in the node-by-node mode; a dead context keeps its cause and lets the process live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foxhunt_rt.driver import DriverError
from foxhunt_rt.graph.faults import Access, parse

ROOT = Path(__file__).resolve().parents[2]

# Each case runs in a fork of one process that has imported everything and loaded no driver: a fault ends the context.
PROGRAM = """
import gc, json, os, sys
import numpy as np
from foxhunt_rt.driver import ContextDead, DriverError
from foxhunt_rt.graph import Runtime
import cuda.bindings.driver

def thirteen(rt, bad, to):
    "Thirteen children; child `bad` of them writes y[to] of 64."
    plan = rt.plan("step")
    x = rt.array(np.arange(64, dtype=np.float32), "features")
    for k in range(13):
        y = rt.zeros(64, np.float32, f"gradient{k}")
        with plan.child(f"c{k}", reads=[x], writes=[y]) as c:
            c.launch("copy_element", (1,), (1,), {"x": x, "y": y, "from": 3, "to": 5, "value": 1.0})
            if k == bad:
                c.launch("copy_element", (1,), (1,), {"x": x, "y": y, "from": 0, "to": to, "value": 1.0})
    return plan

def case(mode, to, bad=7):
    os.environ["FOXHUNT_GRAPH"] = mode
    rt = Runtime()
    try:
        thirteen(rt, bad, to).build().launch()
        rt.synchronize()
    except DriverError as error:
        return rt, error
    return rt, None

def facts(error):
    return {"type": type(error).__name__, "name": error.name, "text": str(error), **error.where}

def run(name, mode, to):
    rt, error = case(mode, to)
    out = {"first": error and facts(error)}
    if name == "dead":
        x = rt.array  # every later use says the first cause, at once
        for key, use in {"allocate": lambda: rt.zeros(4, "f4", "z"), "synchronize": rt.synchronize,
                         "launch": lambda: rt.ungraphed("u").launch("empty", (1,), (1,), dict(unused=0))}.items():
            try:
                use()
                out[key] = None
            except ContextDead as later:
                out[key] = facts(later)
        rt.close()
        gc.collect()
        out["alive"] = sum(range(5))
    print(json.dumps(out), flush=True)

for case_args in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        run(*case_args)
        sys.exit(0)  # the interpreter ends as usual, with objects of a dead context alive
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({"exit": code}), flush=True)
"""
CASES = {"behind": ("plain", "debug", 70), "slack": ("plain", "debug", -3), "far": ("plain", "debug", 64 + 1000),
         "graph": ("plain", "on", 70), "good": ("plain", "debug", 6), "dead": ("dead", "debug", 70)}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes():
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FOXHUNT_DRIVER": "hostsim",
        "FOXHUNT_HOSTSIM": "redzones=1,deferred=1",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(list(CASES.values()))], env=env, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stderr == "", done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(line["exit"] == 0 for line in lines[1::2]), done.stdout
    return dict(zip(CASES, lines[::2], strict=True))


@pytest.mark.hostsim
@pytest.mark.parametrize(("case", "index"), [("behind", 70), ("slack", -3), ("far", 1064)])
def test_a_write_out_of_range_is_named(outcomes, case, index):
    """Planted in child 7 of 13, in the second of its launches."""
    found = outcomes[case]["first"]
    assert found["name"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert (found["child"], found["kernel"], found["argument"]) == ("c7", "copy_element", "y")
    assert found["index"] == f"{index} of 64 of gradient7"
    assert "child c7, kernel copy_element, argument y, index" in found["text"]
    assert found["text"].endswith("the context is dead: restart the process")


@pytest.mark.hostsim
def test_a_graph_launch_says_how_to_learn_more(outcomes):
    found = outcomes["graph"]["first"]
    assert found["name"] == "CUDA_ERROR_ILLEGAL_ADDRESS" and "child" not in found
    assert "kernel copy_element" in found["report"]
    assert found["text"].endswith("with FOXHUNT_GRAPH=debug to learn the child and the kernel")


@pytest.mark.hostsim
def test_nothing_is_found_where_nothing_is_wrong(outcomes):
    assert outcomes["good"]["first"] is None


@pytest.mark.hostsim
def test_a_dead_context_keeps_its_first_cause_and_the_process_lives(outcomes):
    """Also: exit code 0 and nothing on stderr, of every case, with objects alive at the end of the interpreter."""
    found = outcomes["dead"]
    for use in ("allocate", "synchronize", "launch"):
        assert found[use]["type"] == "ContextDead", use
        assert found[use]["text"].startswith("the context died earlier: ") and found[use]["child"] == "c7"
    assert found["alive"] == 10


def test_reports_are_read():
    assert parse("kernel k, block (0,0,0), thread (3,1,0): illegal address 0x7f00aa10: 24 bytes behind w (256 bytes)") == Access(
        0x7F00AA10, "behind", 24, "w", 256, "block (0,0,0), thread (3,1,0)")  # fmt: skip
    assert parse("kernel k: wrote 4 bytes before ddqn.logits (20 bytes)") == Access(
        None, "before", 4, "ddqn.logits", 20, None)  # fmt: skip
    freed = parse(
        "kernel k, block (0,0,0), thread (0,0,0): illegal address 0xab: offset 12 of a b (9 bytes), which has been freed"
    )
    assert (freed.side, freed.distance, freed.label) == ("in", 12, "a b")
    assert parse("kernel k, block (0,0,0): a barrier that 5 threads do not reach") is None


def test_errors_without_a_place_name_the_arguments(runtime):
    from foxhunt_rt.graph.faults import explain

    x = runtime.zeros(4, "f4", "x")
    error = DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access", "cuStreamSynchronize")
    assert explain([("out", x, 16)], error) == {"arguments": "out = x"}
    assert explain([("out", x, 16)], DriverError(1, "CUDA_ERROR_INVALID_VALUE", "", "cuLaunchKernel")) == {}
    error.where["report"] = "kernel k: wrote 4 bytes behind other (16 bytes)"
    assert explain([("out", x, 16)], error) == {"argument": "none: other is not among them"}
