"""Where the time of a step goes: by child from an instrumented twin of the parent, by launch from graphs that repeat it.

The twin is the parent with event-record nodes around each child. It has the same children and the same edges, so that branches
run side by side in it too; an event node is about as long as an empty kernel, and the plain step is timed beside it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from foxhunt_rt.driver import Event, FoxhuntError, Function, Graph, Stream, capture
from foxhunt_rt.graph import outline, trace
from foxhunt_rt.graph.child import Child, KernelOp, LibraryOp, Op
from foxhunt_rt.graph.conditional import Composition, ConditionalComposer, groups
from foxhunt_rt.graph.plan import Composer

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph

REPEATS = 20  # copies of a launch in the graph that times it
ROUNDS = 9  # replays of that graph, and blocks of plain steps
Ranges = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class ChildTime:
    """Times of one child in the twin, in microseconds; of all the children that share one IF node, with their names joined.

    ``share`` is of the twin's step; children on parallel branches overlap, so shares may add up to more than 1. ``start_us`` is
    the median time from the start of the step. ``ungraphed_us`` is the same child launch by launch, each with its host cost.
    A child made of parts has their times in ``parts``; its own run from the first start among them to the last end.
    """

    name: str
    median_us: float
    p90_us: float
    share: float
    start_us: float
    ungraphed_us: float
    kernels: int
    nodes: int
    chain: int
    parts: list[ChildTime] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchTime:
    """One launch: the time of one of `REPEATS` copies in a chain, the gap to its predecessor included.

    ``touched_bytes`` is what the ABI lets it read and write, at most; ``local_bytes`` is local memory a thread: register spills
    and arrays with computed indices.
    """

    child: str
    launch: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    median_us: float
    p90_us: float
    touched_bytes: int
    local_bytes: int

    @property
    def threads(self) -> int:
        """Threads of the whole grid; 0 for a copy or a fill."""
        return int(np.prod(self.grid) * np.prod(self.block)) if self.grid else 0


@dataclass(frozen=True)
class Profile:
    """What `StepGraph.profile` measured. Times in microseconds: ``step_us`` back to back without instruments, ``twin_us`` of one
    instrumented step, ``launch_us`` of the host in one launch; each a median, with ``_p90`` beside it. ``children`` stand in the
    order of `StepPlan.outline`."""

    plan: str
    device: str
    driver: str
    steps: int
    step_us: float
    step_us_p90: float
    twin_us: float
    twin_us_p90: float
    launch_us: float
    launch_us_p90: float
    nodes: int
    chain: int
    children: list[ChildTime]
    launches: list[LaunchTime]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)

    def parts(self) -> Iterator[ChildTime]:
        """What was timed: graph children, in the order of their children."""
        for child in self.children:
            yield from child.parts or [child]

    def trace(self) -> dict[str, Any]:
        """Chrome trace JSON, for Perfetto."""
        return trace.render(self)

    def text(self) -> str:
        """Tables of children, each with its parts, and of launches."""
        rows = [(name, c) for child in self.children
                for name, c in [(child.name, child), *((f"  {part.name}", part) for part in child.parts)]]  # fmt: skip
        wide = max(16, *(len(name) for name, _ in rows))
        lines = [f"{self.plan} on {self.device}: {self.step_us:,.1f} us a step (p90 {self.step_us_p90:,.1f}), launch "
                 f"{self.launch_us:.1f} us of the host (p90 {self.launch_us_p90:.1f}), {self.nodes} nodes, longest chain "
                 f"{self.chain}; with event nodes {self.twin_us:,.1f} us (p90 {self.twin_us_p90:,.1f})",
                 f"{'child':<{wide}} {'median us':>10} {'p90':>10} {'share':>6} {'start':>10} {'ungraphed':>10} "
                 f"{'kernels':>7} {'nodes':>5} {'chain':>5}"]  # fmt: skip
        lines += [f"{name:<{wide}} {c.median_us:>10,.1f} {c.p90_us:>10,.1f} {c.share:>6.0%} {c.start_us:>10,.1f} "
                  f"{c.ungraphed_us:>10,.1f} {c.kernels:>7} {c.nodes:>5} {c.chain:>5}" for name, c in rows]  # fmt: skip
        if self.launches:
            lines.append(
                f"{'launch':<34} {'median us':>10} {'p90':>10} {'threads':>9} {'touches':>12} {'local':>6}  shape"
            )
        for row in self.launches:
            shape = f"{'x'.join(map(str, row.grid))} blocks of {'x'.join(map(str, row.block))}" if row.grid else ""
            lines.append(f"{row.child + '.' + row.launch:<34} {row.median_us:>10,.2f} {row.p90_us:>10,.2f} "
                         f"{row.threads or '':>9} {row.touched_bytes:>12,} {row.local_bytes or '':>6}  {shape}")  # fmt: skip
        return "\n".join(lines)


def percentiles(samples: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile."""
    return float(np.median(samples)), float(np.percentile(samples, 90))


