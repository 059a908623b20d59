"""A flattened twin of a step: every launch a node of one graph, no child-graph nodes.

Children are for people: isolation, timing and names go by them. Whether they also cost something is a question with an answer:
the twin has the same nodes and the same dependencies, gives the same bits, and its time stands beside the step's.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foxhunt_rt.driver import Event, FoxhuntError, Function, Graph, GraphExec, Stream, capture
from foxhunt_rt.graph.child import CopyOp, KernelOp, LibraryOp, MemsetOp, Op
from foxhunt_rt.graph.state import Difference

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph


@dataclass(frozen=True)
class FlatComparison:
    """A step beside its flattened twin.

    Attributes
    ----------
    difference : Difference or None
        The first element whose bits differ after the same steps from the same state.
    nodes, edges : int
        Of the twin.
    step_us, flat_us : float
        Median time of one launch of each, interleaved, by events; 0 for a clock that does not tell them.
    """

    difference: Difference | None
    nodes: int
    edges: int
    step_us: float
    flat_us: float

    @property
    def bitwise_equal(self) -> bool:
        """Whether no bit differed."""
        return self.difference is None


class Flattened:
    """The twin. Launch it where the step would be launched; it holds the step, and with it whatever that keeps alive.

    Parameters
    ----------
    step : StepGraph
        Without gated and foreign children; of K steps a launch the twin runs one.

    Raises
    ------
    FoxhuntError
        A child cannot be flattened.

    Notes
    -----
    In a capture: refused. Synchronizes: no. Allocates: yes.

    Uses each child's own functions, so that isolation holds.
    """

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        context = step.runtime.context
        for child in step.children:
            if child.when is not None or not child.ops:
                kind = "stands behind an IF node" if child.when is not None else "is a foreign graph"
                raise FoxhuntError(
                    f"child {child.name} {kind}: only recorded launches that always run can be flattened"
                )
        with context.current():
            self.graph = Graph(context)
            self._ends: list[Any] = []
            for j, (child, functions) in enumerate(zip(step.children, step._functions, strict=True)):
                after = [self._ends[i] for i, k in step.edges if k == j]
                for op in child.ops:  # captured from one stream: a chain
                    after = [self._add(op, functions, after)]
                self._ends.append(after[0])
            self.executable: GraphExec = self.graph.instantiate(step.runtime.stream)
            self.executable.upload(step.runtime.stream)

    def _add(self, op: Op, functions: dict[str, Function], after: list[Any]) -> Any:
        graph = self.graph
        if isinstance(op, KernelOp):
            return graph.add_kernel(functions[op.kernel], op.grid, op.block, op.args.params, after, op.shared)
        if isinstance(op, MemsetOp):
            return graph.add_memset(op.buffer, op.value, after)
        if isinstance(op, LibraryOp):  # its nodes are its own business: a child graph of one call
            context = self.step.runtime.context
            with Stream(context) as stream:
                with capture(stream) as recording:
                    op.issue(context, stream, functions)
                node = graph.add_child(recording.graph, after)
                recording.graph.close()
            return node
        assert isinstance(op, CopyOp)
        return graph.add_copy(op.target, op.source, after)

    def launch(self) -> None:
        """One cuGraphLaunch on the runtime's stream. In a capture: refused. Synchronizes: no. Allocates: no."""
        with self.step.runtime.context.current():
            self.executable.launch(self.step.runtime.stream)

    def compare(self, steps: int = 3, rounds: int = 20) -> FlatComparison:
        """Runs ``steps`` steps of each from one state and compares every buffer; then times ``rounds`` launches of each in turn.
        The state is put back.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        step, runtime = self.step, self.step.runtime
        executable, before = step.single(), self.step.state.snapshot()
        begin, end = Event(runtime.context), Event(runtime.context)
        times: dict[int, list[float]] = {0: [], 1: []}
        try:
            ends = []
            with runtime.context.current():
                for which in (executable, self.executable):
                    step.state.restore(before)
                    for _ in range(steps):
                        which.launch(runtime.stream)
                    ends.append(step.state.snapshot())
                for n in range(2 * rounds):
                    begin.record(runtime.stream)
                    (executable, self.executable)[n % 2].launch(runtime.stream)
                    end.record(runtime.stream)
                    end.synchronize()
                    times[n % 2].append(end.elapsed_ms(begin) * 1e3)
        finally:
            step.state.restore(before)
        return FlatComparison(step.state.compare(*ends), len(self.graph.nodes()), len(self.graph.edges()),
                              statistics.median(times[0]), statistics.median(times[1]))  # fmt: skip

    def close(self) -> None:
        """Waits for the stream and destroys the twin. Idempotent.

        In a capture: legal. Synchronizes: yes. Allocates: yes.
        """
        self.executable.close()
        self.graph.close()


__all__ = ["FlatComparison", "Flattened"]
