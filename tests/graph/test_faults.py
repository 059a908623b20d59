"""Faults: a write out of range is named in the node-by-node mode, by hostsim's red zones and without them; a dead context keeps
its cause and lets the process live.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import planted_faults
import pytest
import subjects

from foxhunt_rt import kernels
from foxhunt_rt.driver import DriverError, hostsim, memset
from foxhunt_rt.graph.faults import Access, parse
from foxhunt_rt.graph.write_check import WildWrite, WriteCheck, _without

ROOT = Path(__file__).resolve().parents[2]

# Each case runs in a fork of one process that has imported everything and loaded no driver: a fault ends the context.
PROGRAM = """
import gc, json, os, sys
import planted_faults
from foxhunt_rt.driver import ContextDead, DriverError
from foxhunt_rt.graph import Runtime
import cuda.bindings.driver

def case(mode, fault):
    os.environ["FOXHUNT_GRAPH"] = mode
    rt = Runtime()
    try:
        planted_faults.plan(rt, fault).build().launch()
        rt.synchronize()
    except DriverError as error:
        return rt, error
    return rt, None

def facts(error):
    return {"type": type(error).__name__, "name": error.name, "text": str(error), **error.where}

def run(name, mode, fault):
    rt, error = case(mode, fault)
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
CASES = {"behind": ("plain", "debug", "write"), "slack": ("plain", "debug", "before"), "far": ("plain", "debug", "page"),
         "graph": ("plain", "on", "write"), "good": ("plain", "debug", "none"), "dead": ("dead", "debug", "write")}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes():
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}",
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
    """Planted in child 7 of 13, in the second of its launches: by hostsim's red zones."""
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


# ------------------------------------------------------------------ the node-by-node mode's own check, on any driver
def debugged(runtime, monkeypatch, fault):
    """The planted plan in the node-by-node mode; every allocation is made under it."""
    monkeypatch.setenv("FOXHUNT_GRAPH", "debug")
    sim = hostsim()
    if sim is not None:
        sim.fxHostsimConfigure(b"redzones", 0)
    try:
        return planted_faults.plan(runtime, fault).build()
    finally:
        if sim is not None:
            sim.fxHostsimConfigure(b"redzones", 1)


@pytest.mark.parametrize(("fault", "index", "where"), [
    ("write", 70, "24 bytes behind gradient7 (256 bytes)"), ("before", -3, "12 bytes before gradient7 (256 bytes)"),
    ("page", 1064, "4000 bytes behind gradient7 (256 bytes)"), ("neighbour", None, "into fresh (256 bytes) at offset 8"),
])  # fmt: skip
def test_a_write_that_faults_nowhere_is_named(runtime, monkeypatch, fault, index, where):
    with pytest.raises(WildWrite) as caught:
        debugged(runtime, monkeypatch, fault)
    error = caught.value
    assert (error.child, error.kernel, error.argument) == ("c7", "copy_element", "y")
    assert f"the launch wrote {where}: check the index" in str(error)
    if index is not None:
        assert error.index == index
        assert f"child c7, kernel copy_element, argument y, index {index} of 64 of gradient7" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_is_in_order_raises_nothing_and_one_damage_is_told_once(runtime, monkeypatch):
    step = debugged(runtime, monkeypatch, "none")
    step.launch()
    runtime.synchronize()
    y = step.children[6].writes[0]
    _, (behind, _) = y.allocation.zones
    memset(runtime.context, _Bytes(behind + 12, 4), 1, runtime.stream)  # between two launches, by nobody we know
    with pytest.raises(WildWrite, match="12 bytes behind gradient6"):
        step.launch()
    step.launch()


class _Bytes:
    """A piece of memory that is in no buffer."""

    def __init__(self, ptr, nbytes):
        self.ptr, self.nbytes, self.dtype, self.label = ptr, nbytes, np.dtype(np.uint8), "raw"


def test_a_write_into_an_argument_that_is_only_read_is_named(runtime, monkeypatch):
    """The header lets copy_element write y alone; here y lies within x."""
    monkeypatch.setenv("FOXHUNT_GRAPH", "debug")
    x = runtime.zeros(64, np.float32, "x")
    check = WriteCheck(runtime)
    args = kernels.pack("copy_element", {"x": x, "y": x[:8], "from": 0, "to": 40, "value": 1.0})
    check.before()
    runtime.ungraphed("t").launch("copy_element", (1,), (1,), {"x": x, "y": x[:8], "from": 0, "to": 40, "value": 1.0})
    with pytest.raises(WildWrite, match="argument x, index 40 of 64 of x: .* which its ABI header only lets it read"):
        check.after("c", "copy_element", args.uses, [(u.ptr, u.nbytes) for u in args.uses if u.direction != "in"])


def test_ranges_without_holes():
    assert _without(100, 50, []) == [(100, 50)]
    assert _without(100, 50, [(90, 20), (120, 10), (125, 2), (149, 9)]) == [(110, 10), (130, 19)]
    assert _without(100, 50, [(0, 500)]) == [] and _without(100, 50, [(150, 9), (0, 100)]) == [(100, 50)]


def test_a_whole_learner_writes_only_what_its_headers_say(runtime, monkeypatch):
    """Every kernel of the core step, on sizes that are multiples of nothing."""
    monkeypatch.setenv("FOXHUNT_GRAPH", "debug")
    learner = subjects.odd_learner(runtime)
    learner.graph.launch()
    learner.graph.close()


def test_an_embedding_trainer_outlives_the_context(driver):
    """Any driver: on a GPU with a real illegal address, and PyTorch's tensors in the same context where it is installed."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]),
        "FOXHUNT_DRIVER": driver,
        "FOXHUNT_GRAPH": "on",
    }
    program = Path(__file__).with_name("embedding_trainer.py")
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["first"]["name"] == "CUDA_ERROR_ILLEGAL_ADDRESS" and "restart the process" in said["first"]["text"]
    assert (said["epochs"], said["checkpoint"]) == (3, 3 * 64.0)
    for later in ("step", "buffer", "runtime", "second runtime"):
        assert (
            said[later].startswith("the context died earlier: ") and said["first"]["text"].split(" [")[0] in said[later]
        ), later
