#!/usr/bin/env python3
"""Writes docs/footprint.md: what every feature adds to the graphs of a training, found by building them (a test compares).

python tools/footprint_docs.py         rewrites the page, on hostsim
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from foxhunt_rt.cli.small_world import small_world
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.features import FEATURES
from foxhunt_rt.graph import PlanningRuntime, Runtime

PAGE = Path(__file__).resolve().parent.parent / "docs" / "footprint.md"

INTRODUCTION = """\
# What each feature adds

Every feature on by itself, in the sizes of the profile `smoke`, against the same without it. A feature that is off adds nothing,
whatever its other options say: with all of them off the step is the core. The graphs are those that training builds
(`foxhunt-rt graph`), the products of matrices by the package's own kernels.

* **step**: nodes of the training step, and how many of them the longest chain has.
* **collect**, **evaluate**: nodes of the two other graphs, for one step of the environments.
* **device**: bytes of buffers, each rounded up to 256 (`foxhunt-rt plan`), without the images of modules.
* **modules**: images of kernels, each with those that have an instance of it to themselves: parts of the step, the other graphs,
  what launches beside graphs (`ungraphed:`). A part of the step has a second instance for running ungraphed, which is not shown.
  A minus stands before what is loaded no longer.

`perturb` loads what it launches between epochs when it is first due.

With every feature on a step is one `cuGraphLaunch` and no other call of the driver, as the core is; nothing on the host
grows with what is on (`tests/dqn/test_everything_on.py`).

This page is written by `tools/footprint_docs.py`; `tests/dqn/test_footprint.py` compares.

"""

#: What a feature cannot be without. Its row says what it adds to that.
NEEDS = {"depth": "network.residual", "adaptive_gamma": "epoch.enabled", "homeostat": "epoch.enabled"}
#: Switches in the order of the step, then that of collection.
SWITCHES = ("network.residual", *(f"{name}.enabled" for name, _ in FEATURES), "market.counterfactual.enabled",
            "market.mirror.enabled")  # fmt: skip


@dataclass(frozen=True)
class Footprint:
    """What the graphs of a configuration are made of."""

    nodes: int
    chain: int
    collect: int
    evaluate: int
    nbytes: int
    modules: frozenset[tuple[str, str]]  # image, user


def footprint(config: Config) -> Footprint:
    """Of the world of a configuration, in a runtime of its own."""
    config = config.with_set(["train.collect_steps=1"])
    with Runtime() as rt:
        world = small_world(rt, config)
        step, collect, evaluate = (
            g.info() for g in (world.learner.graph, world.collector.graph, world.evaluator.graph)
        )
        names = {entry.module.name.partition("@")[::2] for entry in rt.ledger.entries()}
        world.close()
    planning = PlanningRuntime("host")
    world = small_world(planning, config)
    nbytes = planning.memory().total("device")
    world.close()
    return Footprint(
        step["nodes"], step["longest_chain"], collect["nodes"], evaluate["nodes"], nbytes, frozenset(names)
    )


@functools.cache
def switched_on(*switches: str) -> Footprint:
    """Of the profile smoke with so many switches on."""
    return footprint(Config.profile("smoke").with_set([f"{switch}=true" for switch in switches]))


def base_of(switch: str) -> tuple[str, ...]:
    """Switches that must be on for this one to be."""
    need = NEEDS.get(switch.removesuffix(".enabled"))
    return (need,) if need else ()


def _modules(modules: frozenset[tuple[str, str]]) -> list[str]:
    """Each image with its users."""
    users: dict[str, list[str]] = {}
    for image, user in sorted(modules):
        if not user.endswith("/ungraphed"):
            users.setdefault(image, []).append(user.split("/")[-1])
    return [f"`{image}` ({', '.join(names)})" for image, names in users.items()]


def _row(switch: str) -> str:
    off, on = switched_on(*base_of(switch)), switched_on(*base_of(switch), switch)
    more = {field.name: getattr(on, field.name) - getattr(off, field.name) for field in fields(Footprint)[:-1]}
    shown = {name: f"{value:+,}" if value else "" for name, value in more.items()}
    step = f"{shown['nodes']} ({more['chain']:+})" if more["nodes"] else ""
    modules = [*_modules(on.modules - off.modules), *(f"− {text}" for text in _modules(off.modules - on.modules))]
    title = f"`{switch}`" + "".join(f", to `{need}`" for need in base_of(switch))
    return f"| {title} | {step} | {shown['collect']} | {shown['evaluate']} | {shown['nbytes']} | {', '.join(modules)} |"


def _total(title: str, of: Footprint, modules: str) -> str:
    return f"| **{title}** | {of.nodes} ({of.chain}) | {of.collect} | {of.evaluate} | {of.nbytes:,} | {modules} |"


def page() -> str:
    """The whole page as Markdown."""
    core, everything = switched_on(), footprint(Config.profile("full"))
    rows = [
        "| on | step (chain) | collect | evaluate | device | modules |",
        "| --- | --- | --- | --- | --- | --- |",
        _total("core", core, ", ".join(_modules(core.modules))),
        *map(_row, SWITCHES),
        _total("everything", everything, f"{len({image for image, _ in everything.modules})} images"),
    ]
    return INTRODUCTION + "\n".join(rows) + "\n"


if __name__ == "__main__":
    os.environ["FOXHUNT_DRIVER"] = "hostsim"
    PAGE.write_text(page(), encoding="utf-8")
