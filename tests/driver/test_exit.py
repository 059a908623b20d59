"""The interpreter ends while objects of every kind are alive, in the middle of things, after an exception, after a dead context:
with its own exit code, and not a word on stderr that the program did not cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Program = Callable[..., Any]

#: Every kind of object that this package makes, alive in the globals of the program.
EVERYTHING = """
import gc, sys, threading
import numpy as np, foxhunt_rt as fx
from foxhunt_rt import interop
from foxhunt_rt.config import Config
from foxhunt_rt.driver import Event, Graph, Stream, capture
from foxhunt_rt.graph import Flag, Watchdog
rt = fx.Runtime()
x, word = rt.zeros(64, np.float32, "x"), rt.array(np.ones(1, np.uint32), "word")
mapped, view = rt.mapped(64, np.float32, "m"), x[3:7]
host = mapped.host
wrapped = interop.wrap(rt, np.ones(64, np.float32), "wrapped")
capsule = x.__dlpack__(max_version=(1, 0))
stream, event, graph = Stream(rt.context), Event(rt.context), Graph(rt.context)
event.record(stream)
stream.wait(rt.stream)
def add(child, buffer):
    child.launch("add_scalar", (1,), (64,), dict(x=buffer, value=1.0, n=64))
def plan_of(*buffers, when=None):
    plan = rt.plan("p")
    for i, b in enumerate(buffers):
        with plan.child(f"c{i}", reads=[], writes=[b], when=when) as c:
            add(c, b)
    return plan
with capture(stream) as recording:
    rt.modules  # nothing
step = plan_of(x, mapped, wrapped).build()
looped = plan_of(x, when=Flag(word)).build(steps_per_launch=2)
foreign = rt.plan("f")
foreign.child_from_graph("theirs", step.graphs[0], reads=[], writes=[x])
foreign = foreign.build()
for s in (step, looped, foreign):
    s.launch()
    s.run_children()
    s.run_ungraphed()
rt.ungraphed("u").launch("add_scalar", (1,), (64,), dict(x=x, value=1.0, n=64))
half_built = rt.plan("half")
child = half_built.child("open", reads=[], writes=[x])
child.__enter__()
add(child, x)
"""

LEARNER = """
import subjects
learner = subjects.odd_learner(rt)
learner.step()
agent = fx.dqn.Agent(4, [2], Config().with_set(["replay.capacity=1000", "replay.batch=8", "network.hidden=8"]), rt)
agent.act(np.zeros((1, 4), np.float32))
"""

ENDS = {
    "at the end": "",
    "learner and agent": LEARNER,
    "closed": "rt.close()",
    "closed twice": "step.close(); rt.close(); rt.close()",
    "deleted": "del step, looped, foreign, x, mapped, view, rt; gc.collect()",
    "in a cycle": "cycle = [rt, x, step, child]; cycle.append(cycle)",
    "left in builtins": "import builtins; builtins.keep = [step, x, capsule, child]",
    "left in a thread": "kept = threading.local(); kept.all = [step, x, rt]",
    "sys.exit": "sys.exit(0)",
    "sys.exit in a child": "with rt.plan('q').child('c', reads=[], writes=[x]) as c: sys.exit(0)",
    "sys.exit in a capture": "with capture(stream): sys.exit(0)",
    "a capture left open": "opened = capture(stream); opened.__enter__()",
    "dropped in a capture": "opened = capture(stream); opened.__enter__(); del step, x, looped",
    "a watchdog left on": "dog = Watchdog(step, limit_s=30); dog.__enter__(); step.launch()",
    "work still queued": "rt.ungraphed('u').launch('spin', (1,), (1,), dict(ns=30_000_000)); step.launch()",
    "after an exception in a capture": """
try:
    with capture(stream): raise ValueError
except ValueError as error: kept = error
""",
    "after a refused build": """
try:
    with capture(stream): plan_of(x).build()
