"""Does sharing functions or modules cost anything on this device? Measured, not believed (known failure K2).

A graph of 13 children with 5 dependent kernels each is replayed under different conditions, the arms. All arms run in every
round, in rotating order, so that a drift of clocks falls on all of them; each is compared with its control within the round.
Every replay is timed by events around the graph alone and by the host's clock over the whole round, and leaves a checksum.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foxhunt_rt import kernels
from foxhunt_rt._names import choose
from foxhunt_rt.driver import Event, FoxhuntError, Function, Graph, Module, Stream, capture
from foxhunt_rt.graph.runtime import Runtime

CHILDREN, KERNELS, N = 13, 5, 64
#: Ratios whose middle 80 % lie within this of 1 are called equal.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Arm:
    """A condition: its name, what is different, and the arm it is compared with."""

    name: str
    text: str
    control: str | None


ARMS = (
    Arm("alone", "every child with a module of its own, nothing between replays", None),
    Arm("shared function", "all children capture one CUfunction", "alone"),
    Arm("copy between", "a function of a second load of the image, launched between replays", "alone"),
    Arm("same function between", "a captured function, launched ungraphed between replays", "copy between"),
    Arm("module mate between", "another function of a captured module, launched between replays", "copy between"),
    Arm("attribute between", "cuFuncSetAttribute on a captured function between replays", "alone"),
    Arm("allocation between", "cuMemAlloc and cuMemFree of 1 MiB between replays", "alone"),
    Arm("load between", "a module load and unload between replays", "alone"),
    Arm(
        "first launch between",
        "the first launch of a function of a module loaded before, between replays",
        "copy between",
    ),
    Arm("stack between", "a kernel with a frame of 3840 bytes a thread between replays", "copy between"),
    Arm("stack between, pre-sized", "the same, after cuCtxSetLimit(STACK_SIZE, 4096)", "stack between"),
)


@dataclass(frozen=True)
class Ratio:
    """Median of an arm over its control, by round, with the 10th and 90th percentile."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class ArmResult:
    """Microseconds a replay, and ratios to the control: by events around the graph, by the host's clock over all of the round."""

    arm: Arm
    event_us: float
    host_us: float
    event_ratio: Ratio | None
    host_ratio: Ratio | None
    checksums: int
    checksums_wrong: int

    @property
    def verdict(self) -> str:
        """What the numbers say, in words."""
        if self.checksums_wrong:
            return f"WRONG RESULTS: {self.checksums_wrong} of {self.checksums} checksums differ"
        if self.event_ratio is None or self.host_ratio is None:
            return "the baseline"
        graph, whole = judge(self.event_ratio), judge(self.host_ratio)
        if graph == whole:
            return f"{graph}, against {self.arm.control!r}"
        return f"replay {graph}, the whole turn {whole}, against {self.arm.control!r}"


def judge(ratio: Ratio) -> str:
    """Words for a ratio: equal within `TOLERANCE`, slower, faster, or not settled when the spread holds both."""
    if ratio.low >= 1 - TOLERANCE and ratio.high <= 1 + TOLERANCE:
        return "costs nothing that can be seen"
    if ratio.low > 1:
        return f"costs {ratio.median - 1:+.1%}"
    if ratio.high < 1:
        return f"is faster by {1 - ratio.median:.1%}"
    return f"is not settled (spread {ratio.low:.2f} to {ratio.high:.2f})"


