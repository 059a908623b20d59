"""Measure this device instead of believing: what sharing functions costs, and what each kind of work is charged.

`probe isolation` replays a graph of 13 children under a dozen conditions, each compared with its control in the same round,
with a checksum of every replay; then again in two processes of their own, under lazy and under eager module loading, which
a process cannot change. `probe floors` prints the cost of launches, nodes, memsets, mapped reads and conditional nodes.
What the tables say is in docs/isolation.md. `probe quirks` asks the driver what it does where drivers differ (docs/quirks.md),
each question in a process of its own, since some answers are a dead context.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from foxhunt_rt.cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from foxhunt_rt.graph import Runtime

#: What is measured anew under each loading mode, and so in a process of its own.
LOADING_ARMS = "first launch between"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and how long."""
    parser.add_argument("what", choices=("isolation", "floors", "quirks"), help="which table")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds of all arms (default: %(default)s)")
    parser.add_argument(
        "--replays", type=int, default=40, metavar="N", help="replays of an arm in a round (default: %(default)s)"
    )
    parser.add_argument("--arms", metavar="A,B", help="only these arms and what they are compared with")
    parser.add_argument(
        "--no-loading", action="store_true", help="leave the two processes under lazy and eager loading out"
    )
    parser.add_argument(
        "--device", type=int, default=0, metavar="N", help="ordinal of the device (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    from foxhunt_rt.graph import Runtime

    if args.rounds < 1 or args.replays < 1:
        raise UsageError(f"--rounds {args.rounds} --replays {args.replays}: give at least 1 of each")
    if args.what == "quirks":  # no driver is loaded in this process
        from foxhunt_rt.graph import quirks

        answered = quirks.probe_quirks(device=args.device)
        print(quirks.text(answered))
        if args.json:
            print(json.dumps({"status": "ok", **answered}))
        return int(ExitCode.OK)
    with Runtime(args.device) as rt:
        found = _floors(rt) if args.what == "floors" else _isolation(rt, args)
        if args.json:
            print(json.dumps({"status": "ok", "driver": rt.driver_kind, "device": rt.device.name, **found}))
    wrong = sum(arm["checksums_wrong"] for arm in found.get("arms", []))
    return int(ExitCode.FAILURE if wrong else ExitCode.OK)


def _floors(rt: Runtime) -> dict[str, Any]:
    from foxhunt_rt.graph import floors

    rows = floors.measure_floors(rt)
    print(floors.text(rt.device.name, rows))
    return floors.to_dict(rt.device.name, rows)


def _isolation(rt: Runtime, args: argparse.Namespace) -> dict[str, Any]:
    from foxhunt_rt.graph.probe import probe_isolation

    arms = [name.strip() for name in args.arms.split(",")] if args.arms else None
    report = probe_isolation(rt, args.rounds, args.replays, arms)
    print(report.text())
    found = report.to_dict()
    if not args.no_loading:
        found["loading_modes"] = {}
        for mode in ("LAZY", "EAGER"):
            other = _in_a_process(rt, args, mode)
            found["loading_modes"][mode] = other
            arm = other["arms"][-1]
            loaded = "" if other["fresh_loaded"] else "not "
            print(f"CUDA_MODULE_LOADING={mode}: {other['loading']} loading, functions {loaded}loaded before their first "
                  f"launch; alone {other['arms'][0]['event_us']:.2f} us; {arm['arm']['name']}: {arm['verdict']}")  # fmt: skip
    return found


def _in_a_process(rt: Runtime, args: argparse.Namespace, mode: str) -> dict[str, Any]:
    """The loading mode is read once a process, so each is measured in one of its own."""
    command = [sys.executable, "-m", "foxhunt_rt", "probe", "isolation", "--no-loading", "--json", "--arms", LOADING_ARMS,
               "--rounds", str(args.rounds), "--replays", str(args.replays), "--device", str(args.device)]  # fmt: skip
    environment = {**os.environ, "CUDA_MODULE_LOADING": mode, "FOXHUNT_DRIVER": rt.driver_kind}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the process under {mode} loading ended with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
