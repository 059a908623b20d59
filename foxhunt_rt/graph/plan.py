"""StepPlan: children in program order, and how they become one executable."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from foxhunt_rt._names import choose
from foxhunt_rt.driver import Buffer, CaptureError, FoxhuntError, Function, Graph, GraphExec, Stream, capture, captures
from foxhunt_rt.graph.child import Child, KernelOp, LibraryOp, Op
from foxhunt_rt.graph.conditional import Composition, ConditionalComposer, Flag, LoopState
from foxhunt_rt.graph.isolation import IsolationError

if TYPE_CHECKING:
    from foxhunt_rt.graph.runtime import Runtime
    from foxhunt_rt.graph.step import StepGraph


class StepPlan:
    """Children in program order. Made by `Runtime.plan`; nothing runs until `build`.

    The edges between children follow program order over the declared reads and writes, so that independent children run side
    by side. An epilogue follows everything.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime, self.name = runtime, name
        self.children: list[Child] = []
        self.tail: Child | None = None
        self._last_after: dict[str, str] = {}  # child -> the last one that was put after it
        #: Names of children in the order in which lists and pictures show them; empty: in program order. A child named
        #: ``aux.cql`` is shown as a part of ``aux``.
        self.outline: tuple[str, ...] = ()
        #: JSON-ready facts by name that a golden replay carries along, such as measured choices
        self.notes: dict[str, Any] = {}
        self._volatile: dict[int, tuple[Buffer, tuple[str, ...]]] = {}
        runtime._plans[name] = self

    def child(self, name: str, reads: Iterable[Buffer], writes: Iterable[Buffer], private: Iterable[Buffer] = (),
              when: Flag | None = None, scratch: Iterable[Buffer] = (), *, before: str | None = None,
              after: str | None = None) -> Child:  # fmt: skip
        """A new child, to record in a with block. See `Child` for the parameters.

        With `when` it runs only on steps on which that flag is raised: behind an IF node of the composed parent, whose cost is
        in docs/conditionals.md. Consecutive children with one flag share one.

        With `before` or `after`, the name of a child of this plan, it takes that place in program order instead of the last:
        what it reads and writes then orders it among the others as if it had been recorded there. Several with the same anchor
        stand in the order in which they were recorded.

        A name with a dot, ``aux.cql``, makes it a part of ``aux``: a child of the graph like any other, which lists, profiles and
        pictures show under that name.

        Raises
        ------
        FoxhuntError
            The name is taken, or the anchor is no child of this plan.
        """
        at = self._place(name, before, after)
        child = Child(name, reads, writes, private, when, scratch)
        self.runtime.check_own(f"child {name}", *child.buffers)
        child.products = self.runtime.products
        self.children.insert(at, child)
        return child

    def child_from_graph(self, name: str, graph: Any, reads: Iterable[Buffer], writes: Iterable[Buffer],
                         when: Flag | None = None, *, before: str | None = None, after: str | None = None) -> Child:  # fmt: skip
        """A child from a graph that another library captured: a PyTorch ``CUDAGraph(keep_graph=True)``, a cuda.core graph, a raw
        ``CUgraph``.

        `before` and `after` place it as they do in `child`. Its launches are unknown, so ``reads`` and ``writes`` cannot be
        checked: edges and verification go by them. Its kernels count as foreign in the ledger. Whatever memory its nodes name
        must stay where it is; ``graph`` is kept alive.

        In a capture: legal. Synchronizes: no. Allocates: yes.

        Raises
        ------
        ForeignGraphError
            It is no graph, is empty, or holds a node that no child may hold (conditional, allocation, free, host).
        """
        from foxhunt_rt.graph.foreign import ForeignChild

        at = self._place(name, before, after)
        with self.runtime.context.current():
            child = ForeignChild(name, self.runtime.context, graph, reads, writes, when)
        self.runtime.check_own(f"child {name}", *child.buffers)
        self.children.insert(at, child)
        return child

    def _place(self, name: str, before: str | None, after: str | None) -> int:
        """Where in `children` a new child goes."""
        names = [c.name for c in self.children]
        if name in names:
            raise FoxhuntError(f"plan {self.name} has a child {name} already: give this one another name")
        if before is not None and after is not None:
            raise FoxhuntError(f"child {name}: give before={before!r} or after={after!r}, not both")
        anchor = before or after
        if anchor is None:
            return len(names)
        if anchor not in names:
            raise FoxhuntError(f"child {name}: plan {self.name} has no child {anchor} to stand beside; "
                               f"{choose(anchor, names, 'its children')}")  # fmt: skip
        if before is not None:
            return names.index(before)
        last = self._last_after.get(anchor, anchor)
        self._last_after[anchor] = name
        return names.index(last) + 1

    def epilogue(self, name: str, reads: Iterable[Buffer] = (), writes: Iterable[Buffer] = (),
                 private: Iterable[Buffer] = ()) -> Child:  # fmt: skip
        """Like `StepPlan.child`, for the one recipe that follows every other: it joins all ends of the step."""
        if self.tail is not None:
            raise FoxhuntError(f"plan {self.name} has an epilogue already ({self.tail.name})")
        child = Child(name, reads, writes, private)
        self.runtime.check_own(f"child {name}", *child.buffers)
        child.products = self.runtime.products
        self.tail = child
        return self.tail

    def volatile(self, buffer: Buffer, *fields: str) -> None:
        """Declares struct fields of a buffer (or, with no field, all of it) as never the same twice, such as timestamps:
        verification leaves them out."""
        self._volatile[buffer.ptr] = (buffer, fields)

    @property
    def volatile_fields(self) -> list[tuple[Buffer, tuple[str, ...]]]:
        """What `volatile` declared: buffers, each with its fields, none for all of it."""
        return list(self._volatile.values())

    def sequence(self) -> list[Child]:
        """Children in program order, the epilogue last."""
        return [*self.children, *([self.tail] if self.tail else [])]

    def dependencies(self, total_order: bool = False) -> list[tuple[int, int]]:
        """Edges (earlier, later) between positions of `sequence`, without those that others imply."""
        order = self.sequence()
        reach: list[set[int]] = []  # what must be done before each child
        edges: list[tuple[int, int]] = []
        for j, child in enumerate(order):
            is_tail = child is self.tail
            needed = [i for i in range(j) if is_tail or (total_order and i == j - 1) or child.must_follow(order[i])]
            before: set[int] = set()
            for i in reversed(needed):
                if i not in before:
                    edges.append((i, j))
                before |= {i} | reach[i]
            reach.append(before)
        return sorted(edges)

    def user(self, child: Child) -> str:
        """The ledger's name of a child of this plan."""
        return f"{self.name}/{child.name}"

    def build(self, *, total_order: bool = False, ungraphed: bool = True, steps_per_launch: int = 1,
              stop: Flag | None = None, decisions: str = "auto") -> StepGraph:  # fmt: skip
        """Loads every module, captures every child, composes, instantiates, uploads and runs once on a restored state.

        Parameters
        ----------
        total_order : bool
            Put an edge between each child and the next, whatever they touch.
        ungraphed : bool
            Load the second module set too, with which `run_ungraphed` and `verify` work.
        steps_per_launch : int
            K: one launch runs so many steps, inside a WHILE node; `StepGraph.launch` may ask for fewer.
        stop : Flag, optional
            With K above 1: once a step has raised it, no further step runs, in this launch or a later one. For guards.

        decisions : str
            Who decides on gated children and on one more step: ``"device"`` by conditional nodes; ``"host"``, which reads the
            flags and so waits for the device, and picks a plain or a due executable; ``"auto"``: the device where the driver
            has conditional nodes. `StepGraph.info` tells which it is.

        Returns
        -------
        StepGraph

        Raises
        ------
        FoxhuntError
            ``decisions="device"`` on a driver without conditional nodes.
        IsolationError, CaptureError, DriverError
            Whatever is found wrong; a failed build leaves no stream capturing.

        Notes
        -----
        In a capture: refused. Synchronizes: yes. Allocates: yes.

        Allocates, loads and synchronizes. The environment variable ``FOXHUNT_GRAPH`` (``off``, ``debug``) makes the result launch
        ungraphed, with a synchronization after each launch under ``debug``.
        """
        from foxhunt_rt.graph.step import StepGraph

        captures.refuse(f"building plan {self.name}")
        mode = os.environ.get("FOXHUNT_GRAPH", "on")
        if mode not in ("on", "off", "debug"):
            raise FoxhuntError(f"FOXHUNT_GRAPH={mode!r} is unknown: use on, off or debug")
        if not self.children:
            raise FoxhuntError(f"plan {self.name} has no child: record at least one before build()")
        if steps_per_launch < 1:
            raise FoxhuntError(f"plan {self.name}: {steps_per_launch} steps a launch; give at least 1")
        if stop is not None:
            self.runtime.check_own(f"the stop flag of plan {self.name}", stop.word)
        return StepGraph(self, total_order=total_order, ungraphed=ungraphed or mode != "on", mode=mode,
                         steps_per_launch=steps_per_launch, stop=stop,
                         decided_by=self._decided_by(decisions, steps_per_launch))  # fmt: skip

    def _decided_by(self, decisions: str, steps_per_launch: int) -> str:
        """``"device"``, ``"host"``, or ``"nobody"`` where there is nothing to decide."""
        if decisions not in ("auto", "device", "host"):
            raise FoxhuntError(f"decisions={decisions!r} is unknown: use auto, device or host")
        if steps_per_launch == 1 and not any(c.when for c in self.sequence()):
            return "nobody"
        if decisions == "host":
            return "host"
        reason = self.runtime.features.reason("conditional_nodes")
        if reason and decisions == "device":
            raise FoxhuntError(
                f"plan {self.name}: the driver has no conditional nodes ({reason}): build with decisions='auto'"
            )
        return "host" if reason else "device"