@dataclass(frozen=True)
class IsolationReport:
    """What `probe_isolation` measured. ``fresh_loaded``: whether a function counts as loaded before its first launch; None when
    that arm was not run."""

    device: str
    driver: str
    driver_version: int
    loading: str
    fresh_loaded: bool | None
    rounds: int
    replays: int
    arms: list[ArmResult]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **dataclasses.asdict(self),
            "arms": [{**dataclasses.asdict(a), "verdict": a.verdict} for a in self.arms],
        }

    def text(self) -> str:
        """A table of arms, and the verdicts."""
        version = f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}"
        fresh = ""
        if self.fresh_loaded is not None:
            fresh = f"; functions are {'' if self.fresh_loaded else 'not '}loaded before their first launch"
        lines = [f"{CHILDREN} children of {KERNELS} kernels on {self.device} (driver {self.driver}, CUDA {version}, "
                 f"{self.loading} loading{fresh}), {self.rounds} rounds of {self.replays} replays; ratio to the control with its "
                 "10th and 90th percentile",
                 f"{'arm':<26} {'graph us':>9} {'turn us':>9}  {'graph ratio':<24} {'turn ratio':<24} checksums"]  # fmt: skip
        for a in self.arms:
            good = f"{a.checksums - a.checksums_wrong} of {a.checksums}"
            lines.append(f"{a.arm.name:<26} {a.event_us:>9.2f} {a.host_us:>9.2f}  {a.event_ratio or '-'!s:<24} "
                         f"{a.host_ratio or '-'!s:<24} {good}")  # fmt: skip
        return "\n".join([*lines, *(f"{a.arm.name}: {a.arm.text}: {a.verdict}" for a in self.arms)])


class Chain:
    """The graph of an arm: children of dependent kernels, the last with a checksum. ``functions`` has one for each child."""

    def __init__(self, probe: Prober, functions: Sequence[Function]) -> None:
        runtime, self.functions = probe.runtime, list(functions)
        parent = Graph(runtime.context)
        before: list[Any] = []
        for j, function in enumerate(self.functions):
            with Stream(runtime.context) as stream:
                with capture(stream) as recording:
                    for _ in range(KERNELS):
                        function.launch((1,), (N,), probe.add_x.params, stream)
                    if j == CHILDREN - 1:
                        probe.checksum.launch((1,), (N,), probe.checksum_args.params, stream)
            before = [parent.add_child(recording.graph, before)]
            recording.graph.close()
        self.executable = parent.instantiate(runtime.stream)
        self.executable.upload(runtime.stream)

    def close(self) -> None:
        self.executable.close()
        self.executable.graph.close()


