"""Times of children on every step: a `%globaltimer` word at the end of each, in a mapped ring that the host reads when it logs.

Each stamp is a node of its own on a side branch of the parent, so that the chain of children grows no longer. A child's time runs
from the last end among those that it follows, or the start of the step, to its own end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from foxhunt_rt import kernels
from foxhunt_rt.driver import FoxhuntError, Graph
from foxhunt_rt.graph.conditional import ConditionalComposer, groups
from foxhunt_rt.graph.host_decisions import SubsetComposer

if TYPE_CHECKING:
    from foxhunt_rt.graph.plan import StepPlan
    from foxhunt_rt.graph.step import StepGraph

ONE = (1,)


class _Stamping(ConditionalComposer):
    """Puts a stamp behind each group of children but the epilogue, whose end the record has."""

    times: ChildTimes

    def _leave(self, target: Graph, group: list[int], node: Any) -> Any:
        t = self.times
        column = t.groups.index(group)
        if self.children[group[-1]] is not self.plan.tail:
            packed = kernels.pack("stamp_child", dict(count=t.counts[column : column + 1], times=t.ring, column=column,
                                                      width=len(t.groups), capacity=t.capacity))  # fmt: skip
            target.add_kernel(t.function, ONE, ONE, packed.params, [node])
        return node


class _Stamped(_Stamping):
    """The parent with its stamps."""

    def __init__(self, step: StepGraph, times: ChildTimes) -> None:
        super().__init__(step.plan, step.edges, step.conditions, step._loop)
        self.times = times


class _StampedSubset(_Stamping, SubsetComposer):
    """What the host picks among, with its stamps."""

    def __init__(self, plan: StepPlan, edges: list[tuple[int, int]], times: ChildTimes, members: Iterable[int]) -> None:
        SubsetComposer.__init__(self, plan, edges, members)
        self.times = times


class ChildTimes:
    """Stamps the end of every child from now on, for as long as the step lives.

    Parameters
    ----------
    step : StepGraph
        Its executable is composed anew, with a stamp node a child; launches stay one call.
    capacity : int
        Steps kept: more than may be in flight.

    Attributes
    ----------
    names : list of str
        Children in program order; those that share one IF node stand together.

    Notes
    -----
    In a capture: refused. Synchronizes: yes. Allocates: yes.

     `StepTimer.children` takes one, and
    the log then has the children of each logged step.
    """

    def __init__(self, step: StepGraph, capacity: int = 256) -> None:
        if step.mode != "on":
            raise FoxhuntError(
                f"FOXHUNT_GRAPH={step.mode}: the step launches ungraphed, so nothing would be stamped: unset it"
            )
        if capacity < 1:
            raise FoxhuntError(f"a capacity of {capacity} steps: give at least 1")
        runtime, plan = step.runtime, step.plan
        self.capacity = capacity
        self.groups = groups(step.children) if step.host is None else [[j] for j in range(len(step.children))]
        self.names = [" + ".join(step.children[j].name for j in g) for g in self.groups]
        column = {j: k for k, g in enumerate(self.groups) for j in g}
        self._follows = [sorted({column[i] for i, j in step.edges if column[j] == k and column[i] != k})
                         for k in range(len(self.groups))]  # fmt: skip
        self._tail = column[len(step.children) - 1] if plan.tail is not None else -1
        self.counts = runtime.zeros(len(self.groups), np.uint32, f"{plan.name}.stamps")
        self.ring = runtime.mapped((capacity, len(self.groups)), np.uint64, f"{plan.name}.child_times")
        user = f"{plan.name}/conditions"  # what sets handles and stamps: nodes of the parent that belong to no child
        runtime.synchronize()
        with runtime.context.current():
            self.function = runtime.modules.function(user, "stamp_child")
            runtime.ledger.captured(self.function, user)
            self.function.seal()
            if step.host is not None:
                edges = step.edges  # no reference to the step, which would never go
                step.host.recompose(lambda members: _StampedSubset(plan, edges, self, members))
            else:
                self._swap(step)
        # The step owns what its executable names, as it does for the buffers of its children.
        step._holdings.pin([self.counts.allocation, self.ring.allocation, self.function.module])

    def _swap(self, step: StepGraph) -> None:
        composition = _Stamped(step, self).compose(step.graphs)
        executable = composition.parent.instantiate(step.runtime.stream)
        executable.upload(step.runtime.stream)
        old, old_composition = step.executable, step.composition
        step.executable, step.composition, step._nodes = executable, composition, None
        old.close()
        old_composition.parent.close()
        step._holdings.executables.append(executable)
        step._holdings.graphs.append(composition.parent)

    def read(self, started_ns: int, ended_ns: int) -> dict[str, float]:
        """Microseconds of each child in the step that ran from ``started_ns`` to ``ended_ns``; NaN for a stamp that has not come
        or was overwritten."""
        ends = np.full(len(self.groups), np.nan)
        for k in range(len(self.groups)):
            if k == self._tail:
                ends[k] = ended_ns - started_ns
                continue
            column = self.ring.host[:, k]
            mine = column[(column >= started_ns) & (column <= ended_ns)]
            if mine.size:
                ends[k] = float(int(mine.max()) - started_ns)
        found = {}
        for k, name in enumerate(self.names):
            begin = max((ends[i] for i in self._follows[k]), default=0.0)
            if any(math.isnan(ends[i]) for i in self._follows[k]):
                begin = math.nan
            found[name] = (ends[k] - begin) / 1e3
        return found


__all__ = ["ChildTimes"]
