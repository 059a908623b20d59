"""What this driver does where its documentation is silent, or where drivers differ: asked, not believed.

Each quirk is asked in a process of its own, forked from one that has loaded no driver, because some answers are a dead context.
docs/quirks.md holds the answers of the drivers that were asked so far, and says where the code depends on each.

    python -m foxhunt_rt.graph.quirks DEVICE NAME ...   one JSON object a line; `foxhunt-rt probe quirks` prints a table
"""

from __future__ import annotations

import faulthandler
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foxhunt_rt import kernels
from foxhunt_rt._names import choose
from foxhunt_rt.driver import DriverError, Event, FoxhuntError, Function, Graph, Stream, capture, loader

if TYPE_CHECKING:
    from foxhunt_rt.graph.runtime import Runtime

TIME_LIMIT_S = 30
ONE, WARP = (1,), (32,)


@dataclass(frozen=True)
class Quirk:
    """A question to a driver.

    Attributes
    ----------
    name : str
    question : str
    relies : str
        Where the code goes by the answer.
    ask : callable
        Takes a `Desk`, returns the answer in a few words. May end the context, or the process.
    """

    name: str
    question: str
    relies: str
    ask: Callable[[Desk], str]


class Desk:
    """A runtime with what the questions need."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.context, self.cu = runtime, runtime.context, runtime.context.cu
        self.x = runtime.zeros(64, np.float32, "x")
        self._kept: list[Any] = []

    def function(self, name: str) -> Function:
        return self.runtime.modules.function("quirks", name)

    def add(self, graph: Graph, after: Sequence[Any] = (), value: float = 1.0) -> Any:
        """A node that adds to x."""
        return self._kernel(graph, "add_scalar", dict(x=self.x, value=value, n=64), after)

    def set(self, graph: Graph, handle: Any, value: int, after: Sequence[Any] = ()) -> Any:
        """A node that sets the handle of a conditional node."""
        return self._kernel(graph, "set_condition", dict(handle=int(handle), value=value), after)

    def _kernel(self, graph: Graph, name: str, args: dict[str, Any], after: Sequence[Any]) -> Any:
        packed = kernels.pack(name, args)
        self._kept.append(packed)
        return graph.add_kernel(self.function(name), ONE, (64,), packed.params, after)

    def branch(self, kind: str = "IF") -> tuple[Graph, Any, Graph]:
        """A graph, the handle of its conditional node, and that node's body, which adds 1 to x."""
        graph = Graph(self.context)
        handle = graph.conditional_handle()
        setter = self.set(graph, handle, 1)
        _, body = graph.add_conditional(kind, handle, [setter])
        return graph, handle, body

    def run(self, graph: Graph) -> float:
        """Instantiates and launches once; x[0] afterwards."""
        with self.context.current():
            graph.instantiate(self.runtime.stream).launch(self.runtime.stream)
        return float(self.x.to_numpy()[0])

    def launch(self, name: str, args: dict[str, Any]) -> None:
        packed = kernels.pack(name, args)
        self._kept.append(packed)
        with self.context.current():
            self.function(name).launch(ONE, WARP, packed.params, self.runtime.stream)


def _status(ask: Callable[[], object], works: str = "works") -> str:
    """What came of a call: `works`, or the error's name in words."""
    try:
        ask()
    except DriverError as error:
        return error.name.removeprefix("CUDA_ERROR_").lower().replace("_", " ")
    return works


def _ran(desk: Desk, graph: Graph, wanted: float) -> str:
    found: list[float] = []
    said = _status(lambda: found.append(desk.run(graph)))
    return said if not found or found[0] == wanted else f"runs, with a wrong result ({found[0]} for {wanted})"


# ------------------------------------------------------------------ conditional nodes
def _handle_outside(desk: Desk) -> str:
    graph = Graph(desk.context)
    handle = graph.conditional_handle()

    def ask() -> None:
        desk.launch("set_condition", dict(handle=int(handle), value=1))
        desk.runtime.synchronize()

    return _status(ask)


def _handle_in_child(desk: Desk) -> str:
    graph, child = Graph(desk.context), Graph(desk.context)
    handle = graph.conditional_handle()
    desk.set(child, handle, 1)
    _, body = graph.add_conditional("IF", handle, [graph.add_child(child, [])])
    desk.add(body)
    return _ran(desk, graph, 1.0)


def _child_in_body(desk: Desk) -> str:
    graph, _, body = desk.branch()
    child = Graph(desk.context)
    desk.add(child)
    body.add_child(child, [])
    return _ran(desk, graph, 1.0)


def _conditional_in_child(desk: Desk) -> str:
    graph, _, body = desk.branch()
    desk.add(body)
    return _status(lambda: Graph(desk.context).add_child(graph, []))


