"""One case for every public function, method and property: what to call, once everything that the call needs is there.

A case takes the `World` and returns a callable; only that call is traced. A new public name without a case fails the test. An
answer that begins with "may" has a second case, named with ``#`` behind the entry, in which it comes out the other way.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from foxhunt_rt import config, dqn, driver, graph, interop, kernels, replay, testing
from foxhunt_rt.driver import DeviceBuffer, Event, Graph, MappedBuffer, Module, Stream, features
from foxhunt_rt.gemm import ChoiceTable, Products, ProductSpec
from foxhunt_rt.gemm.products import ProductCall
from foxhunt_rt.graph import (
    Child,
    ChildTimes,
    Flag,
    Flattened,
    Golden,
    Ledger,
    ModulePool,
    PlanningRuntime,
    Recorder,
    Replayer,
    Runtime,
    Slot,
    State,
    StepPlan,
    StepTimer,
    Watchdog,
)
from foxhunt_rt.graph.write_check import WriteCheck

N = 64
COUNT = itertools.count()
ENDS = np.zeros(1, bool)


class Watching(dqn.Extension):
    """Keeps the view of the step that it is given."""

    name, metrics, trunk_gradient, appends = "watching", ("seen",), True, 2
    next_values = True

    def parameters(self, layout: dqn.NetworkLayout) -> list[dqn.ParameterGroup]:
        tensor = dqn.Tensor("bias", (16,), decayed=False, bound=0.0)
        return [dqn.ParameterGroup(self.name, (tensor,), lr_factor=1.0, max_grad_norm=None)]

    def record(self, step: dqn.StepView) -> None:
        self.view = step
        group = step.group(self.name)
        written = [step.metric("seen"), step.trunk_gradient(self.name), *group.gradient]
        rows = step.appended(self.name).sampled
        with step.child(f"{self.name}.rows {next(COUNT)}", [], rows, after="per_sample") as child:
            for buffer in rows:
                child.memset(buffer)
        with step.child(f"{self.name}.values {next(COUNT)}", [], [step.next_values], before="ddqn") as child:
            child.memset(step.next_values)
        with step.child(f"{self.name} {next(COUNT)}", [], written, after="ddqn") as child:
            for buffer in written[:3]:
                child.memset(buffer)
            group.record_squares(child)


class World:
    """What calls need. `rt` is the runtime whose stream is captured; parts that are not used up are made once."""

    def __init__(self, rt: Runtime, folder: Path) -> None:
        self.rt, self.folder = rt, folder

    def ready(self) -> World:
        """Itself, with all that is made once made: no call that is looked at makes it on the way, whichever is first."""
        for name, part in vars(type(self)).items():
            if isinstance(part, cached_property):
                getattr(self, name)
        return self

    @cached_property
    def x(self) -> DeviceBuffer:
        return self.rt.zeros(N, np.float32, "x")

    @cached_property
    def y(self) -> DeviceBuffer:
        return self.rt.zeros(N, np.float32, "y")

    @cached_property
    def word(self) -> DeviceBuffer:
        return self.rt.zeros(1, np.uint32, "word")

    @cached_property
    def other(self) -> Stream:
        """A stream that the runtime's has been ordered with before, and that is never captured."""
        stream = Stream(self.rt.context)
        self.rt.stream.wait(stream)
        return stream

    @cached_property
    def events(self) -> tuple[Event, Event]:
        """Two events, recorded and done."""
        pair = Event(self.rt.context), Event(self.rt.context)
        for event in pair:
            event.record(self.other)
        self.other.synchronize()
        return pair

    @cached_property
    def warm_user(self) -> graph.UngraphedUser:
        user = self.rt.ungraphed("legality.warm")
        user.launch("add_scalar", (1,), (N,), dict(x=self.x, value=1.0, n=N))
        return user

    def fresh_user(self) -> graph.UngraphedUser:
        return graph.UngraphedUser(self.rt, self.rt._unique("legality.fresh"))

    @cached_property
    def mapped(self) -> MappedBuffer:
        return self.rt.mapped(4, np.int32, "mapped")

    def plan(self, when: Flag | None = None, slot: float = 1.0) -> StepPlan:
        """A plan of two children."""
        plan = self.rt.plan("legality")
        with plan.child("add", reads=[], writes=[self.x], when=when) as child:
            child.launch("add_scalar", (1,), (N,), dict(x=self.x, value=Slot(slot), n=N))
        with plan.child("copy", reads=[self.x], writes=[self.y]) as child:
            child.copy(self.y, self.x)
        return plan

    @cached_property
    def step(self) -> graph.StepGraph:
        step = self.plan().build()
        step.run_children()
        return step

    @cached_property
    def gated(self) -> graph.StepGraph:
        return self.plan(when=Flag(self.word)).build()

    @cached_property
    def looped(self) -> graph.StepGraph:
        step = self.plan().build(steps_per_launch=4, stop=Flag(self.word))
        step.single()
        return step

    @property
    def second(self) -> World:
        """Another runtime, whose stream has not been ordered with any."""
        return World(Runtime(), self.folder)

    def used(self) -> graph.StepGraph:
        """A step with executables of its children."""
        step = self.plan().build()
        step.run_children()
        return step

    def open(self, name: str = "open") -> Child:
        """A child inside its with block."""
        return self.rt.plan("recording").child(name, reads=[self.x], writes=[self.y]).__enter__()

    @cached_property
    def function(self) -> driver.Function:
        return self.rt.modules.function("legality", "add_scalar")

    def packed(self) -> int:
        self._packed = kernels.pack("add_scalar", dict(x=self.x, value=1.0, n=N))
        return self._packed.params

    def kernel_folder(self) -> Path:
        """A folder of somebody's own kernels, without an image that could be loaded."""
        name = f"own_{len(list(self.folder.glob('own_*')))}"
        folder = self.folder / name
        (folder / "abi").mkdir(parents=True)
        (folder / "abi" / "own.h").write_text(f"typedef struct {{\n    float *x;  //@ inout f32[n]\n    int32_t n; //@ elements\n"
                                              f"    uint32_t pad0_; //@ pad\n}} {name}_args;\n")  # fmt: skip
        index = {name: {"image": name, "args": f"{name}_args", "form": "threads"}}
        (folder / "kernels.json").write_text(json.dumps(index))
        return folder

    def kernel_source(self) -> Path:
        """A source with its header beside it, to compile."""
        folder = self.kernel_folder()
        source = folder / f"{folder.name}.cu"
        (folder / f"{folder.name}.h").write_text((folder / "abi" / "own.h").read_text())
        source.write_text(f'#include "lib/kernel.h"\n#include "abi/types.h"\n#include "abi/{folder.name}.h"\n'
                          f"FX_KERNEL({folder.name}) {{ a.x[0] = 0; }}\n")  # fmt: skip
        return source

    def hold(self, thing: Graph) -> Graph:
        """Keeps something alive beyond the call that is traced."""
        self._held = thing
        return thing

    def captured(self) -> Graph:
        """A graph of one kernel node."""
        with Stream(self.rt.context) as stream, driver.capture(stream) as recording:
            self.function.launch((1,), (N,), self.packed(), stream)
        return recording.graph

    def node(self, graph: Graph) -> Any:
        return graph.nodes()[0].handle

    @cached_property
    def golden(self) -> Golden:
        return Recorder(self.step, detail="launches").record()

    @cached_property
    def image(self) -> bytes:
        return bytes(kernels.images.find("add_scalar", self.rt.device.architecture).read())

    @cached_property
    def replay(self) -> replay.Replay:
        ring = replay.Replay(self.rt, 256, 4)
        self.staging = ring.staging(1)
        self.insert(ring)()
        return ring

    def insert(self, ring: replay.Replay, method: str = "insert_batch") -> Callable[[], Any]:
        state = np.zeros((1, 4), np.float32)
        return lambda: getattr(ring, method)(self.staging, np.zeros(1, np.int32), np.zeros(1), ENDS, ENDS, state=state,
                                             next_state=state)  # fmt: skip

    def recording(self, what: str) -> Callable[[], Any]:
        """A `record_...` of the replay into an open child that declares everything."""
        ring = self.replay
        batch = replay.Batch.allocate(self.rt, 32, 4, 3)
        step = self.rt.zeros(1, kernels.abi.dtype("step_block"), "step")
        named = [*ring.sample_reads, *ring.insert_writes(self.staging), *self.staging.buffers, *batch.sampled, batch.td_error,
                 step]  # fmt: skip
        child = self.rt.plan("recording").child("any", named, named).__enter__()
        arguments = {
            "record_sample": (batch, step),
            "record_transitions": (batch, step),
            "record_priorities": (batch, step),
            "record_windows": (batch,),
            "record_insert": (self.staging,),
        }
        return lambda: getattr(ring, what)(child, *arguments[what])

    def pushing(self) -> Callable[[], Any]:
        """A push of a history into an open child that declares everything."""
        history, state = replay.History(self.rt, 1, 4, 32, "history"), self.rt.zeros((1, 4), "f4", "state")
        child = self.rt.plan("pushing").child("any", [state], history.windows.buffers()).__enter__()
        return lambda: history.record_push(child, state)

    @cached_property
    def config(self) -> config.Config:
        return config.Config.profile("smoke").merged(
            {"network": {"hidden": [32, 32]}, "replay": {"capacity": 256, "batch": 32}}
        )

    @cached_property
    def agent(self) -> dqn.Agent:
        agent = dqn.Agent(4, [2], self.config, self.rt, environments=1)
        for _ in range(64):
            self.observe(agent)()
        agent.step()
        agent.drain()
        return agent

    def observe(self, agent: dqn.Agent) -> Callable[[], Any]:
        state = np.zeros((1, 4), np.float32)
        return lambda: agent.observe(state, np.zeros(1, np.int32), np.zeros(1), state, ENDS, ENDS)

    @cached_property
    def learner(self) -> dqn.Learner:
        return self.agent.learner

    @cached_property
    def view(self) -> dqn.StepView:
        self.watching = watching = Watching()
        self._watched = dqn.Learner(self.rt, self.config, 4, [2], extensions=[watching])
        return watching.view

    @cached_property
    def snapshot(self) -> dqn.PolicySnapshot:
        return self.agent.snapshot()

    @cached_property
    def policy(self) -> dqn.Policy:
        policy = dqn.Policy(self.rt, self.learner.layout, self.learner.control.buffer, 1)
        policy.set_exploration(0.0)
        return policy

    def acting(self) -> Callable[[], Any]:
        state, action = self.rt.zeros((1, 32), np.float32, "state"), self.rt.zeros(1, np.int32, "action")
        theta = self.learner.adam.theta
        child = (
            self.rt.plan("acting").child("act", self.policy.reads(theta, state), self.policy.writes(action)).__enter__()
        )
        return lambda: self.policy.record_act(child, theta, state, action)

    @cached_property
    def profile(self) -> graph.Profile:
        return self.step.profile(2, launches=False)