def event_node(graph: Graph, event: Event, after: Sequence[Any]) -> Any:
    """Adds a node that records an event behind the nodes ``after``; returns the node."""
    context = graph.context
    return context.call(context.cu.cuGraphAddEventRecordNode, graph.handle, list(after), len(after), event.handle)


class Twin(ConditionalComposer):
    """The instrumented parent, at one step a launch: an event before and after each child, and around the whole step.

    An event node may not stand in a conditional body, so children behind one IF node are timed together, around it.
    """

    def __init__(self, step: StepGraph) -> None:
        super().__init__(step.plan, step.edges, step.conditions, None)
        context = step.runtime.context
        self.context, self.stream = context, step.runtime.stream
        self.groups = groups(step.children)
        self._events = {g[0]: (Event(context), Event(context)) for g in self.groups}
        self.start, self.end = Event(context), Event(context)
        with context.current():
            graph = Graph(context)
            self._root = event_node(graph, self.start, [])
            nodes = self._step(graph, step.graphs, Composition(graph, [None] * len(step.graphs)))
            earlier = {i for i, _ in step.edges}
            event_node(graph, self.end, [nodes[g[0]] for g in self.groups if not earlier.intersection(g)])
            self.executable = graph.instantiate(self.stream)
            self.executable.upload(self.stream)

    def _enter(self, target: Graph, group: list[int], before: list[Any]) -> list[Any]:
        return [event_node(target, self._events[group[0]][0], before or [self._root])]

    def _leave(self, target: Graph, group: list[int], node: Any) -> Any:
        return event_node(target, self._events[group[0]][1], [node])

    def run(self) -> tuple[float, list[tuple[float, float]]]:
        """One step: its time, and start and length of each group of children, in microseconds. Synchronizes."""
        with self.context.current():
            self.executable.launch(self.stream)
        self.stream.synchronize()
        spans = [(b.elapsed_ms(self.start) * 1e3, a.elapsed_ms(b) * 1e3)
                 for b, a in (self._events[g[0]] for g in self.groups)]  # fmt: skip
        return self.end.elapsed_ms(self.start) * 1e3, spans

    def close(self) -> None:
        self.executable.close()
        self.executable.graph.close()


def profile(step: StepGraph, steps: int, launches: bool, ranges: Ranges | None) -> Profile:
    """See `StepGraph.profile`."""
    if steps < 1:
        raise FoxhuntError(f"a profile needs at least one step, not {steps}")
    step._require_one_executable("profile()")
    saved = step.state.snapshot()
    try:
        plain, host = _plain(step, steps)
        twin = Twin(step)
        try:
            twin.run()
            runs = [twin.run() for _ in range(steps)]
        finally:
            twin.close()
        ungraphed = [_ungraphed(step, child, ranges or _no_range) for child in step.children]
        rows = _launches(step) if launches else []
    finally:
        step.runtime.synchronize()
        step.state.restore(saved)
    info = step.info()
    whole = percentiles([total for total, _ in runs])
    children = _children(step, twin.groups, [spans for _, spans in runs], ungraphed, whole[0])
    return Profile(step.plan.name, step.runtime.device.name, step.runtime.driver_kind, steps, *percentiles(plain), *whole,
                   *percentiles(host), info["nodes"], info["longest_chain"], children, rows)  # fmt: skip