def _conditional_clone(desk: Desk) -> str:
    graph, _, body = desk.branch()
    desk.add(body)
    return _status(graph.clone)


def _conditional_update(desk: Desk) -> str:
    graph, _, body = desk.branch()
    desk.add(body)
    executable = graph.instantiate(desk.runtime.stream)
    other, _, body = desk.branch()
    desk.add(body, value=5.0)
    answer: list[str] = []
    said = _status(lambda: answer.append(executable.update(other)[0]))
    if not answer:
        return said
    if answer[0] != "SUCCESS":
        return f"refused: {answer[0].removeprefix('ERROR_').lower().replace('_', ' ')}"
    with desk.context.current():
        executable.launch(desk.runtime.stream)
    found = float(desk.x.to_numpy()[0])
    return "works" if found == 5.0 else f"accepted, but the launch gives {found} for 5.0"


def _body_node_params(desk: Desk) -> str:
    graph, _, body = desk.branch()
    node = desk.add(body)
    executable = graph.instantiate(desk.runtime.stream)
    packed = kernels.pack("add_scalar", dict(x=desk.x, value=5.0, n=64))
    return _status(lambda: executable.set_kernel(node, desk.function("add_scalar"), ONE, (64,), packed.params))


def _event_in_body(desk: Desk) -> str:
    graph, _, body = desk.branch()
    event = Event(desk.context)
    added = _status(lambda: desk.context.call(desk.cu.cuGraphAddEventRecordNode, body.handle, [], 0, event.handle))
    if added != "works":
        return f"refused when added: {added}"
    made = _status(lambda: graph.instantiate(desk.runtime.stream))
    return made if made == "works" else f"refused at instantiation: {made}"


# ------------------------------------------------------------------ child graphs
def _event_between_children(desk: Desk) -> str:
    graph, child = Graph(desk.context), Graph(desk.context)
    desk.add(child)
    events, node = (Event(desk.context), Event(desk.context)), None
    for event in events:
        after: list[Any] = [] if node is None else [graph.add_child(child, [node])]
        node = desk.context.call(desk.cu.cuGraphAddEventRecordNode, graph.handle, after, len(after), event.handle)
    said = _ran(desk, graph, 1.0)
    return said if said != "works" else _status(lambda: events[1].elapsed_ms(events[0]), "works, and times")


def _nested_node_params(desk: Desk) -> str:
    graph, child = Graph(desk.context), Graph(desk.context)
    desk.add(child)
    (node,) = graph.embedded(graph.add_child(child, [])).nodes()
    executable = graph.instantiate(desk.runtime.stream)
    packed = kernels.pack("add_scalar", dict(x=desk.x, value=5.0, n=64))

    def ask() -> None:
        executable.set_kernel(node.handle, desk.function("add_scalar"), ONE, (64,), packed.params)
        with desk.context.current():
            executable.launch(desk.runtime.stream)

    said = _status(ask)
    found = float(desk.x.to_numpy()[0])
    return said if said != "works" or found == 5.0 else f"accepted, but the launch gives {found} for 5.0"


def _allocation_in_child(desk: Desk) -> str:
    graph = Graph(desk.context)
    with Stream(desk.context) as stream, desk.context.current():

        def record() -> None:
            with capture(stream) as recording:
                pointer = desk.context.call(desk.cu.cuMemAllocAsync, 1024, stream.handle)
                desk.context.call(desk.cu.cuMemFreeAsync, pointer, stream.handle)
            graphs.append(recording.graph)

        graphs: list[Graph] = []
        said = _status(record)
        if not graphs:
            return f"the capture is refused: {said}"
        return _status(lambda: graph.add_child(graphs[0], []))


# ------------------------------------------------------------------ captures and updates
def _allocation_in_capture(desk: Desk) -> str:
    with Stream(desk.context) as stream, desk.context.current():
        said: list[str] = []

        def record() -> None:
            with capture(stream):
                said.append(_status(lambda: desk.context.call(desk.cu.cuMemAlloc, 1024)))

        try:
            record()
        except FoxhuntError:
            return f"{said[0]}, and the capture is lost"
        return f"{said[0]}, and the capture goes on"


def _update_reason(desk: Desk) -> str:
    one, two = Graph(desk.context), Graph(desk.context)
    desk.add(one)
    desk.add(two, [desk.add(two)])
    executable = one.instantiate(desk.runtime.stream)
    with desk.context.current():
        status, info = desk.cu.cuGraphExecUpdate(executable.handle, two.handle)
    if not status:
        return "accepted another topology"
    reason = executable.update(two)[0].removeprefix("ERROR_").lower().replace("_", " ")
    return f"{reason}; cuda.bindings {'drop' if info is None else 'give'} the reason"