class Composer:
    """Captures the children of a plan and composes the parent. Times its parts in milliseconds."""

    def __init__(self, plan: StepPlan, total_order: bool) -> None:
        self.plan, self.total_order = plan, total_order
        self.runtime = plan.runtime
        self.times_ms: dict[str, float] = {}
        self._clock = time.perf_counter()

    def mark(self, part: str) -> None:
        now = time.perf_counter()
        self.times_ms[part] = self.times_ms.get(part, 0.0) + (now - self._clock) * 1e3
        self._clock = now

    def load(self, child: Child, user: str) -> dict[str, Function]:
        """Functions of one user for every kernel of a child, with room for its dynamic shared memory."""
        functions = {k: self.runtime.modules.function(user, k) for k in child.kernels}
        for op in child.ops:
            if isinstance(op, KernelOp):
                function = functions[op.kernel]
                function.allow_dynamic_shared(op.shared)
                if op.block[0] * (op.block[1:2] or (1,))[0] > function.max_threads:
                    raise FoxhuntError(f"{op.kernel}: a block of {op.block} is more than the {function.max_threads} "
                                       "threads its registers allow: launch smaller blocks")  # fmt: skip
        return functions

    def capture(self, child: Child, functions: dict[str, Function]) -> Graph:
        """Captures a child on a stream of its own, and checks what the driver recorded against what was issued."""
        from foxhunt_rt.graph.foreign import ForeignChild

        context = self.runtime.context
        if isinstance(child, ForeignChild):
            self.runtime.ledger.note_foreign(self.plan.user(child), child.kernel_count)
            return child.graph.clone()
        for function in functions.values():
            self.runtime.ledger.captured(function, self.plan.user(child))
        calls = [op for op in child.ops if isinstance(op, LibraryOp)]
        for op in calls:
            op.learn(context)
        if calls:
            self.runtime.ledger.note_foreign(self.plan.user(child), sum(op.kinds.count("kernel") for op in calls))
        with Stream(context) as stream:
            with capture(stream) as recording:
                child.run(context, stream, functions)
            graph = recording.graph
        check_recorded(child, graph, functions)
        for function in functions.values():
            function.seal()
        return graph

    def load_conditions(self, on_device: bool, looped: bool) -> dict[str, Function]:
        """The kernels that set handles of conditional nodes, for this plan alone; none where it has no such node."""
        names = ["set_conditions"] * any(c.when for c in self.plan.sequence()) + ["begin_loop", "next_step"] * looped
        names = names if on_device else []
        user = f"{self.plan.name}/conditions"
        functions = {name: self.runtime.modules.function(user, name) for name in names}
        for function in functions.values():
            self.runtime.ledger.captured(function, user)
        return functions

    def compose(
        self, graphs: list[Graph], functions: dict[str, Function], loop: LoopState | None = None
    ) -> Composition:
        """The parent: one child-graph node per child, edges from `StepPlan.dependencies`."""
        edges = self.plan.dependencies(self.total_order)
        return ConditionalComposer(self.plan, edges, functions, loop).compose(graphs)

    def instantiate(self, parent: Graph) -> GraphExec:
        executable = parent.instantiate(self.runtime.stream)
        self.mark("instantiate")
        executable.upload(self.runtime.stream)
        self.runtime.stream.synchronize()
        self.mark("upload")
        return executable


