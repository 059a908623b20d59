"""A driver call of a short training run fails, each in turn, in forks of one process that itself never fails.

At the beginning of a driver call hostsim asks a hook (`fxHostsimOnCall`). The hook forks: the parent goes on undisturbed, and in
the child that call answers an error. The child then takes the way that a program would take: the error is raised, everything is
let go, the interpreter ends. So a fault costs a fork and its own error path, not the run up to it, and all of them fit into
one run.

    python tests/driver/fault_sweep.py [--error NAME ...] [--sites DEPTH] [--parallel N]

Writes one JSON object a line: the call's number, entry point, site, error, outcome, what of the driver's objects is alive when
everything was let go, exit status, and what the exit printed. A site is an entry point with the innermost DEPTH Python frames
outside of calls.py and context.py that led to it; with --sites only its first call fails. The first call of a site leaves by the
interpreter's own end, the others run the exit handlers and leave at once, which is most of what a fork costs.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gc
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

import cuda.bindings.driver as cu  # imported once for all forks; loads no driver
import subjects

import foxhunt_rt as fx
from foxhunt_rt.driver import loader

TIME_LIMIT_S = 60
LIVE = ("allocations", "modules", "streams", "events", "graphs", "graph_execs")
#: Without Python's handlers, which tell the package that the driver is its parent's. PyDLL keeps the interpreter's lock.
FORK = ctypes.PyDLL(None).fork
HOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)


def train() -> None:
    """Build, fill, three replays, one ungraphed step, and read the result: every kind of call that training makes."""
    settings = subjects.config(**{"network.hidden": "16", "network.atoms": 11, "replay.batch": 8, "replay.capacity": 256,
                                  "loss.v_min": -5, "loss.v_max": 5})  # fmt: skip
    with fx.Runtime() as rt:
        learner = subjects.learner(rt, settings, 5, (3,), 64)
        for _ in range(3):
            learner.graph.launch()
        learner.graph.run_ungraphed()
        rt.synchronize()
        learner.graph.state.snapshot()
        learner.graph.close()


@dataclass
class Fork:
    """A child under way."""

    about: dict[str, Any]
    results: Any = field(default_factory=tempfile.TemporaryFile)
    output: Any = field(default_factory=tempfile.TemporaryFile)


class Sweep:
    """The hook, and what it knows."""

    def __init__(self, errors: list[str], sites: int, parallel: int) -> None:
        self.errors, self.sites, self.parallel = errors, sites, parallel
        self.calls = 0
        self.met: set[tuple[str, ...]] = set()
        self.under_way: dict[int, Fork] = {}
        self.mine: Fork | None = None  # in a child: what it is

    def on_call(self, name: bytes) -> int:
        """Before a driver call: 0, or in a fork the error that it answers."""
        if self.mine is not None or name.startswith(b"cuGetProcAddress"):
            return 0
        self.calls += 1
        entry = name.decode().split("_v")[0]
        frames = self.frames(self.sites or 2)
        first = (entry, *frames) not in self.met
        self.met.add((entry, *frames))
        if self.sites and not first:
            return 0
        for error in self.errors if "Alloc" not in entry else [*self.errors, "OUT_OF_MEMORY"]:
            about = {"call": self.calls, "entry": entry, "site": " < ".join(frames), "error": error, "first": first,
                     "closing": self.closing()}  # fmt: skip
            if self.fork(about):
                return int(getattr(cu.CUresult, f"CUDA_ERROR_{error}"))
        return 0

    @staticmethod
    def frames(depth: int) -> list[str]:
        """file:line of the innermost frames that are not the driver layer's way to make a call."""
        frame, found = sys._getframe(2), []
        while frame is not None and len(found) < depth:
            file = os.path.basename(frame.f_code.co_filename)
            if file not in ("calls.py", "context.py", "weakref.py", "contextlib.py"):
                found.append(f"{file}:{frame.f_lineno}")
            frame = frame.f_back
        return found

    @staticmethod
    def closing() -> bool:
        """Whether something is being let go."""
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name in ("_quietly", "close"):
                return True
            frame = frame.f_back
        return False

    def fork(self, about: dict[str, Any]) -> bool:
        """True in the child, which goes on with the driver as the parent left it."""
        while len(self.under_way) >= self.parallel:
            self.reap()
        child = Fork(about)
        sys.stdout.flush()
        pid = int(FORK())
        if pid:
            self.under_way[pid] = child
            return False
        self.mine = child
        signal.alarm(TIME_LIMIT_S)
        os.dup2(child.output.fileno(), 1)
        os.dup2(child.output.fileno(), 2)
        loader._hostsim.fxHostsimContinueAfterFork()  # type: ignore[union-attr]
        return True

    def reap(self) -> None:
        """Waits for one child and prints what became of it."""
        pid, status = os.wait()
        child = self.under_way.pop(pid)
        child.results.seek(0)
        child.output.seek(0)
        found = json.loads(child.results.read() or b'{"outcome": "died", "text": "", "live": {}}')
        line = {
            **child.about,
            "status": os.waitstatus_to_exitcode(status),
            "printed": child.output.read().decode(),
            **found,
        }
        print(json.dumps(line), flush=True)
        child.results.close()
        child.output.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--error", nargs="+", default=["NOT_SUPPORTED", "ILLEGAL_ADDRESS"])
    parser.add_argument("--sites", type=int, default=0, metavar="DEPTH")
    parser.add_argument("--parallel", type=int, default=2)
    options = parser.parse_args()
    sweep = Sweep(options.error, options.sites, options.parallel)
    fx.abi.dtype("step_block")  # headers are read once for all forks
    loader._load_hostsim()  # without cuInit, which is a call too
    sim = loader._hostsim
    assert sim is not None
    sim.fxHostsimConfigure(b"workers", 1)  # no thread but this one: a fork keeps only the thread that forks
    hook = HOOK(sweep.on_call)
    sim.fxHostsimOnCall(hook)
    gc.collect()
    gc.freeze()  # forks share what is there already
    outcome, text = "completed", ""
    try:
        train()
    except fx.driver.FoxhuntError as error:
        outcome, text = type(error).__name__, str(error)
    except BaseException as error:
        outcome, text = f"untyped {type(error).__name__}", str(error)
    gc.collect()
    live = {what: int(sim.fxHostsimCounter(f"live.{what}".encode())) for what in LIVE}
    found = {"outcome": outcome, "text": text, "live": live}
    if sweep.mine is not None:
        os.write(sweep.mine.results.fileno(), json.dumps(found).encode())
        if not sweep.mine.about["first"]:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        return 0
    while sweep.under_way:
        sweep.reap()
    print(
        json.dumps(
            {
                "call": 0,
                "error": None,
                "status": 0,
                "printed": "",
                "calls": sweep.calls,
                "sites": len(sweep.met),
                **found,
            }
        )
    )
    sim.fxHostsimOnCall(HOOK())
    return 0


if __name__ == "__main__":
    sys.exit(main())
