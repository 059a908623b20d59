"""Gated children, and K steps a launch, without conditional nodes: the host reads the flags and picks an executable.

The fallback for drivers that lack such nodes (docs/support.md), and a choice where an IF node costs more than it saves. A step is
cut where a flag depends on what an earlier child of the same step writes; each piece has an executable for every set of gated
children that was needed so far: without any and with all from the start (the plain and the due one), others when they first come.
Reading a flag waits for the device, so a step of n pieces with flags costs n waits; a piece without gated children costs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from foxhunt_rt.driver import Graph, GraphExec
from foxhunt_rt.graph.conditional import Composition, ConditionalComposer, unique, writes

if TYPE_CHECKING:
    from foxhunt_rt.graph.child import Child
    from foxhunt_rt.graph.holdings import Holdings
    from foxhunt_rt.graph.plan import StepPlan


def pieces(children: Sequence[Child]) -> list[list[int]]:
    """Positions cut so that no flag read at the start of a piece is written in that piece before the child that goes by it."""
    found: list[list[int]] = []
    for j, child in enumerate(children):
        stale = child.when is not None and any(
            writes(children[i], child.when.word) for i in (found[-1] if found else ())
        )
        if not found or stale:
            found.append([])
        found[-1].append(j)
    return found


class SubsetComposer(ConditionalComposer):
    """Composes a parent of some of a plan's children, gates ignored: they were decided on before."""

    def __init__(self, plan: StepPlan, edges: list[tuple[int, int]], members: Iterable[int]) -> None:
        super().__init__(plan, edges, {}, None)
        self.members = sorted(members)

    def _step(self, target: Graph, graphs: Sequence[Graph], made: Composition) -> list[Any]:
        outer: list[Any] = [None] * len(graphs)
        for j in self.members:
            before = self._enter(target, [j], unique([outer[i] for i in self._follows(j)]))
            made.nodes[j] = target.add_child(graphs[j], before)
            outer[j] = self._leave(target, [j], made.nodes[j])
        return outer

    def _follows(self, j: int) -> set[int]:
        """Members that child j follows, through children that are left out too."""
        found: set[int] = set()
        for i in (i for i, k in self.edges if k == j):
            found |= {i} if i in self.members else self._follows(i)
        return found


class HostDecisions:
    """The executables of a step whose flags the host reads.

    Parameters
    ----------
    plan : StepPlan
    edges : list of (int, int)
        From `StepPlan.dependencies`.
    graphs : list of Graph
        The captured graph of each child. Kept; executables made later are composed from them.
    holdings : Holdings
        Of the step: what is made here is given back with it.
    """

    def __init__(self, plan: StepPlan, edges: list[tuple[int, int]], graphs: list[Graph], holdings: Holdings) -> None:
        self.plan, self.edges, self.graphs, self._holdings = plan, edges, graphs, holdings
        self.stream = plan.runtime.stream
        self.children = plan.sequence()
        self.pieces = pieces(self.children)
        self._composer: Callable[[Iterable[int]], ConditionalComposer] = lambda m: SubsetComposer(plan, edges, m)
        self._made: dict[tuple[int, ...], tuple[Composition, GraphExec]] = {}
        self._prepare()

    def recompose(self, composer: Callable[[Iterable[int]], ConditionalComposer]) -> None:
        """Composes everything anew, with what a composer adds for the members that it is given (`ChildTimes`)."""
        self.clear()
        self._composer = composer
        self._prepare()

    def _prepare(self) -> None:
        """Makes and uploads the plain and the due executable of each piece."""
        for piece in self.pieces:
            for members in (tuple(j for j in piece if self.children[j].when is None), tuple(piece)):
                if members:
                    self._executable(members).upload(self.stream)

    def step(self) -> None:
        """Queues one step. Waits for the stream before each piece that has gated children. The caller makes the context
        current."""
        for piece in self.pieces:
            members = self._decide(piece)
            if members:
                self._executable(members).launch(self.stream)

    def _decide(self, piece: list[int]) -> tuple[int, ...]:
        raised: dict[tuple[int, int, int, int], bool] = {}
        members = []
        for j in piece:
            flag = self.children[j].when
            if flag is not None:
                if flag.key not in raised:
                    raised[flag.key] = flag.raised()
                if not raised[flag.key]:
                    continue
            members.append(j)
        return tuple(members)

    def _executable(self, members: tuple[int, ...]) -> GraphExec:
        if members not in self._made:
            composition = self._composer(members).compose(self.graphs)
            self._holdings.graphs.append(composition.parent)
            executable = composition.parent.instantiate(self.stream)
            self._holdings.executables.append(executable)
            self._made[members] = composition, executable
        return self._made[members][1]

    def __len__(self) -> int:
        return len(self._made)

    def holders(self, j: int) -> list[tuple[Composition, GraphExec]]:
        """Every executable that holds a child, with what it was composed as."""
        return [made for members, made in self._made.items() if j in members]

    def clear(self) -> None:
        """Waits for the stream and destroys the executables."""
        for composition, executable in self._made.values():
            executable.close()
            composition.parent.close()
            self._holdings.executables.remove(executable)
            self._holdings.graphs.remove(composition.parent)
        self._made.clear()


__all__ = ["HostDecisions", "SubsetComposer", "pieces"]