except fx.driver.CaptureError as error: kept = error
""",
    "an atexit function that uses the device": """
import atexit
def last():
    step.launch()
    assert np.isfinite(x.to_numpy()).all()
atexit.register(last)
""",
    "a daemon thread that goes on launching": """
def forever():
    while True: step.launch()
threading.Thread(target=forever, daemon=True).start()
import os, time; time.sleep(0.05); os.environ["LINGER_S"] = "0.2"
""",
    "a daemon thread in a capture": """
inside = threading.Event()
def forever():
    with rt.context.current(), capture(stream):
        inside.set()
        threading.Event().wait()
threading.Thread(target=forever, daemon=True).start()
inside.wait()
""",
    "a thread that ends first": """
thread = threading.Thread(target=lambda: [step.launch() for _ in range(20)])
thread.start()
""",
}


#: Those that differ most from one another; the others are slow tests only because they are many.
ALWAYS = ("learner and agent", "left in builtins", "sys.exit in a capture", "dropped in a capture", "work still queued",
          "a daemon thread that goes on launching", "a daemon thread in a capture")  # fmt: skip


@pytest.mark.parametrize("end", [e if e in ALWAYS else pytest.param(e, marks=pytest.mark.slow) for e in ENDS])
def test_exit_is_quiet(program: Program, end: str) -> None:
    ended = program(EVERYTHING + ENDS[end] + "\nprint('reached')" * ("sys.exit" not in end))
    assert (ended.status, ended.errors) == (0, ""), ended
    assert ended.output == "reached\n" * ("sys.exit" not in end)


def test_an_uncaught_exception_is_all_that_is_said(program: Program) -> None:
    ended = program(EVERYTHING + "with capture(stream): raise ValueError('mine')")
    assert ended.status == 1
    assert ended.errors.splitlines()[0].startswith("Traceback") and ended.errors.splitlines()[-1] == "ValueError: mine"
    assert ended.errors.count("Traceback") == 1 and "Exception ignored" not in ended.errors


DEAD = """
class Wild:
    ptr = 1 << 46; nbytes = 1 << 20; dtype = np.dtype(np.float32); label = 'wild'; alive = True
try:
    rt.ungraphed('t').launch('add_scalar', (1,), (32,), dict(x=Wild(), value=1.0, n=32))
    rt.synchronize()
except fx.driver.DriverError as error:
    print(error.sticky)
"""


@pytest.mark.parametrize(
    "then",
    [
        "",
        "for s in (step, looped, foreign): s.close()\nhalf_built = None; rt.close()",
        "del step, x, looped, foreign, child; gc.collect()",
        "with rt: pass",
        "import builtins; builtins.keep = [step, x]",
        """
for use in (step.launch, x.to_numpy, rt.synchronize, lambda: rt.zeros(4, np.float32, "y"), plan_of(x).build, step.verify):
    try: use()
    except fx.driver.ContextDead: continue
    raise SystemExit(f"{use} raised no ContextDead")
found = []
def elsewhere():
    try: step.launch()
    except BaseException as error: found.append(type(error))
thread = threading.Thread(target=elsewhere)
thread.start(); thread.join()
assert found == [fx.driver.ContextDead], found
assert np.isfinite(mapped.host).all() and np.isfinite(host).all()
""",
    ],
    ids=["left", "closed", "deleted", "with", "builtins", "used"],
)
def test_after_a_dead_context(program: Program, then: str) -> None:
    ended = program(EVERYTHING + DEAD + then)
    assert (ended.status, ended.output, ended.errors) == (0, "True\n", ""), ended


def test_the_process_environment_stays_as_it_was(program: Program) -> None:
    code = "import os; before = dict(os.environ)" + EVERYTHING + LEARNER
    code += """
import ctypes
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
assert dict(os.environ) == before
assert {k: getenv(k.encode()).decode() for k in before} == before  # past Python too
"""
    ended = program(code)
    assert (ended.status, ended.errors) == (0, ""), ended
