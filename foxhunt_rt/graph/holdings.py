"""What a built graph keeps alive, and gives back once: when it is closed or collected, or its context is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from foxhunt_rt.driver import Buffer, Context, Graph, GraphExec, Module
from foxhunt_rt.driver.memory import Allocation

if TYPE_CHECKING:
    from foxhunt_rt.graph.runtime import Runtime


class Holdings:
    """Allocations and modules that a graph names, executables and graphs made for it.

    Not the graph itself holds these for good but this, which its finalizer holds: a `StepGraph` that is dropped without `close`
    gives back what one that is closed does, and in that order: executables, graphs, buffers, modules.

    Attributes
    ----------
    users : list of str
        Users of the module pool whose instances are this graph's alone.
    executables, graphs
        Destroyed with it.
    own : list of Buffer
        Made for it, and freed with it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.users: list[str] = []
        self.executables: list[GraphExec] = []
        self.graphs: list[Graph] = []
        self.own: list[Buffer] = []
        self._pinned: dict[int, Allocation | Module] = {}

    def pin(self, named: Iterable[Allocation | Module]) -> None:
        """Counts this graph among the users of what it names, so that none of it is freed or unloaded."""
        for thing in named:
            if id(thing) not in self._pinned:
                self._pinned[id(thing)] = thing
                thing.pins += 1

    def unpin(self) -> None:
        """Names nothing any more."""
        for thing in self._pinned.values():
            thing.pins -= 1
        self._pinned.clear()

    def drop_graphs(self) -> None:
        """Destroys executables, after waiting for their launches, and graphs."""
        for executable in self.executables:
            executable.close()
        for graph in self.graphs:
            graph.close()
        self.executables.clear()
        self.graphs.clear()

    def release(self) -> None:
        """Gives everything back. Idempotent; quiet when the context is dead."""
        self.drop_graphs()
        self.unpin()
        for buffer in self.own:
            if buffer.alive:
                buffer.free()
        self.own.clear()
        for user in self.users:
            self.runtime.ledger.forget(user, self.runtime.modules.drop(user))
        self.users.clear()


def release(context: Context, holdings: Holdings) -> None:
    """`Holdings.release` as `Context.finalize` calls it."""
    holdings.release()