class Prober:
    """Buffers, module instances and graphs of one probe. It goes round the module pool, which makes sharing impossible."""

    def __init__(self, runtime: Runtime, replays: int) -> None:
        self.runtime, self.replays = runtime, replays
        arch = runtime.modules.architecture
        self._image, self._probe_image = (kernels.images.find(k, arch).read() for k in ("add_scalar", "checksum"))
        self._modules: list[Module] = []
        self._fresh: list[tuple[Module, Any]] = []
        self.fresh_loaded: bool | None = None
        self.x, self.y = runtime.zeros(N, np.float32, "probe.x"), runtime.zeros(N, np.float32, "probe.y")
        self.count = runtime.zeros(1, np.uint32, "probe.count")
        self.sums = runtime.zeros(replays, np.float32, "probe.sums")
        self.add_x = kernels.pack("add_scalar", dict(x=self.x, value=1.0, n=N))
        self.checksum_args = kernels.pack(
            "checksum", dict(x=self.x, count=self.count, sums=self.sums, n=N, capacity=replays)
        )
        self._add_y = kernels.pack("add_scalar", dict(x=self.y, value=1.0, n=N))
        self._walk = kernels.pack("walk_stack", dict(x=self.x, y=self.y, n=N, rounds=32))
        self._empty = kernels.pack("empty", dict(unused=0))
        with runtime.context.current():
            self.checksum = self._load(self._probe_image).function("checksum")
            self._stack = self._load(self._probe_image).function("walk_stack")
            self._copy = self._load(self._image).function("add_scalar")
            mated = self._load(self._image)
            self._mate = mated.function("empty")
            own = [mated, *(self._load(self._image) for _ in range(CHILDREN - 1))]
            self._separate = Chain(self, [module.function("add_scalar") for module in own])
            self._shared = Chain(self, [self._load(self._image).function("add_scalar")] * CHILDREN)
        self._events = [(Event(runtime.context), Event(runtime.context)) for _ in range(replays)]

    def _load(self, image: bytes) -> Module:
        module = Module(self.runtime.context, image, "probe")
        self._modules.append(module)
        return module

    def between(self, arm: str) -> Callable[[], object] | None:
        """What an arm does between two replays."""
        captured = self._separate.functions[0]
        found: dict[str, Callable[[], object]] = {
            "copy between": lambda: self._launch(self._copy, self._add_y),
            "same function between": lambda: self._launch(captured, self._add_y),
            "module mate between": lambda: self._launch(self._mate, self._empty),
            "attribute between": lambda: self._set_attribute(captured),
            "allocation between": self._allocate,
            "load between": lambda: Module(self.runtime.context, self._image, "probe").unload(),
            "first launch between": self._first_launch,
            "stack between": lambda: self._launch(self._stack, self._walk),
            "stack between, pre-sized": lambda: self._launch(self._stack, self._walk),
        }
        return found.get(arm)

    def _launch(self, function: Function, args: kernels.PackedArgs) -> None:
        function.launch((1,), (N,), args.params, self.runtime.stream)

    def _set_attribute(self, function: Function) -> None:
        cu = self.runtime.context.cu
        key = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.runtime.context.call(cu.cuFuncSetAttribute, function.handle, key, 1024)

    def _allocate(self) -> None:
        context = self.runtime.context
        context.call(context.cu.cuMemFree, context.call(context.cu.cuMemAlloc, 1 << 20))

    def _prepare_fresh(self) -> None:
        """Loads modules whose functions nobody has launched: under lazy loading their code comes with the first launch."""
        context = self.runtime.context
        for _ in range(self.replays):
            module = Module(context, self._image, "probe")
            self._fresh.append((module, context.call(context.cu.cuModuleGetFunction, module.handle, b"add_scalar")))
        state = context.call(context.cu.cuFuncIsLoaded, self._fresh[0][1])
        self.fresh_loaded = state == context.cu.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED

    def _first_launch(self) -> None:
        context = self.runtime.context
        module, function = self._fresh.pop()
        self._modules.append(module)
        context.call(context.cu.cuLaunchKernel, function, 1, 1, 1, N, 1, 1, 0, self.runtime.stream.handle,
                     self._add_y.params, 0)  # fmt: skip

    def round(self, arm: str) -> tuple[float, float, int]:
        """One round of an arm: median microseconds of a replay by events, microseconds a turn by the host's clock, and the
        number of wrong checksums."""
        stream, between = self.runtime.stream, self.between(arm)
        executable = (self._shared if arm == "shared function" else self._separate).executable
        if arm == "first launch between":
            self._prepare_fresh()
        for buffer in (self.x, self.count, self.sums):
            buffer.fill(0)
        stream.synchronize()
        started = time.perf_counter()
        for begin, end in self._events:
            if between is not None:
                between()
            begin.record(stream)
            executable.launch(stream)
            end.record(stream)
        stream.synchronize()
        host = (time.perf_counter() - started) / self.replays * 1e6
        event = float(np.median([end.elapsed_ms(begin) for begin, end in self._events])) * 1e3
        expected = N * CHILDREN * KERNELS * np.arange(1, self.replays + 1, dtype=np.float32)
        wrong = int(np.count_nonzero(self.sums.to_numpy() != expected))
        if arm == "first launch between":
            for module in self._modules[-self.replays :]:
                module.unload()
            del self._modules[-self.replays :]
        return event, host, wrong

    def stack_limit(self, nbytes: int) -> int:
        """Sets the stack of each thread; returns what it was."""
        context = self.runtime.context
        key = context.cu.CUlimit.CU_LIMIT_STACK_SIZE
        before = int(context.call(context.cu.cuCtxGetLimit, key))
        context.call(context.cu.cuCtxSetLimit, key, nbytes)
        return before

    def close(self) -> None:
        """Unloads and frees everything."""
        self.runtime.synchronize()
        self._separate.close()
        self._shared.close()
        for module in self._modules:
            module.unload()
        for buffer in (self.x, self.y, self.count, self.sums):
            buffer.free()


