"""A watchdog for replays: names the child in which a hung one stopped.

A replay that hangs is a launch that never ends: whoever waits for it waits inside the driver, and no call can ask how
far it came. So a watched step marks its progress in mapped memory, by a 4-byte memset node before and after each
child, and a thread that makes no driver call looks at the marks. They cost two nodes of about 2 us a child: a step is
watched when it is suspected, not always.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from foxhunt_rt.driver import Context, FoxhuntError, Graph, GraphExec, counts
from foxhunt_rt.graph.child import KernelOp
from foxhunt_rt.graph.conditional import Composition, ConditionalComposer, groups
from foxhunt_rt.graph.updates import Slot

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph

logger = logging.getLogger("foxhunt_rt.watchdog")


@dataclass(frozen=True)
class Hang:
    """A step that made no progress.

    Attributes
    ----------
    step : str
        The plan's name.
    seconds : float
        How long nothing moved.
    stopped_in : tuple of str
        Children that began and did not end, each with its kernels. Children behind one IF node stand together.
    done, not_begun : tuple of str
        The others.
    """

    step: str
    seconds: float
    stopped_in: tuple[str, ...]
    done: tuple[str, ...]
    not_begun: tuple[str, ...]

    def __str__(self) -> str:
        where = " and ".join(self.stopped_in) or "none that began (it waits for the stream, or between two children)"
        return (f"step {self.step}: no progress for {self.seconds:.1f} s; stopped in child {where}; done: "
                f"{', '.join(self.done) or 'none'}; not begun: {', '.join(self.not_begun) or 'none'}; run it with "
                "FOXHUNT_GRAPH=debug to learn the launch")  # fmt: skip


class _Marked(ConditionalComposer):
    """The parent with a mark before and after each group of children, all cleared first, and one at the end."""

    def __init__(self, step: StepGraph) -> None:
        super().__init__(step.plan, step.edges, step.conditions, None)
        self.context: Context = step.runtime.context
        self.groups = groups(step.children)
        self.marks = step.runtime.mapped(2 * len(self.groups) + 1, np.uint32, f"{step.plan.name}.progress")
        self.seen = self.marks.host
        self.seen[-1] = 1  # nothing is under way
        self._at = {g[0]: 2 * k for k, g in enumerate(self.groups)}
        graph = Graph(self.context)
        self._root = self._mark(graph, 0, len(self.seen), 0, [])
        self.composition = Composition(graph, [None] * len(step.graphs))
        outer = self._step(graph, step.graphs, self.composition)
        earlier = {i for i, _ in step.edges}
        self._mark(graph, len(self.seen) - 1, 1, 1, [outer[g[0]] for g in self.groups if not earlier.intersection(g)])
        self.executable: GraphExec = graph.instantiate(step.runtime.stream)
        self.executable.upload(step.runtime.stream)

    def _mark(self, graph: Graph, first: int, count: int, value: int, after: Sequence[Any]) -> Any:
        """Adds a node that sets marks."""
        p = self.context.cu.CUDA_MEMSET_NODE_PARAMS()
        p.dst, p.pitch, p.value, p.elementSize, p.width, p.height = self.marks.ptr + 4 * first, 0, value, 4, count, 1
        return self.context.call(self.context.cu.cuGraphAddMemsetNode, graph.handle, list(after), len(after), p,
                                 self.context.handle)  # fmt: skip

    def _enter(self, target: Graph, group: list[int], before: list[Any]) -> list[Any]:
        return [self._mark(target, self._at[group[0]], 1, 1, before or [self._root])]

    def _leave(self, target: Graph, group: list[int], node: Any) -> Any:
        return self._mark(target, self._at[group[0]] + 1, 1, 1, [node])


class Watchdog:
    """Watches the launches of a step for a with block.

    Inside the block ``step.launch()`` replays a twin of the step with progress marks, the same children in the same
    order. When the marks do not move for ``limit_s`` while a launch is under way, `hang` is set and ``on_hang``
    called, once a hang, from the watching thread.

    Parameters
    ----------
    step : StepGraph
        Of one step a launch.
    limit_s : float
        Longer than as many steps as are queued at once take together.
    on_hang : callable, optional
        Gets the `Hang`. A process that cannot go on may leave here, by ``os._exit``: nothing that waits for the device returns.
        Default: a line of logger ``foxhunt_rt.watchdog``, level CRITICAL.

    Raises
    ------
    FoxhuntError
        The step has several steps a launch, or launches ungraphed.

    Notes
    -----
    Entering and leaving compose, instantiate and synchronize, see `__enter__`. Between them a launch stays
    one cuGraphLaunch, and the thread makes no driver call.
    """

    def __init__(self, step: StepGraph, limit_s: float = 30.0, on_hang: Callable[[Hang], object] | None = None) -> None:
        if step.steps_per_launch > 1:
            raise FoxhuntError(f"step {step.plan.name} runs {step.steps_per_launch} steps a launch: watch a build with "
                               "steps_per_launch=1")  # fmt: skip
        if step.mode != "on":
            raise FoxhuntError(
                f"FOXHUNT_GRAPH={step.mode}: the step launches ungraphed, so there is no replay to watch: unset it"
            )
        step._require_one_executable("a watchdog")
        if limit_s <= 0:
            raise FoxhuntError(f"limit_s={limit_s}: give a time above 0")
        self.step, self.limit_s = step, limit_s
        self.hang: Hang | None = None
        self._report = on_hang or (lambda hang: logger.critical("%s", hang))
        self._stop = threading.Event()

    def __enter__(self) -> Watchdog:
        """Launches replay the twin from now on. In a capture: refused. Synchronizes: yes. Allocates: yes."""
        step = self.step
        with step.runtime.context.current():
            self._marked = _Marked(step)
        self._own = step.executable, step.composition
        self._ops = [list(child.ops) for child in step.children]
        self._swap(self._marked.executable, self._marked.composition)
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name=f"watchdog of {step.plan.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._swap(*self._own)
        self._marked.executable.close()
        self._marked.composition.parent.close()
        if self.step.runtime.context.usable:
            self._carry_over()
            del self._marked.seen
            self._marked.marks.free()

    def _swap(self, executable: GraphExec, composition: Composition) -> None:
        self.step.executable, self.step.composition, self.step._nodes = executable, composition, None

    def _carry_over(self) -> None:
        """Gives the step's own executable what `StepGraph.set` changed in the twin."""
        for child, before in zip(self.step.children, self._ops, strict=True):
            met: dict[str, int] = {}
            for op, old in zip(list(child.ops), before, strict=True):
                if not isinstance(op, KernelOp):
                    continue
                occurrence = met.get(op.kernel, 0)
                met[op.kernel] = occurrence + 1
                if op is not old:
                    values = {name: v.value for name, v in op.fields.items() if isinstance(v, Slot)}
                    self.step.set(child.name, op.kernel, occurrence, **values)

    def _watch(self) -> None:
        seen, last, since, reported = self._marked.seen, b"", time.monotonic(), False
        while not self._stop.wait(min(self.limit_s / 10, 0.5)):
            marks = seen.copy()
            now = marks.tobytes() + counts["cuGraphLaunch"].to_bytes(8, "little")
            if marks[-1] or now != last:
                last, since, reported = now, time.monotonic(), False
            elif not reported and time.monotonic() - since >= self.limit_s:
                reported = True
                self.hang = self._describe(marks, time.monotonic() - since)
                self._report(self.hang)

    def _describe(self, marks: np.ndarray[Any, Any], seconds: float) -> Hang:
        stopped, done, waiting = [], [], []
        for k, group in enumerate(self._marked.groups):
            name = " + ".join(self.step.children[j].name for j in group)
            began, ended = marks[2 * k], marks[2 * k + 1]
            if ended:
                done.append(name)
            elif began:
                kernels = [k for j in group for k in self.step.children[j].kernels]
                stopped.append(f"{name} ({', '.join(kernels)})" if kernels else name)
            else:
                waiting.append(name)
        return Hang(self.step.plan.name, seconds, tuple(stopped), tuple(done), tuple(waiting))


__all__ = ["Hang", "Watchdog"]