def node_owners(child: Child) -> list[tuple[Op, int]]:
    """For each node of a child's graph, in the order of issue, the launch it came from and which of its nodes it is."""
    return [(op, part) for op in child.ops for part in range(len(op.kinds) if isinstance(op, LibraryOp) else 1)]


def check_recorded(child: Child, graph: Graph, functions: dict[str, Function]) -> None:
    """The captured nodes are exactly the launches issued, in kind, function and shape.

    A launch that slipped to another stream is missing here (and its replay would look faster); a function of another child
    is a breach of isolation that no ledger saw.
    """
    nodes, owners = graph.in_order(), node_owners(child)
    if len(nodes) != len(owners):
        raise CaptureError(f"child {child.name} issued {len(owners)} launches, but the capture holds {len(nodes)} "
                           "nodes: a launch went to another stream")  # fmt: skip
    own = {f.key: name for name, f in functions.items()}
    issued: dict[tuple[str, tuple[int, ...]], int] = {}
    for op in child.ops:
        if isinstance(op, KernelOp):
            key = (op.kernel, (*op.grid, 1, 1)[:3])
            issued[key] = issued.get(key, 0) + 1
    for node, (op, part) in zip(nodes, owners, strict=True):
        if isinstance(op, LibraryOp):
            if node.kind != op.kinds[part]:
                raise CaptureError(
                    f"child {child.name}: {op.name} became a {node.kind} node, alone a {op.kinds[part]} node"
                )
            continue
        if node.kind == "host":
            raise CaptureError(f"child {child.name} captured a host node: Python has no place in a replayed graph")
        if node.kind != "kernel":
            continue
        if node.function not in own:
            raise IsolationError(f"child {child.name} captured a function that its module pool did not hand out: "
                                 "launch through child.launch")  # fmt: skip
        key = (own[node.function], node.grid)
        if not issued.get(key):
            raise CaptureError(f"child {child.name}: the capture holds a launch of {key[0]} with grid {key[1]} that "
                               "was not issued")  # fmt: skip
        issued[key] -= 1
    for (kernel, grid), left in issued.items():
        if left:
            raise CaptureError(f"child {child.name}: a launch of {kernel} with grid {grid} is not in the capture: it went to "
                               "another stream")  # fmt: skip
