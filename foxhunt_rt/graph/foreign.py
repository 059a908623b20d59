"""Graphs of other libraries as children: PyTorch, cuda.core, or a raw CUgraph.

Their kernels are shared handles that nobody can hand out, so they stand in the ledger as foreign, counted and exempt from the
isolation rules. The graph is cloned: the owner may destroy its own, but the memory that its nodes name stays the owner's, which
this child keeps alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from foxhunt_rt.driver import Buffer, Context, FoxhuntError, Function, Graph, GraphExec, Stream
from foxhunt_rt.graph.child import Child
from foxhunt_rt.graph.conditional import Flag
from foxhunt_rt.graph.write_check import WriteCheck

if TYPE_CHECKING:
    from collections.abc import Mapping

_REFUSED = {
    "conditional": "a conditional node, which no child graph may hold",
    "mem_alloc": "an allocation, which no child graph may hold: allocate before the capture",
    "mem_free": "a free, which no child graph may hold: free after the step graph is closed",
    "host": "a host node: Python has no place in a replayed graph",
}


class ForeignGraphError(FoxhuntError):
    """A graph of another library cannot be a child."""


def raw_graph(graph: Any) -> int:
    """The CUgraph of a PyTorch ``CUDAGraph(keep_graph=True)``, a cuda.core ``GraphDefinition`` or ``GraphBuilder``, a `Graph`, a
    ``CUgraph``, or a handle as an int."""
    if hasattr(graph, "raw_cuda_graph"):  # torch.cuda.CUDAGraph
        try:
            return int(graph.raw_cuda_graph())
        except RuntimeError as error:
            raise ForeignGraphError(f"PyTorch keeps no graph here ({error}): make it with torch.cuda.CUDAGraph(keep_graph=True)"
                                    ) from None  # fmt: skip
    if hasattr(graph, "graph_definition"):  # cuda.core GraphBuilder
        return raw_graph(graph.graph_definition)
    handle = getattr(graph, "handle", graph)
    if type(handle).__name__ == "CUgraphExec":
        raise ForeignGraphError(
            "this is an executable, whose nodes cannot be taken: give the graph that it was made from"
        )
    try:
        value = int(handle)
    except (TypeError, ValueError):
        raise ForeignGraphError(f"{type(graph).__name__} is no graph: give a CUgraph, a torch CUDAGraph or a cuda.core graph"
                                ) from None  # fmt: skip
    if value == 0:
        raise ForeignGraphError("the graph handle is null: end the capture first")
    return value


class ForeignChild(Child):
    """A child whose launches were captured by another library. Made by `StepPlan.child_from_graph`.

    Every way to run it launches its own clone as an executable: there is no other, since the launches behind it are unknown.
    """

    def __init__(self, name: str, context: Context, graph: Any, reads: Iterable[Buffer], writes: Iterable[Buffer],
                 when: Flag | None) -> None:  # fmt: skip
        super().__init__(name, reads, writes, when=when)
        self.owner = graph
        source = Graph(context, context.cu.CUgraph(raw_graph(graph)), owned=False)
        self.kernel_count = self._check(source)
        self.graph = source.clone()
        self._executable: GraphExec | None = None

    def _check(self, graph: Graph) -> int:
        """Counts kernels, child graphs included; refuses what cannot be in a child."""
        nodes, count = graph.nodes(), 0
        if not nodes:
            raise ForeignGraphError(f"child {self.name}: the graph is empty: leave it out of the plan")
        for node in nodes:
            if node.kind in _REFUSED:
                raise ForeignGraphError(f"child {self.name}: the graph holds {_REFUSED[node.kind]}")
            count += node.kind == "kernel"
            if node.kind == "graph":
                count += self._check(graph.embedded(node.handle))
        return count

    def written_ranges(self) -> list[tuple[int, int]]:
        """What it declares: its launches are unknown."""
        return [(b.ptr, b.nbytes) for b in self.writes]

    def run(self, context: Context, stream: Stream, functions: Mapping[str, Function], synchronize: bool = False,
            check: WriteCheck | None = None) -> None:  # fmt: skip
        """Launches the graph by itself."""
        from foxhunt_rt.driver import DriverError

        try:
            if self._executable is None:
                self._executable = self.graph.instantiate(stream)
            if check is not None:
                check.before()
            self._executable.launch(stream)
            if synchronize:
                stream.synchronize()
            if check is not None:
                check.after(self.name, "a foreign graph", (), self.written_ranges())
        except DriverError as error:
            raise error.at(child=self.name, kernel="a foreign graph") from None


__all__ = ["ForeignChild", "ForeignGraphError", "raw_graph"]