def inside(manager: Callable[[], Any]) -> Callable[[], Any]:
    """Enters and leaves a context manager."""

    def run() -> None:
        with manager():
            pass

    return run


def current(w: World, run: Callable[[], Any]) -> Callable[[], Any]:
    """For what leaves it to the caller to make the context current, since it is called often."""

    def inner() -> Any:
        with w.rt.context.current():
            return run()

    return inner


def loaded(pool: ModulePool) -> ModulePool:
    pool.function("one", "add_scalar")
    return pool


def planned(runtime: PlanningRuntime | None = None) -> PlanningRuntime:
    return runtime or PlanningRuntime("host")


def hooked(method: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: method(*arguments)


def tried(w: World) -> driver.Features:
    assert not w.rt.features.missing
    return w.rt.features


def untried(w: World) -> driver.Features:
    """As in a process in which nobody has asked for conditional nodes yet."""
    features._trials.clear()
    return driver.Features(w.rt.context)


def product(w: World) -> Callable[[], Any]:
    a, b, out = (w.rt.zeros((16, 16), np.float32, "matrix") for _ in range(3))
    bias = w.rt.zeros(16, np.float32, "bias")
    child = Child("product", [a, b, bias], [out])
    child.products = Products(w.rt, ChoiceTable())
    child.__enter__()
    return lambda: child.gemm(a, b, out, bias=bias, epilogue="bias")


def foreign(w: World) -> Callable[[], Any]:
    plan, other = w.rt.plan("foreign"), w.captured()
    return lambda: plan.child_from_graph("foreign", other, reads=[], writes=[w.x])


def conditional(w: World) -> Callable[[], Any]:
    graph = Graph(w.rt.context)
    handle = graph.conditional_handle()
    return lambda: graph.add_conditional("IF", handle, [])


def watched(w: World) -> Watchdog:
    return Watchdog(w.step, limit_s=30)


class Described:
    """An array of somebody else's, by the CUDA array interface alone."""

    def __init__(self, buffer: DeviceBuffer, stream: int | None = None) -> None:
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, "stream": stream}


