"""Check that the training step is one step, whichever way it is launched, bit for bit.

The same steps run three ways from one state: the launches one by one, each child as a graph, the parent as one launch.
Every buffer that a step writes is compared. `--plant child=adam` flips one bit after that child, to show that the check
finds it. Exit code 0 when all are equal, 1 when not.
"""

from __future__ import annotations

import argparse
import json

from foxhunt_rt._names import choose
from foxhunt_rt.cli.errors import ExitCode, UsageError

#: Steps before the comparison, so that moments, priorities and target are not those of the first step.
WARM_STEPS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many steps, and whether to plant a fault."""
    from foxhunt_rt.cli.options import add_config_arguments

    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps to compare (default: %(default)s)")
    parser.add_argument("--plant", metavar="child=NAME", help="flip one bit after this child: the check must find it")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Fills a replay from simulated bars, trains a few steps, compares."""
    from foxhunt_rt.cli.options import configuration
    from foxhunt_rt.cli.small_world import small_world
    from foxhunt_rt.graph import Runtime
    from foxhunt_rt.market.walks import split_window

    plant = planted(args.plant)
    if args.steps < 1:
        raise UsageError(f"--steps {args.steps}: give at least 1")
    config = configuration(args)
    with Runtime() as rt:
        world = small_world(rt, config)
        learner, fold = world.learner, world.folds[0]
        names = [child.name for child in learner.graph.children]
        if plant is not None and plant not in names:
            raise UsageError(f"--plant child={plant}: no such child; {choose(plant, names, 'the children')}")
        world.enter(fold, config.train.seed)
        world.collector.policy.set_exploration(1.0)
        world.collector.begin(split_window(world.ends, *fold.train, config.market.environments))
        world.collector.finish()
        for _ in range(WARM_STEPS):
            learner.step()
        learner.drain()
        found = learner.graph.verify(args.steps, plant)
        for mode in found.modes:
            print(f"{mode.mode:<15} {mode.digest}  " + ", ".join(f"{n:,} {call}" for call, n in mode.launches.items()))
        if found.bitwise_equal:
            print(f"bitwise equal over {args.steps} steps")
        else:
            print(f"not equal: {found.mode}, step {found.step}, child {found.child}: {found.difference}")
        if args.json:
            print(json.dumps({"status": "ok" if found.bitwise_equal else "different", "driver": rt.driver_kind,
                              "device": rt.device.name, "planted": plant, **found.to_dict()}))  # fmt: skip
        world.close()
    return int(ExitCode.OK if found.bitwise_equal else ExitCode.FAILURE)


def planted(text: str | None) -> str | None:
    """The child that `--plant child=NAME` names."""
    if text is None:
        return None
    key, equals, name = text.partition("=")
    if key != "child" or not equals or not name:
        raise UsageError(f"--plant {text}: write child=NAME, for example child=adam")
    return name
