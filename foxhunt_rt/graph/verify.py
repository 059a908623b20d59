"""Replay verification: the ways to run a step must give the same bits.

Ungraphed (from modules of its own), child by child (each child's own executable), the parent (one launch), and, where the
graph was built for it, K steps a launch. After each child
the buffers that it writes are compared, so that a difference names the child, the buffer and the index where it first shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from foxhunt_rt._names import choose
from foxhunt_rt.driver import FoxhuntError, counts
from foxhunt_rt.driver.tracing import launches
from foxhunt_rt.graph.state import Difference, State, flip_bit

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph


@dataclass(frozen=True)
class ModeResult:
    """One way of running: digest of the final state, and the driver calls that launched it."""

    mode: str
    digest: str
    launches: dict[str, int]


@dataclass(frozen=True)
class Verification:
    """What `StepGraph.verify` found. ``child`` and ``difference`` name the first departure, ``mode`` the run that departed."""

    bitwise_equal: bool
    steps: int
    modes: list[ModeResult]
    mode: str | None = None
    step: int | None = None
    child: str | None = None
    difference: Difference | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [f"{m.mode:<15} {m.digest}  {m.launches}" for m in self.modes]
        verdict = "bitwise equal" if self.bitwise_equal else (
            f"{self.mode} departs in step {self.step}, child {self.child}: {self.difference}")  # fmt: skip
        return "\n".join([*lines, verdict])


Snapshot = list["npt.NDArray[Any]"]


def verify(step: StepGraph, steps: int, plant: str | None) -> Verification:
    """See `StepGraph.verify`."""
    if steps < 1:
        raise FoxhuntError(f"verify needs at least one step, not {steps}")
    names = [c.name for c in step.children]
    if plant is not None and plant not in names:
        raise FoxhuntError(f"no child {plant!r} to plant a fault in; {choose(plant, names, 'the children')}")
    states = [State((*c.writes, *c.private), step.plan.volatile_fields) for c in step.children]
    before = step.state.snapshot()
    results: list[ModeResult] = []
    found: tuple[str, int, str, Difference] | None = None
    try:
        expected: list[list[Snapshot]] = []  # per step, per child, after it ran ungraphed
        ends: list[Snapshot] = []
        launches: dict[str, int] = {}
        for _ in range(steps):
            row = []
            going = not step.stopped()
            for name, state in zip(names, states, strict=True):
                if going:
                    _count(launches, step.run_ungraphed, name)
                row.append(state.snapshot())
            expected.append(row)
            ends.append(step.state.snapshot())
        results.append(ModeResult("ungraphed", step.state.digest(ends[-1]), launches))

        step.state.restore(before)
        launches = {}
        for n in range(steps):
            going = not step.stopped()
            for i, (name, state) in enumerate(zip(names, states, strict=True)):
                if going:
                    _count(launches, step.run_children, name)
                if name == plant:
                    flip_bit(step.children[i].writes[0])
                difference = state.compare(expected[n][i], state.snapshot())
                if difference is not None and found is None:
                    found = ("child by child", n, name, difference)
        results.append(ModeResult("child by child", step.state.digest(step.state.snapshot()), launches))

        step.state.restore(before)
        launches = {}
        for n in range(steps):
            if not step.stopped():
                _count(launches, _launch_parent(step))
            now = step.state.snapshot()
            difference = step.state.compare(ends[n], now)
            if difference is not None and found is None:
                found = ("parent", n, _writer(step, difference.buffer), difference)
        results.append(ModeResult("parent", step.state.digest(step.state.snapshot()), launches))

        if step.steps_per_launch > 1:
            step.state.restore(before)
            launches = {}
            mode = f"{step.steps_per_launch} per launch"
            for first in range(0, steps, step.steps_per_launch):
                count = min(step.steps_per_launch, steps - first)  # the last launch may be shorter, by its latched word
                _count(launches, _launch_steps(step, count))
                difference = step.state.compare(ends[first + count - 1], step.state.snapshot())
                if difference is not None and found is None:
                    found = (mode, first + count - 1, _writer(step, difference.buffer), difference)
            results.append(ModeResult(mode, step.state.digest(step.state.snapshot()), launches))
    finally:
        step.state.restore(before)
    equal = found is None and len({r.digest for r in results}) == 1
    return Verification(equal, steps, results, *(found or (None, None, None, None)))


def _launch_parent(step: StepGraph) -> Callable[[], None]:
    def launch() -> None:
        with step.runtime.context.current():
            step._launch_single()
        step.runtime.synchronize()

    return launch


def _launch_steps(step: StepGraph, count: int) -> Callable[[], None]:
    def launch() -> None:
        step.launch_graph(count)
        step.runtime.synchronize()

    return launch


def _count(total: dict[str, int], function: Callable[..., None], *args: Any) -> None:
    before = counts.copy()
    function(*args)
    for name, calls in (counts - before).items():
        if launches(name) and not name.startswith(("cuMemcpyDtoH", "cuMemcpyHtoD")):  # the host looking at a flag
            total[name] = total.get(name, 0) + calls


def _writer(step: StepGraph, label: str) -> str:
    """The first child that writes the buffer with this label: the parent is compared once a step, not once a child."""
    for child in step.children:
        if any(b.label == label for b in (*child.writes, *child.private)):
            return child.name
    return "?"