Case = Callable[[World], Callable[[], Any]]


def blocks(w: World, method: str) -> Callable[[], Any]:
    """A child of a block, in the view of a learner whose layout names one."""
    name = f"more {next(COUNT)}"
    view = dataclasses.replace(w.view, layout=SimpleNamespace(blocks=[SimpleNamespace(name=name)]))  # type: ignore[arg-type]
    return hooked(getattr(view, method), name, [w.x], [w.y])


def attribute(get: Callable[[World], Any], *names: str) -> dict[str, Case]:
    """Cases of properties and of methods without arguments."""
    cases: dict[str, Case] = {}
    for name in names:

        def case(w: World, name: str = name) -> Callable[[], Any]:
            target = get(w)

            def run() -> Any:
                value = getattr(target, name.partition(".")[2])
                return value() if callable(value) and not isinstance(value, type) else value

            return run

        cases[name] = case
    return cases


CASES: dict[str, Case] = {
    # ---------------------------------------------------------------- driver
    "driver.call": lambda w: lambda: driver.call(w.rt.context.cu.cuDeviceGetCount),
    "driver.capture": lambda w: (lambda other: inside(lambda: driver.capture(other)))(w.other),
    "driver.find_library": lambda w: hooked(driver.find_library, "cublasLt"),
    "driver.gpu_count": lambda w: driver.gpu_count,
    "driver.hostsim": lambda w: driver.hostsim,
    "driver.kind": lambda w: driver.kind,
    "driver.live_allocations": lambda w: driver.live_allocations,
    "driver.live_bytes": lambda w: hooked(driver.live_bytes, w.rt.context),
    "driver.shim": lambda w: driver.shim,
    "driver.load": lambda w: driver.load,
    "driver.copy_device": lambda w: hooked(driver.copy_device, w.rt.context, w.y, w.x, w.rt.stream),
    "driver.memset": lambda w: hooked(driver.memset, w.rt.context, w.x, 0, w.rt.stream),
    "driver.memset_pattern": lambda w: hooked(driver.memset_pattern, w.x, 0),
    "Buffer()": lambda w: hooked(driver.Buffer, w.x.allocation, 0, (N,), np.dtype("f4"), "again"),
    **attribute(lambda w: w.x, "Buffer.size", "Buffer.alive", "Buffer.__cuda_array_interface__", "Buffer.__dlpack_device__",
                "Buffer.__dlpack__", "DeviceBuffer.to_numpy", "DeviceBuffer.fill"),
    "Buffer.__getitem__": lambda w: lambda: w.x[1:3],
    "Buffer.view": lambda w: lambda: w.x.view((N,), np.int32),
    "Buffer.free": lambda w: w.rt.zeros(4, "f4", "freed").free,
    "DeviceBuffer.allocate": lambda w: lambda: DeviceBuffer.allocate(w.rt.stream, 4, "f4", "made"),
    "DeviceBuffer.copy_from": lambda w: lambda: w.x.copy_from(np.zeros(N, np.float32)),
    "DeviceBuffer.copy_from_device": lambda w: hooked(w.x.copy_from_device, w.y),
    "MappedBuffer.allocate": lambda w: lambda: MappedBuffer.allocate(w.rt.stream, 4, "f4", "made"),
    **attribute(lambda w: w.mapped, "MappedBuffer.host", "MappedBuffer.poll", "MappedBuffer.to_numpy"),
    "MappedBuffer.copy_from": lambda w: lambda: w.mapped.copy_from(np.zeros(4, np.int32)),
    "MappedBuffer.read": lambda w: hooked(w.mapped.read, w.events[0]),
    "Context()": lambda w: lambda: driver.Context(w.rt.device),
    "Context.call": lambda w: lambda: w.rt.context.call(w.rt.context.cu.cuDeviceGetCount),
    "Context.raise_for": lambda w: lambda: w.rt.context.raise_for(0, "cuInit"),
    "Context.note": lambda w: lambda: w.rt.context.note(driver.DriverError(1, "CUDA_ERROR_INVALID_VALUE", "", "cuInit")),
    **attribute(lambda w: w.rt.context, "Context.check_usable", "Context.is_current", "Context.memory_info"),
    "Context.current": lambda w: inside(w.rt.context.current),
    "Context.finalize": lambda w: lambda: w.rt.context.finalize(w, lambda context: None),
    "Context.close": lambda w: driver.Context(w.rt.device).close,
    "Device()": lambda w: lambda: driver.Device(0),
    "Device.attribute": lambda w: lambda: w.rt.device.attribute("MULTIPROCESSOR_COUNT"),
    **attribute(lambda w: w.rt.device, "Device.name", "Device.architecture", "Device.total_memory", "Device.pci_bus_id",
                "Device.driver_version", "Device.uuid"),
    "Features()": lambda w: lambda: driver.Features(w.rt.context),
    "Features.has": lambda w: hooked(tried(w).has, "conditional_nodes"),
    "Features.has#first": lambda w: hooked(untried(w).has, "conditional_nodes"),
    "Features.reason": lambda w: hooked(tried(w).reason, "conditional_nodes"),
    "Features.reason#first": lambda w: hooked(untried(w).reason, "conditional_nodes"),
    **attribute(tried, "Features.missing", "Features.to_dict"),
    "Features.missing#first": lambda w: (lambda f: lambda: f.missing)(untried(w)),
    "Features.to_dict#first": lambda w: untried(w).to_dict,
    "Event()": lambda w: lambda: Event(w.rt.context),
    "Event.record": lambda w: hooked(Event(w.rt.context).record, w.rt.stream),
    "Event.synchronize": lambda w: w.events[0].synchronize,
    "Event.elapsed_ms": lambda w: hooked(w.events[1].elapsed_ms, w.events[0]),
    "Function()": lambda w: lambda: driver.Function(Module(w.rt.context, w.image, "image"), "add_scalar"),
    "Function.attribute": lambda w: hooked(w.function.attribute, "NUM_REGS"),
    "Function.allow_dynamic_shared": lambda w: hooked(
        Module(w.rt.context, w.image, "image").function("add_scalar").allow_dynamic_shared, 64 * 1024),
    "Function.allow_dynamic_shared#small": lambda w: hooked(w.function.allow_dynamic_shared, 1024),
    "Function.seal": lambda w: Module(w.rt.context, w.image, "image").function("add_scalar").seal,
    "Function.launch": lambda w: current(w, hooked(w.function.launch, (1,), (N,), w.packed(), w.rt.stream)),
    "Graph()": lambda w: lambda: Graph(w.rt.context),
    **attribute(lambda w: w.captured(), "Graph.clone", "Graph.nodes", "Graph.edges", "Graph.in_order", "Graph.longest_chain",
                "Graph.close", "Graph.conditional_handle"),
    "Graph.add_child": lambda w: hooked(Graph(w.rt.context).add_child, w.captured(), []),
    "Graph.embedded": lambda w: (lambda parent: hooked(parent.embedded, parent.add_child(w.captured(), [])))(
        Graph(w.rt.context)),
    "Graph.add_kernel": lambda w: hooked(Graph(w.rt.context).add_kernel, w.function, (1,), (N,), w.packed(), []),
    "Graph.add_memset": lambda w: hooked(Graph(w.rt.context).add_memset, w.x, 1.0, []),
    "Graph.set_memset": lambda w: (lambda g: hooked(g.set_memset, g.add_memset(w.x, 1.0, []), w.x, 2.0))(Graph(w.rt.context)),
    "Graph.add_copy": lambda w: hooked(Graph(w.rt.context).add_copy, w.y, w.x, []),
    "Graph.set_copy": lambda w: (lambda g: hooked(g.set_copy, g.add_copy(w.y, w.x, []), w.y, w.x))(Graph(w.rt.context)),
    "Graph.set_kernel": lambda w: (lambda g: hooked(g.set_kernel, w.node(g), w.function, (1,), (N,), w.packed()))(w.captured()),
    "Graph.add_conditional": conditional,
    "Graph.instantiate": lambda w: hooked(w.captured().instantiate, w.rt.stream),
    "GraphExec()": lambda w: (lambda e: lambda: driver.GraphExec(e.context, e.handle, w.rt.stream, e.graph))(
        w.captured().instantiate(w.rt.stream)),
    "GraphExec.set_kernel": lambda w: (lambda e: hooked(e.set_kernel, w.node(e.graph), w.function, (1,), (N,), w.packed()))(
        w.captured().instantiate(w.rt.stream)),
    "GraphExec.update": lambda w: hooked(w.hold(w.captured()).instantiate(w.rt.stream).update, w.captured()),
    "GraphExec.upload": lambda w: hooked(w.captured().instantiate(w.rt.stream).upload, w.rt.stream),
    "GraphExec.launch": lambda w: current(w, hooked(w.captured().instantiate(w.rt.stream).launch, w.rt.stream)),
    "GraphExec.close": lambda w: w.captured().instantiate(w.rt.stream).close,
    "Module()": lambda w: (lambda image: lambda: Module(w.rt.context, image, "image"))(w.image),
    "Module.function": lambda w: hooked(Module(w.rt.context, w.image, "image").function, "add_scalar"),
    "Module.function#again": lambda w: hooked(w.function.module.function, "add_scalar"),
    "Module.unload": lambda w: Module(w.rt.context, w.image, "image").unload,
    "Stream()": lambda w: lambda: Stream(w.rt.context),
    **attribute(lambda w: w.rt.stream, "Stream.synchronize", "Stream.done", "Stream.capturing", "Stream.__cuda_stream__"),
    "Stream.wait": lambda w: hooked(w.rt.stream.wait, w.other),
    "Stream.wait#first": lambda w: hooked(Stream(w.rt.context).wait, w.other),
    "Stream.before": lambda w: hooked(w.rt.stream.before, w.other),
    "Stream.before#first": lambda w: hooked(Stream(w.rt.context).before, w.other),
    "Stream.close": lambda w: Stream(w.rt.context).close,
    "Stream.__enter__": lambda w: Stream(w.rt.context).__enter__,
    # ---------------------------------------------------------------- kernels
    "Abi()": lambda w: lambda: kernels.Abi(kernels.abi.NATIVE / "abi"),
    "Abi.struct": lambda w: lambda: kernels.abi.default().struct("add_scalar_args"),
    "Abi.constant": lambda w: lambda: kernels.abi.default().constant("CONDITIONS"),
    "Abi.dtype": lambda w: lambda: kernels.abi.default().dtype("step_block"),
    "Abi.element_dtype": lambda w: lambda: kernels.abi.default().element_dtype(
        kernels.abi.struct("add_scalar_args")["x"]),
    "Abi.dtype_name": lambda w: lambda: kernels.abi.default().dtype_name(np.dtype("f4")),
    "Image.read": lambda w: kernels.images.find("add_scalar", "host").read,
    "Images()": lambda w: lambda: kernels.Images(kernels.abi.NATIVE),
    "Images.kernel": lambda w: lambda: kernels.Images(kernels.abi.NATIVE).kernel("add_scalar"),
    "Images.available": lambda w: lambda: kernels.Images(kernels.abi.NATIVE).available("basic"),
    "Images.find": lambda w: lambda: kernels.Images(kernels.abi.NATIVE).find("add_scalar", "host"),
    "PackedArgs.buffer": lambda w: (lambda p: lambda: p.buffer)(kernels.pack("add_scalar", dict(x=w.x, value=1.0, n=N))),
    "PackedArgs()": lambda w: lambda: kernels.pack("add_scalar", dict(x=w.x, value=1.0, n=N)),
    "StructInfo.__getitem__": lambda w: lambda: kernels.abi.default().struct("add_scalar_args")["x"],
    "kernels.add": lambda w: hooked(kernels.add, w.kernel_folder()),
    "kernels.compile": lambda w: hooked(kernels.compile, w.kernel_source(), "host"),
    "kernels.check_param_size": lambda w: hooked(kernels.check_param_size, "add_scalar", w.function.param_size),
    "kernels.pack": lambda w: lambda: kernels.pack("add_scalar", dict(x=w.x, value=1.0, n=N)),
    # ---------------------------------------------------------------- graph
    "Child()": lambda w: lambda: Child("child", [w.x], [w.y]),
    "Child.__enter__": lambda w: Child("child", [w.x], [w.y]).__enter__,
    "Child.launch": lambda w: hooked(w.open().launch, "add_scalar", (1,), (N,), dict(x=w.y, value=1.0, n=N)),
    "Child.pack": lambda w: hooked(w.open().pack, "add_scalar", dict(x=w.y, value=1.0, n=N)),
    "Child.memset": lambda w: hooked(w.open().memset, w.y),
    "Child.library": lambda w: hooked(w.open().library, ProductCall(None, None, ProductSpec(1, 16, 16, 16, 16, 16), w.x, w.x, w.y,
                                                                    None, w.y)),
    "Child.gemm": product,
    "Child.copy": lambda w: hooked(w.open().copy, w.y, w.x),
    "Child.run": lambda w: current(w, hooked(w.step.children[0].run, w.rt.context, w.rt.stream, {"add_scalar": w.function})),
    "Child.run#waiting": lambda w: current(w, hooked(
        w.step.children[0].run, w.rt.context, w.rt.stream, {"add_scalar": w.function}, True)),
    "Child.run#checking": lambda w: current(w, hooked(
        w.step.children[0].run, w.rt.context, w.rt.stream, {"add_scalar": w.function}, True, WriteCheck(w.rt))),
    "Child.must_follow": lambda w: hooked(w.step.children[1].must_follow, w.step.children[0]),
    **attribute(lambda w: w.step.children[0], "Child.kernels", "Child.buffers", "Child.written_ranges", "Child.check_alive"),
    "ChildTimes()": lambda w: (lambda step: lambda: ChildTimes(step))(w.plan().build()),
    "ChildTimes.read": lambda w: hooked(ChildTimes(w.plan().build()).read, 0, 1),
    "Finding.to_dict": lambda w: graph.Finding("cause", "where", "evidence", "mend").to_dict,
    **attribute(lambda w: Flag(w.word), "Flag.word", "Flag.key", "Flag.bits", "Flag.halves", "Flag.raised"),
    "FlatComparison.bitwise_equal": lambda w: lambda: graph.FlatComparison(None, 1, 0, 0.0, 0.0).bitwise_equal,
    "Flattened()": lambda w: (lambda step: lambda: Flattened(step))(w.step),
    **attribute(lambda w: Flattened(w.step), "Flattened.launch", "Flattened.compare", "Flattened.close"),
    "Golden()": lambda w: lambda: Golden({}, {}),
    "Golden.steps": lambda w: (lambda g: lambda: g.steps)(w.golden),
    "Golden.detail": lambda w: (lambda g: lambda: g.detail)(w.golden),
    "Golden.save": lambda w: hooked(w.golden.save, w.folder / "golden.npz"),
    "Golden.load": lambda w: hooked(Golden.load, w.golden.save(w.folder / "loaded.npz")),
    "LaunchTime.threads": lambda w: lambda: graph.LaunchTime("c", "k", (1,), (32,), 1.0, 1.0, 0, 0).threads,
    "Ledger()": lambda w: Ledger,
    "Ledger.captured": lambda w: hooked(Ledger().captured, w.function, "child"),
    "Ledger.ungraphed": lambda w: hooked(Ledger().ungraphed, w.function, "user"),
    "Ledger.note_foreign": lambda w: hooked(Ledger().note_foreign, "child", 1),
    "Ledger.forget": lambda w: hooked(Ledger().forget, "child", []),
    **attribute(lambda w: w.rt.ledger, "Ledger.entries", "Ledger.rows", "Ledger.table"),
    "MemoryPlan.total": lambda w: hooked(planned().memory().total, "device"),
    "MemoryPlan.check": lambda w: hooked(planned().memory().check, 1 << 30),
    **attribute(lambda w: planned().memory(), "MemoryPlan.device_bytes", "MemoryPlan.to_dict", "MemoryPlan.text",
                "MemoryPlan.summary"),
    "graph.require_memory": lambda w: hooked(graph.require_memory, w.rt, lambda rt: SimpleNamespace(close=lambda: None)),
    "ModulePool()": lambda w: lambda: ModulePool(w.rt.context),
    "ModulePool.function": lambda w: hooked(ModulePool(w.rt.context).function, "one", "add_scalar"),
    "ModulePool.function#again": lambda w: hooked(w.rt.modules.function, "legality", w.function.name),
    "ModulePool.modules": lambda w: hooked(loaded(ModulePool(w.rt.context)).modules, "one"),
    "ModulePool.drop": lambda w: hooked(loaded(ModulePool(w.rt.context)).drop, "one"),
    "PlanningRuntime()": lambda w: PlanningRuntime,
    "PlanningRuntime.empty": lambda w: hooked(planned().empty, 4, "f4", "made"),
    "PlanningRuntime.mapped": lambda w: hooked(planned().mapped, 4, "f4", "made"),
    "PlanningRuntime.ungraphed": lambda w: hooked(planned().ungraphed, "user"),
    "PlanningRuntime.load": lambda w: hooked(planned().load, "user", ["add_scalar"]),
    **attribute(lambda w: planned(), "PlanningRuntime.driver_kind", "PlanningRuntime.plan", "PlanningRuntime.synchronize",
                "PlanningRuntime.close", "PlanningRuntime.memory"),
    **attribute(lambda w: w.profile, "Profile.to_dict", "Profile.trace", "Profile.text", "Profile.parts"),
    "Recorder()": lambda w: (lambda step: lambda: Recorder(step))(w.step),
    "Recorder.record": lambda w: Recorder(w.step).record,
    "Recorder.record#first": lambda w: Recorder(w.plan().build()).record,
    "Replayer()": lambda w: (lambda g: lambda: Replayer(w.step, g))(w.golden),
    "Replayer.run": lambda w: Replayer(w.step, w.golden).run,
    "Replayer.run#first": lambda w: Replayer(w.plan().build(), w.golden).run,
    "Replayer.launches": lambda w: Replayer(w.step, w.golden).launches,
    "Runtime()": lambda w: Runtime,
    "Runtime.empty": lambda w: hooked(w.rt.empty, 4, "f4", "made"),
    "Runtime.zeros": lambda w: hooked(w.rt.zeros, 4, "f4", "made"),
    "Runtime.array": lambda w: hooked(w.rt.array, np.zeros(4), "made"),
    "Runtime.mapped": lambda w: hooked(w.rt.mapped, 4, "f4", "made"),
    "Runtime.ungraphed": lambda w: hooked(w.rt.ungraphed, "legality.user"),
    "Runtime.check_own": lambda w: hooked(w.rt.check_own, "user", w.x),
    **attribute(lambda w: w.rt, "Runtime.features", "Runtime.driver_kind",
                "Runtime.plan", "Runtime.synchronize", "Runtime.__enter__"),
    "Runtime.close": lambda w: Runtime().close,
    "State()": lambda w: lambda: State([w.x]),
    "State.restore": lambda w: hooked(State([w.x]).restore, State([w.x]).snapshot()),
    "State.digest": lambda w: hooked(State([w.x]).digest, State([w.x]).snapshot()),
    "State.compare": lambda w: hooked(State([w.x]).compare, State([w.x]).snapshot(), State([w.x]).snapshot()),
    **attribute(lambda w: State([w.x]), "State.nbytes", "State.snapshot"),
    "StepGraph()": lambda w: (lambda plan: lambda: graph.StepGraph(plan, total_order=False, ungraphed=True, mode="on"))(w.plan()),
    "StepGraph.launch": lambda w: w.step.launch,
    "StepGraph.launch#other_stream": lambda w: (lambda step, stream: lambda: step.launch(stream=stream))(w.step, w.other),
    "StepGraph.launch#first_stream": lambda w: (lambda step, stream: lambda: step.launch(stream=stream))(w.second.step, w.other),
    "StepGraph.launch_graph": lambda w: hooked(w.step.launch_graph, 1),
    "StepGraph.stopped": lambda w: w.looped.stopped,
    "StepGraph.stopped#no_flag": lambda w: w.step.stopped,
    "StepGraph.single": lambda w: w.plan().build(steps_per_launch=2).single,
    "StepGraph.single#again": lambda w: w.looped.single,
    "StepGraph.run_ungraphed": lambda w: w.step.run_ungraphed,
    "StepGraph.run_ungraphed#gated": lambda w: w.gated.run_ungraphed,
    "StepGraph.run_children": lambda w: w.step.run_children,
    "StepGraph.run_children#first": lambda w: w.plan(when=Flag(w.word)).build().run_children,
    "StepGraph.verify": lambda w: w.step.verify,
    "StepGraph.verify#first": lambda w: w.plan().build().verify,
    "StepGraph.profile": lambda w: hooked(w.step.profile, 1),
    "StepGraph.set": lambda w: lambda: w.step.set("add", "add_scalar", value=2.0),
    "StepGraph.update": lambda w: hooked(w.plan().build().update, w.plan(slot=3.0)),
    "StepGraph.update#copies": lambda w: hooked(w.used().update, w.plan(slot=3.0)),
    "StepGraph.where": lambda w: hooked(w.step.where, "add_scalar"),
    **attribute(lambda w: w.step, "StepGraph.conditions", "StepGraph.has_ungraphed", "StepGraph.info",
                "StepGraph.rows", "StepGraph.dot",
                "StepGraph.svg", "StepGraph.buffers"),
    "StepGraph.nodes": lambda w: (lambda step: lambda: step.nodes)(w.plan().build()),
    "StepGraph.close": lambda w: w.plan().build().close,
    "StepPlan()": lambda w: lambda: StepPlan(w.rt, "another"),
    "StepPlan.child": lambda w: lambda: w.rt.plan("p").child("c", reads=[w.x], writes=[w.y]),
    "StepPlan.child_from_graph": foreign,
    "StepPlan.epilogue": lambda w: lambda: w.rt.plan("p").epilogue("c", reads=[w.x], writes=[w.y]),
    "StepPlan.volatile": lambda w: hooked(w.plan().volatile, w.x),
    "StepPlan.user": lambda w: (lambda plan: hooked(plan.user, plan.children[0]))(w.plan()),
    **attribute(lambda w: w.plan(), "StepPlan.volatile_fields", "StepPlan.sequence", "StepPlan.dependencies", "StepPlan.build"),
    "StepTimer()": lambda w: StepTimer,
    "StepTimer.reset": lambda w: StepTimer().reset,
    "StepTimer.launch": lambda w: hooked(StepTimer().launch, w.step),
    "StepTimer.record": lambda w: hooked(StepTimer().record, lambda: dict(started_ns=0, ended_ns=1)),
    "UngraphedUser()": lambda w: lambda: graph.UngraphedUser(w.rt, "user"),
    "UngraphedUser.launch": lambda w: hooked(w.warm_user.launch, "add_scalar", (1,), (N,), dict(x=w.x, value=1.0, n=N)),
    "UngraphedUser.launch#first": lambda w: hooked(w.fresh_user().launch, "add_scalar", (1,), (N,),
                                                   dict(x=w.x, value=1.0, n=N)),
    "Verification.to_dict": lambda w: w.step.verify().to_dict,
    "Watchdog()": lambda w: (lambda step: lambda: Watchdog(step))(w.step),
    "Watchdog.__enter__": lambda w: inside(lambda: watched(w)),
    "graph.explain": lambda w: (lambda profile: lambda: graph.explain(w.rt, profile, w.step.launch))(w.profile),
    # ---------------------------------------------------------------- replay
    "Batch.allocate": lambda w: lambda: replay.Batch.allocate(w.rt, 32, 4),
    **attribute(
        lambda w: replay.Batch.allocate(w.rt, 32, 4), "Batch.size", "Batch.sampled", "Batch.transitions", "Batch.windows"
    ),
    "Batch.rows": lambda w: hooked(replay.Batch.allocate(w.rt, 32, 4).rows, 8, 16),
    "History()": lambda w: lambda: replay.History(w.rt, 1, 4, 32, "history"),
    "History.record_push": lambda w: w.pushing(),
    "History.clear": lambda w: replay.History(w.rt, 1, 4, 32, "history").clear,
    "Replay()": lambda w: lambda: replay.Replay(w.rt, 256, 4),
    "Replay.insert_writes": lambda w: (lambda ring: hooked(ring.insert_writes, w.staging))(w.replay),
    "Replay.insert_reads": lambda w: (lambda ring: hooked(ring.insert_reads, w.staging))(w.replay),
    "Replay.track_conviction": lambda w: hooked(replay.Replay(w.rt, 256, 4, mode="market", portfolio_dim=1).track_conviction),
    "Replay.set_mirror": lambda w: hooked(
        replay.Replay(w.rt, 256, 4, mode="market", portfolio_dim=1).set_mirror, [-1, 1, 1, -1]
    ),
    "Replay.track_drawdown": lambda w: hooked(replay.Replay(w.rt, 256, 4).track_drawdown),
    "Replay.track_returns": lambda w: hooked(replay.Replay(w.rt, 256, 4).track_returns, w.learner.control.buffer),
    "Replay.set_feature_table": lambda w: hooked(
        replay.Replay(w.rt, 256, 8, mode="market", portfolio_dim=4).set_feature_table, w.rt.zeros((4, 4), "f4", "features")),
    "Replay.record_sample": lambda w: w.recording("record_sample"),
    "Replay.record_transitions": lambda w: w.recording("record_transitions"),
    "Replay.record_windows": lambda w: w.recording("record_windows"),
    "Replay.record_priorities": lambda w: w.recording("record_priorities"),
    "Replay.record_insert": lambda w: w.recording("record_insert"),
    "Replay.staging": lambda w: hooked(w.replay.staging, 1),
    "Replay.insert_batch": lambda w: w.insert(w.replay),
    "Replay.fill": lambda w: w.insert(w.replay, "fill"),
    "Replay.note_inserted": lambda w: (lambda ring: hooked(ring.note_inserted, w.staging))(w.replay),
    "Replay.clear": lambda w: w.replay.clear,
    "Replay.ready": lambda w: hooked(w.replay.ready, 1),
    "Replay.require": lambda w: (lambda ring: w.insert(ring)() or hooked(ring.require, 0))(w.replay),
    **attribute(lambda w: w.replay, "Replay.sample_reads", "Replay.priority_writes", "Replay.size", "Replay.read_state"),
    "Staging.allocate": lambda w: lambda: replay.Staging.allocate(w.rt, 1, 4, None),
    "Staging.buffers": lambda w: (lambda ring: lambda: w.staging.buffers)(w.replay),
    "Windows.allocate": lambda w: lambda: replay.Windows.allocate(w.rt, 1, 4, 32, "windows"),
    **attribute(lambda w: replay.Windows.allocate(w.rt, 1, 4, 32, "windows"), "Windows.buffers", "Windows.window"),
    "Windows.__getitem__": lambda w: (lambda windows: lambda: windows[:1])(replay.Windows.allocate(w.rt, 2, 4, 32, "windows")),
    "replay.decode_actions": lambda w: lambda: replay.decode_actions([1], (2,)),
    "replay.encode_actions": lambda w: lambda: replay.encode_actions([[1]], (2,)),
    "replay.padded_state_dim": lambda w: hooked(replay.padded_state_dim, 4),
    # ---------------------------------------------------------------- interop
    "interop.wrap": lambda w: (lambda array: lambda: interop.wrap(w.rt, array, "theirs"))(np.zeros(1024)),
    "interop.wrap#ours": lambda w: lambda: interop.wrap(w.rt, w.x, "ours"),
    "interop.from_dlpack": lambda w: (lambda array: lambda: interop.from_dlpack(w.rt, array, "theirs"))(np.zeros(4096)),
    "interop.from_dlpack#known": lambda w: (lambda array: lambda: interop.from_dlpack(w.rt, array, "theirs"))(
        np.from_dlpack(w.rt.mapped(16, "f4", "exported"))),
    "interop.from_cuda_array_interface": lambda w: (
        lambda array: lambda: interop.from_cuda_array_interface(w.rt, array, "theirs"))(Described(w.x)),
    "interop.from_cuda_array_interface#stream": lambda w: (
        lambda rt, array: lambda: interop.from_cuda_array_interface(rt, array, "theirs"))(
        w.second.rt, Described(w.x, int(w.other.handle))),
    "interop.to_numpy": lambda w: (lambda array: hooked(interop.to_numpy, w.rt, array, "theirs"))(np.zeros(4)),
    "interop.to_numpy#device": lambda w: hooked(interop.to_numpy, w.rt, Described(w.x), "theirs"),
    "interop.raw_graph": lambda w: hooked(interop.raw_graph, w.captured()),
    "interop.stream_handle": lambda w: hooked(interop.stream_handle, w.rt.stream),
    # ---------------------------------------------------------------- testing
    "DriverCalls()": lambda w: testing.DriverCalls,
    "DriverCalls.__enter__": lambda w: inside(testing.DriverCalls),
    "DriverCalls.text": lambda w: testing.DriverCalls().text,
    "testing.assert_calls": lambda w: inside(lambda: testing.assert_calls({})),
    "testing.assert_isolated": lambda w: hooked(testing.assert_isolated, w.rt),
    "testing.assert_no_allocation": lambda w: inside(testing.assert_no_allocation),
    "testing.assert_no_growth": lambda w: inside(testing.assert_no_growth),
    "testing.assert_no_sync": lambda w: inside(testing.assert_no_sync),
    "testing.assert_replay_matches": lambda w: hooked(testing.assert_replay_matches, w.step),
    "testing.assert_replay_matches#first": lambda w: hooked(testing.assert_replay_matches, w.plan().build()),
    # ---------------------------------------------------------------- dqn
    "Agent()": lambda w: lambda: dqn.Agent(4, [2], w.config, w.rt),
    "Agent.act": lambda w: hooked(w.agent.act, np.zeros(4)),
    "Agent.values": lambda w: hooked(w.agent.values, np.zeros(4)),
    "Agent.choices": lambda w: hooked(w.agent.choices, [0]),
    "Agent.actions": lambda w: hooked(w.agent.actions, [[0]]),
    "Agent.observe": lambda w: w.observe(w.agent),
    "Agent.close": lambda w: dqn.Agent(4, [2], w.config, w.rt).close,
    **attribute(lambda w: w.agent, "Agent.steps", "Agent.epsilon", "Agent.ready", "Agent.step", "Agent.drain",
                "Agent.__enter__"),
    "Agent.save": lambda w: hooked(w.agent.save, w.folder / "agent.safetensors"),
    "Agent.load": lambda w: (w.agent.save(w.folder / "saved.safetensors") or True) and hooked(
        w.agent.load, w.folder / "saved.safetensors"),
    "Agent.from_checkpoint": lambda w: (w.agent.save(w.folder / "copied.safetensors") or True) and hooked(
        dqn.Agent.from_checkpoint, w.folder / "copied.safetensors", w.rt),
    "Agent.snapshot": lambda w: w.agent.snapshot,
    "PolicySnapshot()": lambda w: hooked(dqn.PolicySnapshot, w.agent),
    "PolicySnapshot.act": lambda w: hooked(w.snapshot.act, np.zeros(4)),
    "PolicySnapshot.values": lambda w: hooked(w.snapshot.values, np.zeros(4)),
    "PolicySnapshot.choices": lambda w: hooked(w.snapshot.choices, [0]),
    "PolicySnapshot.close": lambda w: w.agent.snapshot().close,
    "PolicySnapshot.__enter__": lambda w: w.snapshot.__enter__,
    "Config.slot": lambda w: hooked(config.Config().slot, "iql.tau"),
    "Config.alpha_c51": lambda w: hooked(w.config.alpha_c51, 0),
    "Config.profile": lambda w: hooked(config.Config.profile, "smoke"),
    "Config.merged": lambda w: hooked(w.config.merged, {}),
    "Config.with_set": lambda w: hooked(w.config.with_set, ["optim.lr=1e-3"]),
    "Config.save": lambda w: hooked(w.config.save, w.folder / "config.toml"),
    "Config.load": lambda w: (w.config.save(w.folder / "load.toml") or True) and hooked(
        config.Config.load, w.folder / "load.toml"),
    **attribute(lambda w: w.config, "Config.horizon", "Config.reward_horizon", "Config.largest_gamma",
                "Config.to_dict", "Config.to_toml", "Config.options"),
    "Extension.block": lambda w: hooked(dqn.Extension().block, w.config),
    "Extension.parameters": lambda w: hooked(dqn.Extension().parameters, w.learner.layout),
    "Extension.record": lambda w: hooked(Watching().record, w.view),
    "Extension.reset": lambda w: dqn.Extension().reset,
    "Extension.serve": lambda w: hooked(dqn.Extension().serve, w.learner.adam.theta),
    "Extension.begin_epoch": lambda w: hooked(dqn.Extension().begin_epoch, 0, ()),
    "Extension.end_epoch": lambda w: hooked(dqn.Extension().end_epoch, 0, ()),
    "Extension.kept_gradients": lambda w: dqn.Extension().kept_gradients,
    "Extension.report": lambda w: dqn.Extension().report,
    "Extension.persistent": lambda w: dqn.Extension().persistent,
    "StepView.side_products": lambda w: hooked(w.view.side_products, "watching"),
    "StepView.block_forward": lambda w: blocks(w, "block_forward"),
    "StepView.block_backward": lambda w: blocks(w, "block_backward"),
    "Tensor.padded_shape": lambda w: lambda: dqn.Tensor("bias", (3,), decayed=False, bound=0.0).padded_shape,
    "StepView.child": lambda w: (lambda view: hooked(view.child, f"more {next(COUNT)}", [w.x], [w.y]))(w.view),
    "StepView.trunk_gradient": lambda w: hooked(w.view.trunk_gradient, "watching"),
    "StepView.metrics_of": lambda w: hooked(w.view.metrics_of, w.watching),
    "StepView.metric": lambda w: hooked(w.view.metric, "seen"),
    "StepView.group": lambda w: hooked(w.view.group, "watching"),
    "StepView.appended": lambda w: hooked(w.view.appended, "watching"),
    "StepView.appended_trunk_output": lambda w: hooked(w.view.appended_trunk_output, "watching"),
    **attribute(lambda w: w.view, "StepView.dlogits", "StepView.trunk_output", "StepView.trunk_output_next",
                "StepView.next_values"),
    "NetworkLayout.group_range": lambda w: hooked(w.view.layout.group_range, "watching"),
    "Learner()": lambda w: lambda: dqn.Learner(w.rt, w.config, 4, [2]),
    "Learner.step": lambda w: w.learner.step,
    "Learner.set": lambda w: lambda: w.learner.set(lr=1e-3),
    "Learner.reset": lambda w: hooked(dqn_learner(w).reset, 0),
    "Learner.restore": lambda w: (lambda learner: lambda: learner.restore(
        3, seed=0, initial=w.config, config=w.config, alpha_c51=0.5))(dqn_learner(w)),
    "Learner.load_params": lambda w: (lambda values: lambda: w.learner.load_params(values))(w.learner.params()),
    "Learner.begin_epoch": lambda w: hooked(w.learner.begin_epoch, 0),
    "Learner.end_epoch": lambda w: hooked(w.learner.end_epoch, 0),
    "Learner.close": lambda w: dqn_learner(w).close,
    **attribute(lambda w: w.learner, "Learner.choices", "Learner.config", "Learner.last", "Learner.return_scale",
                "Learner.drain", "Learner.take", "Learner.params", "Learner.persistent",
                "Learner.served", "Learner.state_buffers"),
    "Metrics.of": lambda w: hooked(dqn.Metrics.of, w.agent.learner.last),
    **attribute(lambda w: w.learner.layout, "NetworkLayout.state_padded", "NetworkLayout.head_width",
                "NetworkLayout.head_padded", "NetworkLayout.size", "NetworkLayout.forward_size", "NetworkLayout.window",
                "NetworkLayout.network_size", "NetworkLayout.n_decay", "NetworkLayout.parameters",
                "NetworkLayout.pads", "NetworkLayout.residual_blocks"),
    "NetworkLayout.init": lambda w: hooked(w.learner.layout.init, 0),
    "NetworkLayout.pack": lambda w: (lambda values: lambda: w.learner.layout.pack(values))(w.learner.params()),
    "NetworkLayout.unpack": lambda w: (lambda flat: lambda: w.learner.layout.unpack(flat))(w.learner.adam.theta.to_numpy()),
    "Policy()": lambda w: lambda: dqn.Policy(w.rt, w.learner.layout, w.learner.control.buffer, 1),
    "Policy.reads": lambda w: hooked(w.policy.reads, w.x, w.x),
    "Policy.writes": lambda w: hooked(w.policy.writes, w.x),
    "Policy.private": lambda w: w.policy.private,
    **attribute(lambda w: w.policy, "Policy.trunk_output"),
    "Policy.record_act": lambda w: w.acting(),
    "Policy.set_exploration": lambda w: hooked(w.policy.set_exploration, 0.1),
    "Policy.reset": lambda w: w.policy.reset,
}  # fmt: skip


def dqn_learner(w: World) -> dqn.Learner:
    return dqn.Learner(w.rt, w.config, 4, [2])