# ------------------------------------------------------------------ functions, clocks, modules
def _param_info(desk: Desk) -> str:
    size = kernels.abi.default().struct("add_scalar_args").size
    found: list[int | None] = []
    said = _status(lambda: found.append(desk.function("add_scalar").param_size))
    return said if not found else "gives the size of a struct" if found[0] == size else f"gives {found[0]} for {size}"


def _globaltimer(desk: Desk) -> str:
    count, times = desk.runtime.zeros(1, np.uint32, "count"), desk.runtime.zeros(256, np.uint64, "times")
    for _ in range(256):
        desk.launch("stamp_child", dict(count=count, times=times, column=0, width=1, capacity=256))
    stamps = times.to_numpy()
    steps = np.diff(np.sort(stamps))
    unit = math.gcd(*(int(s) for s in steps[steps > 0]))
    return f"ticks every {unit} ns"


def _loading(desk: Desk) -> str:
    with desk.context.current():
        mode = desk.context.call(desk.cu.cuModuleGetLoadingMode)
    return str(mode.name).removeprefix("CU_MODULE_").lower().replace("_", " ")


# ------------------------------------------------------------------ faults
def _write_behind(desk: Desk) -> str:
    y = desk.runtime.zeros(64, np.float32, "y")

    def ask() -> None:
        desk.launch("copy_element", {"x": desk.x, "y": y, "from": 0, "to": 70, "value": 1.0})
        desk.runtime.synchronize()

    return _status(ask, "nothing is said")


def _write_far(desk: Desk) -> str:
    def ask() -> None:
        desk.launch("copy_element", {"x": desk.x, "y": desk.x, "from": 0, "to": 2**36, "value": 1.0})
        desk.runtime.synchronize()

    return _status(ask, "nothing is said")


def _after_fault(desk: Desk) -> str:
    said = _write_far(desk)
    cu, device = desk.cu, desk.context.device.handle
    release = cu.cuDevicePrimaryCtxRelease(device)[0].name
    retain, handle = cu.cuDevicePrimaryCtxRetain(device)
    cu.cuCtxSetCurrent(handle)
    again = cu.cuMemAlloc(1024)[0].name
    reset = cu.cuDevicePrimaryCtxReset(device)[0].name
    cu.cuCtxSetCurrent(handle)
    then = cu.cuMemAlloc(1024)[0].name
    words = [n.removeprefix("CUDA_ERROR_").removeprefix("CUDA_").lower().replace("_", " ")
             for n in (release, retain.name, again, reset, then)]  # fmt: skip
    return (
        f"{said}; release {words[0]}, retain {words[1]}, allocation {words[2]}; reset {words[3]}, allocation {words[4]}"
    )


def _divergent_barrier(desk: Desk) -> str:
    def ask() -> None:
        packed = kernels.pack("divergent_barrier", dict(y=desk.x, skip=5))
        with desk.context.current():
            desk.function("divergent_barrier").launch(ONE, (64,), packed.params, desk.runtime.stream)
        desk.runtime.synchronize()

    return _status(ask, "nothing is said")


QUIRKS = (
    Quirk("handle-outside", "a conditional handle set by an ungraphed launch",
          "graph/conditional.py: setters exist in the parent only", _handle_outside),
    Quirk("handle-in-child", "a kernel in a child graph sets a handle of the parent", "graph/conditional.py", _handle_in_child),
    Quirk("child-in-body", "a child graph in the body of an IF node", "graph/conditional.py: gated children", _child_in_body),
    Quirk("conditional-in-child", "a child graph that holds a conditional node",
          "graph/foreign.py refuses it in our own words; graph/conditional.py puts IF nodes in the parent",
          _conditional_in_child),
    Quirk("conditional-clone", "cuGraphClone of a graph with a conditional node", "graph/foreign.py", _conditional_clone),
    Quirk("conditional-update", "cuGraphExecUpdate of a graph with a conditional node", "graph/step.py: update refuses it first",
          _conditional_update),
    Quirk("body-node-params", "cuGraphExecKernelNodeSetParams of a node in a body", "graph/step.py: set", _body_node_params),
    Quirk("event-in-body", "an event-record node in the body of an IF node", "graph/profile.py times around it", _event_in_body),
    Quirk("event-between-children", "event-record nodes between child graphs", "graph/profile.py: the instrumented twin",
          _event_between_children),
    Quirk("nested-node-params", "cuGraphExecKernelNodeSetParams of a node in a child graph", "graph/step.py: set",
          _nested_node_params),
    Quirk("allocation-in-child", "a child graph that holds allocation and free nodes",
          "graph/foreign.py refuses it in our own words", _allocation_in_child),
    Quirk("allocation-in-capture", "cuMemAlloc in a thread-local capture", "driver/memory.py refuses it first",
          _allocation_in_capture),
    Quirk("update-reason", "the reason of a refused cuGraphExecUpdate", "driver/graphs.py: asks again past cuda.bindings",
          _update_reason),
    Quirk("param-info", "cuFuncGetParamInfo of a struct argument", "kernels/launch_args.py: check_param_size", _param_info),
    Quirk("globaltimer", "resolution of %globaltimer", "graph/timing.py, graph/child_times.py: no shorter time is meant",
          _globaltimer),
    Quirk("module-loading", "cuModuleGetLoadingMode", "driver/module.py: cuFuncLoad before any capture", _loading),
    Quirk("write-behind", "a write 24 bytes behind an allocation of 256", "graph/write_check.py", _write_behind),
    Quirk("write-far", "a write 256 GiB behind an allocation", "graph/faults.py", _write_far),
    Quirk("after-fault", "the primary context released, retained and reset after an illegal address",
          "driver/context.py: a device whose context died is refused", _after_fault),
    Quirk("divergent-barrier", "a barrier that 5 of 64 threads leave out", "hostsim is stricter (docs/hostsim.md)",
          _divergent_barrier),
)  # fmt: skip