def _ratio(samples: Sequence[float], control: Sequence[float]) -> Ratio:
    each = np.asarray(samples) / np.asarray(control)
    return Ratio(float(np.median(each)), float(np.percentile(each, 10)), float(np.percentile(each, 90)))


def chosen(names: Sequence[str] | None) -> list[Arm]:
    """The arms of these names and their controls, in the order of `ARMS`; all of them for None."""
    if names is None:
        return list(ARMS)
    known = {arm.name: arm for arm in ARMS}
    wanted: set[str] = set()
    for name in names:
        if name not in known:
            raise FoxhuntError(f"no arm {name!r}; {choose(name, known, 'the arms')}")
        at: str | None = name
        while at is not None:
            wanted.add(at)
            at = known[at].control
    return [arm for arm in ARMS if arm.name in wanted]


def probe_isolation(
    runtime: Runtime, rounds: int = 15, replays: int = 40, arms: Sequence[str] | None = None
) -> IsolationReport:
    """Measures every arm. Synchronizes, loads and allocates; leaves nothing behind but a raised clock.

    Parameters
    ----------
    runtime : Runtime
    rounds : int
        Rounds of all arms, after one that warms up.
    replays : int
        Replays of each arm in a round.
    arms : sequence of str, optional
        Only these, and what they are compared with.
    """
    if rounds < 1 or replays < 1:
        raise FoxhuntError(f"rounds {rounds}, replays {replays}: give at least 1 of each")
    if N * CHILDREN * KERNELS * replays >= 1 << 24:
        raise FoxhuntError(
            f"{replays} replays a round: the checksums are exact up to {(1 << 24) // (N * CHILDREN * KERNELS)}"
        )
    wanted = chosen(arms)
    probe = Prober(runtime, replays)
    samples: dict[str, list[tuple[float, float, int]]] = {arm.name: [] for arm in wanted}
    late = [arm for arm in wanted if arm.name.endswith("pre-sized")]  # the limit holds for the whole context
    try:
        with runtime.context.current():
            _rounds(probe, [arm for arm in wanted if arm not in late], rounds, samples)
            if late:
                before = probe.stack_limit(4096)
                _rounds(probe, late, rounds, samples)
                probe.stack_limit(before)
    finally:
        probe.close()
    results = []
    for arm in wanted:
        events, hosts, wrong = (list(column) for column in zip(*samples[arm.name], strict=True))
        ratios: list[Ratio | None] = [None, None]
        if arm.control is not None:
            ratios = [_ratio(own, [row[k] for row in samples[arm.control]]) for k, own in enumerate((events, hosts))]
        results.append(ArmResult(arm, float(np.median(events)), float(np.median(hosts)), ratios[0], ratios[1],
                                 rounds * replays, int(sum(wrong))))  # fmt: skip
    return IsolationReport(runtime.device.name, runtime.driver_kind, runtime.device.driver_version, loading_mode(runtime),
                           probe.fresh_loaded, rounds, replays, results)  # fmt: skip


def _rounds(
    probe: Prober, arms: Sequence[Arm], rounds: int, samples: dict[str, list[tuple[float, float, int]]]
) -> None:
    for n in range(-1, rounds):  # the first warms up
        for k in range(len(arms)):
            arm = arms[(n + k) % len(arms)]
            found = probe.round(arm.name)
            if n >= 0:
                samples[arm.name].append(found)


def loading_mode(runtime: Runtime) -> str:
    """``"lazy"`` or ``"eager"``: what CUDA_MODULE_LOADING and the driver's default came to."""
    context = runtime.context
    mode = context.call(context.cu.cuModuleGetLoadingMode)
    return "lazy" if "LAZY" in str(mode) else "eager"


__all__ = ["ARMS", "Arm", "ArmResult", "IsolationReport", "Ratio", "judge", "loading_mode", "probe_isolation"]
