"""A short training run with one driver call made to fail, many times, each in a fork of this process.

Reads fault plans from the command line, one an argument ("" for a run without); writes one JSON object a line: the plan, the
outcome, what of the driver's objects is alive when everything was let go, exit status, and what the exit printed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile

import cuda.bindings.driver  # noqa: F401  (imported once for all forks; loads no driver)
import subjects

import foxhunt_rt as fx

TIME_LIMIT_S = 60
LIVE = ("allocations", "modules", "streams", "events", "graphs", "graph_execs")


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


def run(plan: str, results: int) -> None:
    """In the fork. Leaves by the ordinary way out, so that finalizers and exit handlers run."""
    os.environ["FOXHUNT_FAULTS"] = plan
    outcome, text = "completed", ""
    try:
        train()
    except fx.driver.FoxhuntError as error:
        outcome, text = type(error).__name__, str(error)
    except BaseException as error:
        outcome, text = f"untyped {type(error).__name__}", str(error)
    gc.collect()
    sim = fx.driver.loader._hostsim
    live = {what: int(sim.fxHostsimCounter(f"live.{what}".encode())) for what in LIVE} if sim else {}
    calls = int(sim.fxHostsimCounter(b"call")) if sim else 0
    os.write(results, json.dumps({"outcome": outcome, "text": text, "live": live, "calls": calls}).encode())


def main() -> int:
    for plan in sys.argv[1:]:
        with tempfile.TemporaryFile() as results, tempfile.TemporaryFile() as output:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                signal.alarm(TIME_LIMIT_S)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                run(plan, results.fileno())
                return 0
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            results.seek(0)
            output.seek(0)
            found = json.loads(results.read() or b'{"outcome": "died", "text": "", "live": {}, "calls": 0}')
            print(json.dumps({"plan": plan, "status": status, "printed": output.read().decode(), **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