def probe_quirks(names: Sequence[str] | None = None, device: int = 0) -> dict[str, Any]:
    """Asks each quirk in a process of its own.

    Parameters
    ----------
    names : sequence of str, optional
        Default: all.
    device : int
        Ordinal.

    Returns
    -------
    dict
        ``driver``, ``release`` (NVIDIA's), ``version`` (of CUDA), ``device``, ``architecture``, and ``quirks``: a list of name,
        question, answer, relies.
    """
    known = [q.name for q in QUIRKS]
    for name in names or ():
        if name not in known:
            raise FoxhuntError(f"no quirk {name!r}; {choose(name, known)}")
    command = [sys.executable, "-m", "foxhunt_rt.graph.quirks", str(device), *(names or known)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FoxhuntError(
            f"the process that asks the driver ended with {done.returncode}: {done.stderr.strip()[-300:]}"
        )
    first, *rest = [json.loads(line) for line in done.stdout.splitlines()]
    by_name = {q.name: q for q in QUIRKS}
    first["quirks"] = [{"name": r["name"], "question": by_name[r["name"]].question, "answer": r["answer"],
                        "relies": by_name[r["name"]].relies} for r in rest]  # fmt: skip
    return dict(first)


def text(found: dict[str, Any]) -> str:
    """The table of `probe_quirks`."""
    driver = " ".join(filter(None, (found["driver"], found["release"])))
    lines = [f"{found['device']} ({found['architecture']}), {driver}, CUDA {found['version']}"]
    lines += [f"{q['name']:<24}{q['question']}: {q['answer']}" for q in found["quirks"]]
    return "\n".join(lines)


# ------------------------------------------------------------------ the asking process
def _in_a_fork(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as results:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(TIME_LIMIT_S)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            faulthandler.disable()  # it may write to a copy of the standard error that somebody made before
            os.write(results.fileno(), json.dumps(ask()).encode())
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        results.seek(0)
        written = results.read()
    if written:
        found: dict[str, Any] = json.loads(written)
        return found
    return {
        "answer": f"no answer in {TIME_LIMIT_S} s" if status == -signal.SIGALRM else f"the process ended with {status}"
    }


def _machine(device: int) -> dict[str, Any]:
    from foxhunt_rt.graph.runtime import Runtime

    rt = Runtime(device)
    version, release = rt.device.driver_version, ""
    if rt.driver_kind == "cuda":
        import pynvml

        pynvml.nvmlInit()
        release = str(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
    return {"driver": rt.driver_kind, "release": release, "version": f"{version // 1000}.{version % 1000 // 10}",
            "device": rt.device.name, "architecture": rt.device.architecture}  # fmt: skip


def _ask(quirk: Quirk, device: int) -> dict[str, Any]:
    from foxhunt_rt.graph.runtime import Runtime

    try:
        return {"name": quirk.name, "answer": quirk.ask(Desk(Runtime(device)))}
    except FoxhuntError as error:
        return {"name": quirk.name, "answer": f"{type(error).__name__}: {error}"}


def answers(device: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The machine, then each quirk's answer. The driver is loaded in forks alone."""
    loader.import_bindings()  # once for all forks, as the next line
    kernels.abi.default()
    yield _in_a_fork(functools.partial(_machine, device))
    for quirk in QUIRKS:
        if quirk.name in names:
            yield {"name": quirk.name, **_in_a_fork(functools.partial(_ask, quirk, device))}


if __name__ == "__main__":
    for line in answers(int(sys.argv[1]), sys.argv[2:]):
        print(json.dumps(line), flush=True)
