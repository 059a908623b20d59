"""How much memory training will take, by label, before anything is allocated. Loads no driver.

The same code that trains is run against a runtime that allocates nothing. A configuration that does not fit is refused, with
its three largest items: exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from typing import TYPE_CHECKING

from foxhunt_rt.cli.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from foxhunt_rt.config import Config
    from foxhunt_rt.graph.memory_plan import MemoryPlan

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to plan for."""
    from foxhunt_rt.cli.options import add_config_arguments

    parser.add_argument(
        "--bars", type=int, default=62_500, metavar="N", help="bars of the data (default: %(default)s, the sample)"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory of the device, such as 80GiB (default: that of this machine)"
    )
    parser.add_argument(
        "--arch", metavar="ARCH", help="architecture whose images are counted (default: that of this machine)"
    )
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plans, prints, checks."""
    from foxhunt_rt.cli.options import configuration

    config = configuration(args)
    found_arch, found_memory = machine()
    limit = parse_size(args.memory) if args.memory else found_memory
    plan = memory_of(config, args.bars, args.arch or found_arch)
    print(plan.text())
    print(f"of {limit:,} bytes, without what the driver itself takes for the context and for executable graphs")
    plan.check(limit)
    if args.json:
        print(json.dumps({"status": "ok", "memory": limit, "bars": args.bars, **plan.to_dict()}))
    return int(ExitCode.OK)


def memory_of(config: Config, bars: int, architecture: str) -> MemoryPlan:
    """The plan of everything that `train` makes before its first step, on so many bars."""
    from foxhunt_rt.graph.memory_plan import PlanningRuntime
    from foxhunt_rt.market.contract import PRESETS
    from foxhunt_rt.market.synthetic import simulate
    from foxhunt_rt.train import DataSet, World

    rt = PlanningRuntime(architecture)
    world = World(rt, DataSet.prepare(simulate(bars, config.train.seed).bars, PRESETS["SYNTHETIC"], config), config)
    plan = rt.memory()
    world.close()
    return plan


def parse_size(text: str) -> int:
    """Bytes of ``80GiB``, ``512MiB``, ``80G`` or a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", text.strip())
    if match is None:
        raise UsageError(f"--memory {text}: write a size such as 80GiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


def machine() -> tuple[str, int]:
    """Architecture and memory of what the driver in use would offer, from NVML; or of the host, where hostsim would be it."""
    from foxhunt_rt.driver import gpu_count

    want = os.environ.get("FOXHUNT_DRIVER", "auto")
    if want == "hostsim" or (want == "auto" and not gpu_count()):
        return "host", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    from foxhunt_rt.telemetry.gpus import gpus, visible

    found = gpus()
    first = visible(found)
    # Several kinds of GPU in CUDA's own order: the smallest is what is sure to be there.
    gpu = min(found, key=lambda g: g.memory_total) if first is None else next(iter(first), None)
    if gpu is None:
        raise UsageError("CUDA_VISIBLE_DEVICES hides every GPU: name one, or pass --memory and --arch")
    return gpu.architecture, gpu.memory_total
