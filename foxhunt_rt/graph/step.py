"""StepGraph: the built plan. One launch replays every child."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from foxhunt_rt._names import choose
from foxhunt_rt.driver import Buffer, FoxhuntError, Function, Graph, GraphExec, LifetimeError, captures
from foxhunt_rt.driver.memory import ForeignAllocation
from foxhunt_rt.graph import dot, launch_map, outline, svg
from foxhunt_rt.graph.child import Child, KernelOp
from foxhunt_rt.graph.conditional import Composition, Flag, LoopState
from foxhunt_rt.graph.holdings import Holdings, release
from foxhunt_rt.graph.host_decisions import HostDecisions, SubsetComposer
from foxhunt_rt.graph.isolation import standing
from foxhunt_rt.graph.plan import Composer, StepPlan
from foxhunt_rt.graph.state import State
from foxhunt_rt.graph.updates import (
    NodeName,
    Slot,
    Target,
    apply,
    check_slots,
    node_names,
)
from foxhunt_rt.graph.verify import Verification, verify
from foxhunt_rt.graph.write_check import WriteCheck

if TYPE_CHECKING:
    from foxhunt_rt.graph.profile import Profile


class StepGraph:
    """The executable of a plan. Made by `StepPlan.build`. It keeps everything it names alive: modules, buffers, children.

    In a capture: refused. Synchronizes: yes. Allocates: yes.

    Attributes
    ----------
    times_ms : dict
        What building cost: load, capture, compose, instantiate, upload, warm_up, in milliseconds.
    launch_ns : int
        Host time of the last `launch`, in nanoseconds.
    decided_by : str
        Who decides on gated children and further steps: ``"device"``, ``"host"``, or ``"nobody"`` where nothing is to decide.
    host : HostDecisions or None
        The executables that the host picks among, where it decides on gated children; then there is no one `executable`.
    """

    launch_ns = 0

    def __init__(self, plan: StepPlan, *, total_order: bool, ungraphed: bool, mode: str, steps_per_launch: int = 1,
                 stop: Flag | None = None, decided_by: str = "nobody") -> None:  # fmt: skip
        self.plan, self.runtime, self.mode = plan, plan.runtime, mode
        self.children: list[Child] = plan.sequence()
        self._stream = self.runtime.stream
        self._context = self.runtime.context
        self._closed = False
        self._holdings = Holdings(self.runtime)
        self.steps_per_launch, self.decided_by = steps_per_launch, decided_by
        self._stop = stop if steps_per_launch > 1 else None
        self._composer = composer = Composer(plan, total_order)
        self.times_ms = composer.times_ms
        for child in self.children:
            child.check_alive()
        try:
            self._make(composer, ungraphed, stop)
        except BaseException:
            self._holdings.release()  # a failed build leaves nothing behind
            raise
        self._finalizer = self._context.finalize(self, release, self._holdings)

    def _make(self, composer: Composer, ungraphed: bool, stop: Flag | None) -> None:
        """Loads, captures, composes, instantiates and launches once."""
        plan, steps_per_launch, decided_by = self.plan, self.steps_per_launch, self.decided_by
        on_device = decided_by == "device"
        users = [plan.user(c) for c in self.children]
        self._holdings.users += [f"{plan.name}/conditions", *users, *(f"{user}/ungraphed" for user in users)]
        with self._context.current():
            self._functions = [composer.load(c, plan.user(c)) for c in self.children]
            self._ungraphed: list[dict[str, Function]] | None = None
            if ungraphed:
                self._ungraphed = [composer.load(c, f"{plan.user(c)}/ungraphed") for c in self.children]
                for child, functions in zip(self.children, self._ungraphed, strict=True):
                    for function in functions.values():
                        self.runtime.ledger.ungraphed(function, f"{plan.user(child)}/ungraphed")
            self._conditions = composer.load_conditions(on_device, steps_per_launch > 1)
            self._loop: LoopState | None = None
            if on_device and steps_per_launch > 1:
                self._loop = LoopState(self.runtime, plan.name, steps_per_launch, stop)
                self._holdings.own.append(self._loop.block)
            composer.mark("load")
            self.graphs: list[Graph] = [composer.capture(c, f)
                                        for c, f in zip(self.children, self._functions, strict=True)]  # fmt: skip
            composer.mark("capture")
            self.host: HostDecisions | None = None
            if decided_by == "host" and any(c.when for c in self.children):
                self._decide_on_host()
            else:
                self.composition = composer.compose(self.graphs, self._conditions, self._loop)
                composer.mark("compose")
                self._holdings.graphs += [self.composition.parent, *self.graphs]
                self.executable: GraphExec = composer.instantiate(self.composition.parent)
                self._holdings.executables.append(self.executable)
        self._check = WriteCheck(self.runtime) if self.mode == "debug" else None
        #: Steps that the executable runs when it is launched as it is; 0: a launch takes more than that.
        self._ready = steps_per_launch if self.mode == "on" and decided_by != "host" else 0
        self._child_executables: list[GraphExec] | None = None
        self._single: tuple[Composition, GraphExec] | None = None
        self._nodes: list[NodeName] | None = None
        self._name_what_is_used()
        if launch_map.wanted():
            launch_map.note_plan(plan.name, self.children)
        self._warm_up()
        composer.mark("warm_up")

    def _decide_on_host(self) -> None:
        """The executables that the host picks among. There is no one `executable`, and the composition is for names alone."""
        edges = self.plan.dependencies(self._composer.total_order)
        self._holdings.graphs += self.graphs
        self.host = HostDecisions(self.plan, edges, self.graphs, self._holdings)
        self._composer.mark("instantiate")
        self.composition = SubsetComposer(self.plan, edges, range(len(self.children))).compose(self.graphs)
        self._holdings.graphs.append(self.composition.parent)
        self._composer.mark("compose")

    def _name_what_is_used(self) -> None:
        """Edges, state, and the allocations and modules that this graph keeps."""
        self.edges = self.plan.dependencies(self._composer.total_order)
        self.state = State((b for c in self.children for b in (*c.writes, *c.private)), self.plan.volatile_fields)
        named = [b for c in self.children for b in c.buffers]
        named += [self._loop.block] if self._loop else []
        named += [self._stop.word] if self._stop else []
        self._holdings.pin(b.allocation for b in named)
        self._holdings.pin(
            f.module for fs in [*self._functions, *(self._ungraphed or []), self._conditions] for f in fs.values()
        )
        #: Memory that its owner may move. Our own cannot: while it is pinned it is neither freed nor replaced.
        allocations = {id(b.allocation): b.allocation for b in named}
        self._movable = [a for a in allocations.values() if isinstance(a, ForeignAllocation) and a.where]

    def _warm_up(self) -> None:
        """One launch on a state that is put back: the first launch that counts is like every other."""
        saved = self.state.snapshot()
        if self.mode == "debug":  # so that a fault is named here already
            self.run_ungraphed(synchronize=True)
        else:
            with self._context.current():
                if self.decided_by == "host":
                    self._launch_single()
                else:
                    self.executable.launch(self._stream)
        self._stream.synchronize()
        self.state.restore(saved)

    def launch(self, steps: int | None = None, stream: object | None = None) -> None:
        """Replays the step: one cuGraphLaunch on the runtime's stream.

        Under ``FOXHUNT_GRAPH=off`` or ``debug`` (read when the plan was built) runs ungraphed instead.

        In a capture: refused. Synchronizes: no, but under FOXHUNT_GRAPH=debug and where the host decides. Allocates: may, an
        event the first time with another stream.

        Parameters
        ----------
        steps : int, optional
            Of a graph built with `steps_per_launch` = K: how many steps to run, 1 to K. Default: K. A number other than that of
            the launch before costs one ungraphed launch, in stream order.
        stream : object, optional
            Another library's stream (``__cuda_stream__``, a PyTorch stream, a handle): the step follows what is queued there, and
            what is queued there afterwards follows the step. The host waits for neither.
        """
        started = perf_counter_ns()
        wanted = self.steps_per_launch if steps is None else steps
        context = self._context
        if stream is not None or wanted != self._ready:
            self._launch_otherwise(wanted, stream)
        elif context.usable and not self._movable and context.is_current:
            self.executable.launch(self._stream)  # the usual launch
        else:
            self._replay()
        self.launch_ns = perf_counter_ns() - started

    def _replay(self) -> None:
        """One cuGraphLaunch, with the runtime's context current in it; what was current before is so afterwards."""
        self._context.check_usable()
        for allocation in self._movable:
            allocation.check_in_place()
        with self._context.current():
            self.executable.launch(self._stream)

    def _launch_otherwise(self, wanted: int, stream: object | None) -> None:
        """A launch that is not one call: other steps than before, another stream, or ungraphed."""
        if not 1 <= wanted <= self.steps_per_launch:
            raise FoxhuntError(f"step {self.plan.name}: a launch of {wanted} steps; it was built for 1 to "
                               f"{self.steps_per_launch}: build with steps_per_launch={wanted}")  # fmt: skip
        if stream is not None:
            self._stream.wait(stream)
        if self.mode == "on":
            self.launch_graph(wanted)
        else:
            for _ in range(wanted):
                if not self.stopped():
                    self.run_ungraphed(synchronize=self.mode == "debug")
        if stream is not None:
            self._stream.before(stream)

    def launch_graph(self, steps: int) -> None:
        """`launch` whatever ``FOXHUNT_GRAPH`` says.

        In a capture: refused. Synchronizes: no, but where the host decides. Allocates: no.
        """
        self._check_open()
        if self.decided_by == "host":  # K launches in place of a WHILE node; with a stop flag each is waited for
            with self._context.current():
                for _ in range(steps):
                    if self.stopped():
                        break
                    self._launch_single()
            return
        if self._loop is not None:
            self._loop.latch(steps)
        if self.mode == "on":
            self._ready = steps
        self._replay()

    def _check_open(self) -> None:
        if self._closed:
            raise LifetimeError(f"step {self.plan.name} is closed: build the plan again")

    def _launch_single(self) -> None:
        """Queues one step, whatever the steps of a launch, by `single` or by what the host picks. The caller makes the context
        current."""
        if self.host is not None:
            self.host.step()
        else:
            self.single().launch(self._stream)

    def stopped(self) -> bool:
        """Whether the stop flag of a graph of K steps is raised, so that launches run no step.

        In a capture: refused, where there is a stop flag. Synchronizes: may, where there is a stop flag. Allocates: no.
        """
        return self._stop is not None and self._stop.raised()

    def _require_one_executable(self, what: str) -> None:
        """Refuses what looks into a single executable where the host picks among several."""
        if self.host is not None:
            raise FoxhuntError(f"{what} needs one executable, and the host picks among {len(self.host)} for step "
                               f"{self.plan.name}: build with decisions='device', if the driver can")  # fmt: skip

    def single(self) -> GraphExec:
        """The parent of one step without its WHILE node. The first call composes and instantiates it.

        In a capture: refused. Synchronizes: no. Allocates: may, the first time for K steps a launch.
        """
        self._check_open()
        self._require_one_executable("single()")
        if self._loop is None:
            return self.executable
        if self._single is None:
            with self._context.current():
                made = self._composer.compose(self.graphs, self._conditions)
                self._single = made, made.parent.instantiate(self._stream)
                self._holdings.graphs.append(made.parent)
                self._holdings.executables.append(self._single[1])
        return self._single[1]

    @property
    def conditions(self) -> dict[str, Function]:
        """The kernels that set handles of conditional nodes in this graph."""
        return self._conditions

    @property
    def has_ungraphed(self) -> bool:
        """Whether the ungraphed module set is loaded."""
        return self._ungraphed is not None

    def run_ungraphed(self, child: str | None = None, *, synchronize: bool = False) -> None:
        """Issues the same launches of one step one by one, from the ungraphed module set, all children or one by name.

        With ``synchronize`` waits after each launch, so that a fault names the kernel that caused it. A gated child is decided on
        here, by reading its flag, which synchronizes.

        In a capture: refused. Synchronizes: may, for a gated child and with `synchronize`. Allocates: no.
        """
        self._check_open()
        captures.refuse(f"running step {self.plan.name} ungraphed")
        if self._ungraphed is None:
            raise FoxhuntError("the ungraphed module set is not loaded: build(ungraphed=True)")
        with self._context.current():
            for i in self._select(child):
                if self._due(i):
                    self.children[i].run(self._context, self._stream, self._ungraphed[i], synchronize, self._check)

    def _due(self, i: int) -> bool:
        when = self.children[i].when
        return when is None or when.raised()

    def run_children(self, child: str | None = None) -> None:
        """Launches each child's own executable in program order, all children or one by name. The first call instantiates.

        In a capture: refused. Synchronizes: may, for a gated child. Allocates: may, executables the first time.
        """
        self._check_open()
        with self._context.current():
            if self._child_executables is None:
                self._child_executables = [g.instantiate(self._stream) for g in self.graphs]
                self._holdings.executables += self._child_executables
            for i in self._select(child):
                if self._due(i):
                    self._child_executables[i].launch(self._stream)

    def _select(self, name: str | None) -> list[int]:
        """Positions of the children to run, after a look whether all memory is where it was."""
        for allocation in self._movable:
            allocation.check_in_place()
        if name is None:
            return list(range(len(self.children)))
        found = [i for i, c in enumerate(self.children) if c.name == name]
        if not found:
            raise FoxhuntError(f"no child {name!r}; {choose(name, [c.name for c in self.children], 'the children')}")
        return found

    def verify(self, steps: int = 1, plant: str | None = None) -> Verification:
        """Runs ``steps`` steps ungraphed, child by child, and as the parent, from the same state, and compares every buffer
        that the plan writes, bit for bit; the state is put back. ``plant`` names a child after which one bit is flipped in the
        child-by-child run: the result must then be false and name it.

        In a capture: refused. Synchronizes: yes. Allocates: may, executables the first time.
        """
        return verify(self, steps, plant)

    def profile(self, steps: int = 50, *, launches: bool = True,
                ranges: Callable[[str], AbstractContextManager[Any]] | None = None) -> Profile:  # fmt: skip
        """Times each child in an instrumented twin of the parent, and each launch in a graph that repeats it; the state is put
        back.

        In a capture: refused. Synchronizes: yes. Allocates: yes.

        Parameters
        ----------
        steps : int
            Steps of the twin, each waited for.
        launches : bool
            Time single launches too. Loads a third module set for that, and unloads it.
        ranges : callable, optional
            ``ranges(child_name)`` is a context manager around the child's ungraphed launches, such as an NVTX range.
        """
        from foxhunt_rt.graph.profile import profile

        self._check_open()

        return profile(self, steps, launches, ranges)

    def set(self, child: str, kernel: str, occurrence: int | None = None, /, **values: Any) -> None:
        """Changes launch fields that were recorded as `Slot`, in every executable, for the launches from now on. Captures
        nothing; launches that are queued keep their values. The plan keeps the new ones.

        In a capture: legal. Synchronizes: no. Allocates: no.

        Parameters
        ----------
        child, kernel : str
        occurrence : int, optional
            Which launch of that kernel in the child, from 0. Default: all.
        **values
            New values by field: a buffer for a pointer (one the child declares), a number for a scalar. All are checked as when
            they were recorded.

        Raises
        ------
        BakedValueError
            A field was baked by value: what changes every step lives in a device block.
        foxhunt_rt.kernels.ArgumentError, DeclarationError
            A value does not fit; nothing was changed.
        """
        self._check_open()
        i = self._select(child)[0]
        names = [n for n in self.nodes if n.child == child and n.kernel == kernel]
        if kernel not in self.children[i].kernels:
            raise FoxhuntError(f"child {child} launches no {kernel}: it launches {', '.join(self.children[i].kernels)}")
        if occurrence is not None and not 0 <= occurrence < len(names):
            raise FoxhuntError(
                f"child {child} launches {kernel} {len(names)} times, counted from 0: there is no {occurrence}"
            )
        fresh: list[tuple[NodeName, KernelOp]] = []
        for name in names if occurrence is None else [names[occurrence]]:
            op = self.children[i].ops[name.index]
            assert isinstance(op, KernelOp)
            check_slots(child, op, values)
            fields = {f: Slot(values[f], v.source) if f in values else v for f, v in op.fields.items()}
            fresh.append((name, dataclasses.replace(op, args=self.children[i].pack(kernel, fields), fields=fields)))
        for name, op in fresh:
            targets = []
            if self.host is None:
                targets.append(Target(self.executable, self.composition.parent, name.parent))
            for made, executable in self.host.holders(i) if self.host else ():
                copy = made.parent.embedded(made.nodes[i]).in_order()[name.index]
                targets.append(Target(executable, made.parent, copy.handle))
            if self._single is not None:
                single, executable = self._single
                copy = single.parent.embedded(single.nodes[i]).in_order()[name.position]
                targets.append(Target(executable, single.parent, copy.handle))
            if self._child_executables is not None:
                targets.append(Target(self._child_executables[i], self.graphs[i], name.original))
            else:
                self.graphs[i].set_kernel(name.original, self._functions[i][kernel], op.grid, op.block, op.args.params,
                                          op.shared)  # fmt: skip
            apply(op, self._functions[i][kernel], targets)
            self.children[i].ops[name.index] = op

    @property
    def nodes(self) -> list[NodeName]:
        """Every launch by name, with its node in the child's graph and in the composed parent: a name means the same launch in
        every graph and executable of this step."""
        if self._nodes is None:
            parent = self.composition.parent
            self._nodes = [name for child, graph, node in zip(self.children, self.graphs, self.composition.nodes, strict=True)
                           for name in node_names(child, graph, parent.embedded(node))]  # fmt: skip
        return self._nodes

    def update(self, plan: StepPlan) -> None:
        """Takes over another plan of the same shape, without a new executable: other buffers, values, grids and blocks.

        The plan becomes this graph's: record it for this purpose alone.

        In a capture: refused. Synchronizes: may, to close executables of the old plan. Allocates: yes.

        Raises
        ------
        UpdateRefused
            The driver refuses, with its reason, and the child, node and field that differ; nothing was changed.
        """
        self._check_open()
        captures.refuse(f"updating step {self.plan.name}")
        from foxhunt_rt.graph.whole_update import update

        update(self, plan)

    def _take_over(self, plan: StepPlan, composer: Composer, graphs: list[Graph], made: Composition | None,
                   functions: list[dict[str, Function]], ungraphed: list[dict[str, Function]] | None) -> None:  # fmt: skip
        """Puts another plan in place of this one. ``made`` is its parent, None where this graph keeps its own."""
        self._close_copies()
        for graph in [*([self.composition.parent] if made or self.host else []), *self.graphs]:
            graph.close()
        self._holdings.unpin()
        self.plan, self.children, self._composer = plan, plan.sequence(), composer
        self.graphs, self._functions, self._ungraphed = graphs, functions, ungraphed
        self.composition = made or self.composition
        if self.host is not None:
            self.host.clear()
            self._holdings.executables, self._holdings.graphs = [], []
            with self._context.current():
                self._decide_on_host()
        else:
            self._holdings.executables, self._holdings.graphs = [self.executable], [self.composition.parent, *graphs]
        self._name_what_is_used()

    def _close_copies(self) -> None:
        """Closes executables that are made when they are first asked for."""
        for executable in [*(self._child_executables or []), *([self._single[1]] if self._single else [])]:
            executable.close()
        if self._single is not None:
            self._single[0].parent.close()
        self._child_executables, self._single, self._nodes = None, None, None

    def where(self, kernel: str) -> list[str]:
        """Names of the children that launch ``kernel``."""
        return [c.name for c in self.children if kernel in c.kernels]

    def rows(self) -> list[dict[str, Any]]:
        """Graph children in program order, the epilogue last, with kernels, modules, nodes, chain and isolation: JSON-ready."""
        rows: list[dict[str, Any]] = []
        for child, functions, graph in zip(self.children, self._functions, self.graphs, strict=True):
            others = [f for f in self._functions if f is not functions]
            kinds = [n.kind for n in graph.nodes()]
            rows.append({"name": child.name, "kernels": child.kernels,
                         "modules": sorted({f.module.name for f in functions.values()}),
                         "nodes": len(kinds), "kernel_nodes": kinds.count("kernel"), "chain": graph.longest_chain(),
                         "when": str(child.when) if child.when else None,
                         "isolation": standing(functions, others, self.runtime.ledger, self.plan.user(child)),
                         "reads": [b.label for b in child.reads], "writes": [b.label for b in child.writes]})  # fmt: skip
        return rows

    def info(self) -> dict[str, Any]:
        """Children with kernels, modules and isolation, nodes, edges, longest chain, state bytes, build times: JSON-ready.

        ``children`` are in the order of `StepPlan.outline`; one that is made of parts has their rows in ``parts``, which is empty
        otherwise. ``edges`` are between parts.
        """
        rows = self.rows()
        gate = 2 * (self.decided_by == "device")  # the node that decides, and the IF node
        chains = [r["chain"] + gate * (r["when"] is not None) for r in rows]
        depth: list[int] = []
        for j, length in enumerate(chains):
            depth.append(length + max((depth[i] for i, k in self.edges if k == j), default=0))
        tail = len(rows) if self.plan.tail is None else len(rows) - 1
        return {"plan": self.plan.name, "children": outline.children(rows[:tail], self.edges, self.plan.outline),
                "epilogue": rows[tail:], "edges": [[rows[i]["name"], rows[j]["name"]] for i, j in self.edges],
                "steps_per_launch": self.steps_per_launch, "if_nodes": self.composition.branches,
                "condition_nodes": self.composition.setters, "decided_by": self.decided_by,
                "pieces": len(self.host.pieces) if self.host else 1,
                "executables": len(self.host) if self.host else 1,
                "features_missing": list(self.runtime.features.missing),
                "nodes": sum(r["nodes"] for r in rows), "kernel_nodes": sum(r["kernel_nodes"] for r in rows),
                "longest_chain": max(depth), "state_bytes": self.state.nbytes,
                "build_ms": {k: round(v, 3) for k, v in self.times_ms.items()}}  # fmt: skip

    def dot(self) -> str:
        """The graph in Graphviz's language: a cluster a child, its parts inside, an edge a dependency."""
        return dot.render(self)

    def svg(self) -> str:
        """The same as a picture, without Graphviz: a box a child with its launches, an arrow a dependency, time downwards."""
        return svg.render(self)

    def buffers(self) -> list[Buffer]:
        """Every buffer that the plan names."""
        return list({(b.ptr, b.nbytes): b for c in self.children for b in c.buffers}.values())

    def close(self) -> None:
        """Waits for the stream, destroys the executables and lets go of buffers and modules. Idempotent. A graph that is
        collected does the same.

        In a capture: refused. Synchronizes: yes. Allocates: yes.
        """
        if self._closed:
            return
        captures.refuse(f"closing step {self.plan.name}")
        self._closed, self._ready = True, 0
        self._finalizer()
