"""The step graph of a configuration: children in order with their parts, kernels and modules, nodes, edges, the longest chain.

Builds what `train` would build, on the driver in use and on simulated bars, and runs nothing. The ledger says which
function of which module instance belongs to whom: no function to two children, no captured module to an ungraphed user.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from foxhunt_rt.cli.errors import ExitCode

if TYPE_CHECKING:
    from foxhunt_rt.graph import Runtime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Formats."""
    from foxhunt_rt.cli.options import add_config_arguments

    parser.add_argument("--dot", action="store_true", help="Graphviz source on stdout and nothing else")
    parser.add_argument("--svg", action="store_true", help="a picture on stdout and nothing else")
    parser.add_argument("--ledger", action="store_true", help="every function, its module instance and its user")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Builds and describes."""
    from foxhunt_rt.cli.options import configuration
    from foxhunt_rt.cli.small_world import small_world
    from foxhunt_rt.graph import Runtime

    config = configuration(args)
    with Runtime() as rt:
        world = small_world(rt, config)
        step = world.learner.graph
        if args.dot:
            print(step.dot())
            return int(ExitCode.OK)
        if args.svg:
            print(step.svg())
            return int(ExitCode.OK)
        found = {**step.info(), **isolation(rt)}
        table = [(f"  {row['name']}" if row is not child else row["name"], row)
                 for child in [*found["children"], *found["epilogue"]]
                 for row in (child, *child.get("parts", []))]  # fmt: skip
        names, launches = (max(map(len, column)) for column in
                           ([name for name, _ in table], [_launches(row) for _, row in table]))  # fmt: skip
        for name, row in table:
            print(f"{name:<{names}}  {_launches(row):<{launches}}  {row['nodes']} nodes, chain {row['chain']}")
        print("edges: " + ", ".join(f"{a} -> {b}" for a, b in found["edges"]))
        print(f"{found['nodes']} nodes, longest chain {found['longest_chain']}, one launch a step; built in "
              f"{sum(found['build_ms'].values()):.0f} ms")  # fmt: skip
        print(f"{found['modules']} module instances; functions in two children: {len(found['shared_functions'])}; ungraphed "
              f"users of captured modules: {len(found['ungraphed_users_of_captured_modules'])}")  # fmt: skip
        if args.ledger:
            print(rt.ledger.table())
        if args.json:
            other = {plan.plan.name: plan.info() for plan in (world.collector.graph, world.evaluator.graph)}
            print(
                json.dumps(
                    {"status": "ok", "driver": rt.driver_kind, "device": rt.device.name, **found, "plans": other}
                )
            )
        world.close()
    return int(ExitCode.OK)


def _launches(row: dict[str, Any]) -> str:
    """Kernels of a child; how many parts where these have them."""
    return (
        f"{len(row['parts'])} part" + "s" * (len(row["parts"]) > 1) if row.get("parts") else ", ".join(row["kernels"])
    )


def isolation(rt: Runtime) -> dict[str, Any]:
    """What the ledger holds, and both rules checked on it anew."""
    rows: list[dict[str, Any]] = rt.ledger.rows()
    owners: dict[tuple[int, str], set[str]] = {}
    for row in rows:
        for kernel, child in row["captured"].items():
            owners.setdefault((row["module"], kernel), set()).add(child)
    return {
        "modules": len(rows),
        "shared_functions": [f"{kernel} of module {module}: {', '.join(sorted(users))}"
                             for (module, kernel), users in owners.items() if len(users) > 1],
        "ungraphed_users_of_captured_modules": [f"module {row['module']} ({row['image']}): {user} launches {kernel}"
                                                for row in rows if row["captured"]
                                                for kernel, user in row["ungraphed"].items()],
        "breaches": list(rt.ledger.breaches),
        "ledger": rows,
    }  # fmt: skip
