"""Ctrl-C and SIGTERM in the middle of things, as docs/lifetimes.md has it: KeyboardInterrupt comes out where the program is, the
objects stay usable, nothing is left capturing, and nothing is said that Python does not say."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

Program = Callable[..., Any]

BUILT = """
import gc, os, signal, sys, threading, time
import numpy as np, foxhunt_rt as fx
from foxhunt_rt.driver import Stream, calls, capture, captures
rt = fx.Runtime()
x = rt.zeros(64, np.float32, "x")
def build():
    plan = rt.plan("p")
    with plan.child("a", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (64,), dict(x=x, value=1.0, n=64))
        c.memset(x[:4], 0)
    return plan.build()
def kill(after, number=signal.SIGINT):
    threading.Timer(after, os.kill, (os.getpid(), number)).start()
def is_whole(current=False):
    '''Nothing captures, garbage is collected, no context was left current, and everything works.'''
    assert not captures.active and gc.isenabled() and not rt.stream.capturing
    assert current or int(rt.context.cu.cuCtxGetCurrent()[1] or 0) == 0
    step = build()
    x.fill(0)
    step.launch()
    assert x.to_numpy()[4:].tolist() == [1] * 60 and step.verify().bitwise_equal
    step.close()
"""


def test_ctrl_c_in_the_step_loop(program: Program) -> None:
    ended = program(
        BUILT
        + """
step = build()
x.fill(0)
launched = 0
kill(0.2)
try:
    while True:
        step.launch()
        launched += 1
        if launched % 64 == 0: rt.synchronize()
except KeyboardInterrupt:
    ran = int(x.to_numpy()[10])
    print(ran - launched in (0, 1))  # the launch it came in has run or has not, and all before it have
is_whole()
"""
    )
    assert (ended.status, ended.output, ended.errors) == (0, "True\n", ""), ended


WAITS = ["rt.synchronize()", "x.to_numpy()", "x.copy_from(np.zeros(64, np.float32))", "done.synchronize()", "step.close()",
         "rt.close()"]  # fmt: skip


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_while_waiting(program: Program, wait: str) -> None:
    """The driver's wait cannot be broken off: it ends with the device's work, and then the exception comes."""
    ended = program(BUILT + f"""
from foxhunt_rt.driver import Event
done, step = Event(rt.context), build()
rt.ungraphed("u").launch("spin", (1,), (1,), dict(ns=300_000_000))
done.record(rt.stream)
kill(0.1)
try:
    {wait}
    time.sleep(5)
except KeyboardInterrupt:
    print("interrupted")
if "rt.close" not in {wait!r}: is_whole()
""", hostsim="deferred=1")  # fmt: skip
    assert (ended.status, ended.output, ended.errors) == (0, "interrupted\n", ""), ended


def test_ctrl_c_before_every_driver_call_of_a_build(program: Program) -> None:
    """One after another: an interrupted build leaves no capture, no module, no allocation, and the next one works."""
    ended = program(
        BUILT
        + """
from collections import Counter
class Interrupts(Counter):
    '''Raises KeyboardInterrupt before the driver call of a number.'''
    at, calls_made = 0, 0
    def __setitem__(self, name, count):
        super().__setitem__(name, count)
        self.calls_made += 1
        if self.calls_made == self.at: raise KeyboardInterrupt
build().close()
sim = fx.driver.hostsim()
def held():
    gc.collect()
    names = "allocations", "modules", "streams", "events", "graphs", "graph_execs"
    driver = [sim.fxHostsimCounter(b"live." + n.encode()) for n in names] if sim else []
    return [*driver, len(rt.modules), len(rt.ledger.entries()), sum(n for _, n in fx.driver.live_allocations())]
before, plain, interrupted = held(), calls.counts, 0
for at in range(1, 10_000):
    calls.counts = Interrupts()
    calls.counts.at = at
    try:
        step = build()
        step.launch()
        calls.counts = plain
        step.close()
        break
    except KeyboardInterrupt:
        interrupted += 1
        calls.counts = plain
    step = None
    assert held() == before, (at, before, held())
    assert not captures.active and gc.isenabled()
print(interrupted > 50)
is_whole()
"""
    )
    assert (ended.status, ended.output, ended.errors) == (0, "True\n", ""), ended


@pytest.mark.slow  # by chance it strikes inside a destructor, or a call of the bindings, whose error Python or they lose
def test_ctrl_c_at_any_moment_of_building_and_launching(program: Program) -> None:
    """By a timer, wherever it strikes."""
    ended = program(
        BUILT
        + """
build().close()
begun = time.perf_counter()
build().close()
lasts, struck = time.perf_counter() - begun, 0
for k in range(25):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, lasts * (k + 0.5) / 25)
        step = build()
        step.launch()
        step.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        struck += 1
    assert not captures.active and gc.isenabled(), k
print(struck > 5)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
is_whole(current=True)  # our context may have stayed current
"""
    )
    assert (ended.status, ended.output) == (0, "True\n"), ended
    # Inside a destructor Python itself catches it, and says so.
    assert ended.errors == "" or ended.errors.startswith("Exception ignored in: <finalize object"), ended


def test_ctrl_c_that_nobody_catches_is_pythons_own(program: Program) -> None:
    ended = program(BUILT + "step = build(); kill(0.1)\nwhile True: step.launch()")
    assert ended.status == -signal.SIGINT
    assert ended.errors.count("Traceback") == 1 and ended.errors.splitlines()[-1] == "KeyboardInterrupt", ended


@pytest.mark.parametrize("doing", ["while True: step.launch()", "while True: build().close()",
                                   "rt.ungraphed('u').launch('spin', (1,), (1,), dict(ns=10**9)); rt.synchronize()"])  # fmt: skip
def test_sigterm_ends_the_process_at_once(program: Program, doing: str) -> None:
    """Nobody handles it, so the kernel of the operating system does: no word, no exit code of ours, no wait for the device."""
    ended = program(BUILT + f"step = build(); kill(0.15, signal.SIGTERM)\n{doing}")
    assert (ended.status, ended.errors) == (-signal.SIGTERM, ""), ended


def test_a_handler_of_the_program_is_left_alone(program: Program) -> None:
    ended = program("""
import signal
def mine(number, frame): raise SystemExit(7)
signal.signal(signal.SIGTERM, mine)
before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGSEGV)]
""" + BUILT + """
assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGSEGV)] == before
step = build()
kill(0.1, signal.SIGTERM)
while True: step.launch()
""")  # fmt: skip
    assert (ended.status, ended.errors) == (7, ""), ended