def _children(step: StepGraph, timed: list[list[int]], runs: list[list[tuple[float, float]]], ungraphed: list[float],
              whole: float) -> list[ChildTime]:  # fmt: skip
    """Rows of the table: ``timed`` are the positions that were timed together, ``runs`` start and length of each."""
    about = step.rows()

    def row(name: str, at: list[int], parts: list[ChildTime]) -> ChildTime:
        starts = [min(spans[n][0] for n in at) for spans in runs]
        lengths = [max(sum(spans[n]) for n in at) - start for spans, start in zip(runs, starts, strict=True)]
        own = [about[j] for n in at for j in timed[n]]
        median, p90 = percentiles(lengths)
        return ChildTime(name, median, p90, median / whole if whole else 0.0, float(np.median(starts)),
                         sum(ungraphed[j] for n in at for j in timed[n]), sum(a["kernel_nodes"] for a in own),
                         sum(a["nodes"] for a in own), sum(a["chain"] for a in own), parts)  # fmt: skip

    names = [" + ".join(about[j]["name"] for j in group) for group in timed]
    tail = step.plan.tail is not None
    shown = outline.arrange(names[:-1] if tail else names, step.plan.outline)
    shown += [(names[-1], [len(names) - 1])] if tail else []
    chains = {child["name"]: child["chain"] for child in step.info()["children"]}
    found = []
    for name, at in shown:
        if [names[n] for n in at] == [name]:
            found.append(row(name, at, []))
        else:
            made = row(name, at, [row(names[n], [n], []) for n in at])
            found.append(dataclasses.replace(made, chain=chains[name]))
    return found


def _no_range(name: str) -> AbstractContextManager[Any]:
    return nullcontext()


def _plain(step: StepGraph, steps: int) -> tuple[list[float], list[float]]:
    """Microseconds a step, one a block of replays back to back; and host microseconds of each launch."""
    context, stream, block = step.runtime.context, step.runtime.stream, max(1, steps // ROUNDS)
    begin, end = Event(context), Event(context)
    whole, host, executable = [], [], step.single()
    with context.current():
        for _ in range(ROUNDS):
            begin.record(stream)
            for _ in range(block):
                started = time.perf_counter_ns()
                executable.launch(stream)
                host.append((time.perf_counter_ns() - started) / 1e3)
            end.record(stream)
            stream.synchronize()
            whole.append(end.elapsed_ms(begin) * 1e3 / block)
    return whole, host


def _ungraphed(step: StepGraph, child: Child, ranges: Ranges) -> float:
    """The child launch by launch, by events; 0 without the ungraphed module set."""
    if not step.has_ungraphed:
        return 0.0
    begin, end = Event(step.runtime.context), Event(step.runtime.context)
    samples = []
    for _ in range(3):
        begin.record(step.runtime.stream)
        with ranges(child.name):
            step.run_ungraphed(child.name)
        end.record(step.runtime.stream)
        end.synchronize()
        samples.append(end.elapsed_ms(begin) * 1e3)
    return float(np.median(samples))


def _launches(step: StepGraph) -> list[LaunchTime]:
    """Every launch, timed from module instances that nothing else uses, which are unloaded afterwards."""
    runtime, composer = step.runtime, Composer(step.plan, False)
    found = []
    for child in step.children:
        user = f"{step.plan.user(child)}/profile"
        try:
            with runtime.context.current():
                functions = composer.load(child, user)
                found += [_one_launch(step, child, op, functions) for op in child.ops]
        finally:
            runtime.ledger.forget(user, runtime.modules.drop(user))
    return found


def _one_launch(step: StepGraph, child: Child, op: Op, functions: dict[str, Function]) -> LaunchTime:
    context = step.runtime.context
    begin, end = Event(context), Event(context)
    with Stream(context) as stream:
        with capture(stream) as recording:
            for _ in range(REPEATS):
                op.issue(context, stream, functions)
        executable = recording.graph.instantiate(stream)
        executable.upload(stream)
        samples = []
        for n in range(ROUNDS + 1):
            begin.record(stream)
            executable.launch(stream)
            end.record(stream)
            end.synchronize()
            if n:  # the first warms up
                samples.append(end.elapsed_ms(begin) * 1e3 / REPEATS)
        executable.close()
        recording.graph.close()
    median, p90 = percentiles(samples)
    if isinstance(op, KernelOp):
        touched = sum(use.nbytes for use in op.args.uses)
        local = functions[op.kernel].attribute("LOCAL_SIZE_BYTES")
        return LaunchTime(child.name, op.kernel, op.grid, op.block, median, p90, touched, local)
    buffers = [use.buffer for use in op.uses] if isinstance(op, LibraryOp) else [
        b for b in (getattr(op, name, None) for name in ("buffer", "target", "source")) if b is not None]  # fmt: skip
    return LaunchTime(child.name, op.name, (), (), median, p90, sum(b.nbytes for b in buffers), 0)
