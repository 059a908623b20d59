"""After a fork the parent goes on as if nothing had happened; the child gets a clear error from whatever it uses, lets go of
everything in silence, and ends like any other process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

Program = Callable[..., Any]

BUILT = """
import os, sys, gc, warnings
# From 3.12 on Python warns of every fork in a process with threads, and NVIDIA's driver has threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
import numpy as np, foxhunt_rt as fx
from foxhunt_rt import interop
from foxhunt_rt.driver import LifetimeError, capture
rt = fx.Runtime()
x, m = rt.zeros(64, np.float32, "x"), rt.mapped(64, np.float32, "m")
plan = rt.plan("p")
with plan.child("a", reads=[], writes=[x]) as c:
    c.launch("add_scalar", (1,), (64,), dict(x=x, value=1.0, n=64))
step = plan.build()
step.launch()
def goes_on(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    step.launch()
    assert x.to_numpy()[0] == 2
    assert step.verify().bitwise_equal
"""


def test_whatever_the_child_uses_is_a_clear_error(program: Program) -> None:
    ended = program(
        BUILT
        + """
uses = {
    "to_numpy": x.to_numpy, "copy_from": lambda: x.copy_from(np.zeros(64, np.float32)), "fill": x.fill,
    "host": lambda: m.host, "mapped to_numpy": m.to_numpy, "poll": m.poll, "export": x.__dlpack__,
    "interface": lambda: x.__cuda_array_interface__, "launch": step.launch, "ungraphed": step.run_ungraphed,
    "children": step.run_children, "verify": step.verify, "profile": step.profile, "build": plan.build,
    "empty": lambda: rt.empty(4, np.float32, "e"), "zeros": lambda: rt.zeros(4, np.float32, "z"),
    "array": lambda: rt.array(np.zeros(4), "a"), "mapped": lambda: rt.mapped(4, np.float32, "n"),
    "wrap": lambda: interop.wrap(rt, np.zeros(4), "w"), "synchronize": rt.synchronize, "done": lambda: rt.stream.done,
    "user": lambda: rt.ungraphed("u").launch("add_scalar", (1,), (64,), dict(x=x, value=1.0, n=64)),
    "capture": lambda: capture(rt.stream).__enter__(), "memory_info": rt.context.memory_info,
    "event": lambda: fx.driver.Event(rt.context),
    "stream": lambda: fx.driver.Stream(rt.context), "name": lambda: rt.device.name, "a new runtime": fx.Runtime,
}
child = os.fork()
if child == 0:
    wrong = []
    for name, use in uses.items():
        try:
            use()
        except LifetimeError as error:
            if not ("spawn" in str(error) and "fork" in str(error)): wrong.append((name, str(error)))
        except BaseException as error: wrong.append((name, repr(error)))
        else: wrong.append((name, "no error"))
    print(wrong, repr(x)[:14], flush=True)
    os._exit(0)
goes_on(child)
"""
    )
    assert (ended.status, ended.output, ended.errors) == (0, "[] <DeviceBuffer \n", ""), ended


def test_the_child_lets_go_in_silence(program: Program) -> None:
    """By close, by collection and at its own exit, while the parent's objects stay."""
    ended = program(
        BUILT
        + """
child = os.fork()
if child == 0:
    step.close(); x.free(); rt.close()
    with rt: pass
    del step, x, m, plan, c, rt
    gc.collect()
    sys.exit(0)
goes_on(child)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
step.launch()
assert x.to_numpy()[0] == 3
"""
    )
    assert (ended.status, ended.errors) == (0, ""), ended


def test_a_fork_inside_a_capture(program: Program) -> None:
    ended = program(
        BUILT
        + """
with rt.context.current(), capture(rt.stream) as recording:
    child = os.fork()
    if child == 0: sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fx.driver.memset(rt.context, x, 0, rt.stream)
assert [n.kind for n in recording.graph.nodes()] == ["memset"]
step.launch()
assert x.to_numpy()[0] == 2
"""
    )
    assert (ended.status, ended.errors) == (0, ""), ended


def test_a_host_view_that_the_child_reads(program: Program) -> None:
    """Whatever it finds there, neither process minds. (The child does not write: whose memory that is, no driver says.)"""
    ended = program(
        BUILT
        + """
host = m.host
host[:] = 7
child = os.fork()
if child == 0:
    host.sum()
    os._exit(0)
goes_on(child)
assert (host == 7).all()
"""
    )
    assert (ended.status, ended.errors) == (0, ""), ended


@pytest.mark.gpu
@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 is the first that warns")
def test_python_warns_of_the_drivers_threads(program: Program) -> None:
    ended = program(
        BUILT
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    child = os.fork()
    if child == 0: os._exit(0)
goes_on(child)
assert [w.category for w in caught] == [DeprecationWarning] and "is multi-threaded" in str(caught[0].message), caught
"""
    )
    assert (ended.status, ended.errors) == (0, ""), ended


WORKERS = """
import multiprocessing
def square(n): return n * n
def use(n):
    try: step.launch()
    except fx.driver.LifetimeError as error: return str(error)
def use_and_raise(n): return float(x.to_numpy()[n])
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(square, range(8)) == [n * n for n in range(8)]
    assert all("belongs to the parent" in text for text in pool.map(use, range(4)))
    try: pool.map(use_and_raise, [0])
    except fx.driver.LifetimeError as error: print(error)
    pool.close(); pool.join()
step.launch()
assert x.to_numpy()[0] == 2
"""


def test_workers_that_were_forked(program: Program) -> None:
    """Workers that use nothing of ours work; in those that do, the error reaches the parent as what it is."""
    ended = program(BUILT + WORKERS)
    assert ended.output.startswith("this CUDA context belongs to the parent process"), ended
    assert (ended.status, ended.errors) == (0, ""), ended


def test_workers_that_were_forked_before_the_first_runtime(program: Program) -> None:
    """The mend that the error names works: the driver belongs to whoever loads it, at the first use and not at import."""
    ended = program("""
import multiprocessing, foxhunt_rt as fx, numpy as np
def use(n):
    with fx.Runtime() as rt: return float(rt.array(np.full(4, n, np.float32), "x").to_numpy().sum())
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(use, range(4)) == [0, 4, 8, 12]
    pool.close(); pool.join()
with fx.Runtime() as rt: rt.zeros(4, np.float32, "x")
""")
    assert (ended.status, ended.errors) == (0, ""), ended
