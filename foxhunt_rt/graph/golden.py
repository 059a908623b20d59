"""Golden replays: steps of a graph as a file that a test or a bug report can carry.

`Recorder` writes the contents of every buffer that a plan names, runs steps child by child, and keeps digests of what each
child wrote; on demand its bytes, and the bytes before and after each launch. `Replayer` puts the same bytes into a graph of the
same plan, on another build, driver or device, runs it, and names where it first departs.

The file is a compressed .npz: ``meta`` (JSON as bytes) and raw bytes of buffers, keyed by their position in the plan.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from foxhunt_rt._version import package_version
from foxhunt_rt.driver import Buffer, DeviceBuffer, FoxhuntError, Function, MappedBuffer
from foxhunt_rt.graph.child import Child, KernelOp
from foxhunt_rt.graph.deviation import Element, first_difference, worst_deviation
from foxhunt_rt.graph.state import State

if TYPE_CHECKING:
    from foxhunt_rt.graph.step import StepGraph

FORMAT = 1
DETAILS = ("digests", "children", "launches")
#: How far floats may be apart between two drivers, as a share of |expected| + rms of the tensor: sums in another order, fused
#: multiply-adds, other expf and logf.
TOLERANCE = 2e-5
Bytes = npt.NDArray[np.uint8]


class GoldenError(FoxhuntError):
    """A file that is no golden replay, or that of another plan, or one that lacks what was asked of it."""


@dataclass(frozen=True)
class Departure:
    """Where a replay first departs from the recording.

    Attributes
    ----------
    step : int
    child : str
    buffer : str
        Label.
    element : Element or None
        Index, struct field, both values; None where the file has digests only.
    """

    step: int
    child: str
    buffer: str
    element: Element | None

    def __str__(self) -> str:
        place = f"step {self.step}, child {self.child}"
        if self.element is None:
            return f"{place}: {self.buffer} has another digest (record with detail='children' to learn the index)"
        return f"{place}: {self.buffer}{self.element}"


class Golden:
    """A recording. Made by `Recorder.record`, or by `load`.

    Attributes
    ----------
    meta : dict
        JSON-ready: package, driver, device, plan, children, buffers, number of steps, detail, digests.
    arrays : dict of str to array of uint8
    """

    def __init__(self, meta: dict[str, Any], arrays: dict[str, Bytes]) -> None:
        self.meta, self.arrays = meta, arrays

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return int(self.meta["steps"])

    @property
    def detail(self) -> str:
        """``"digests"``, ``"children"`` or ``"launches"``."""
        return str(self.meta["detail"])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the file under a temporary name and renames it."""
        path = Path(path)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                meta = np.frombuffer(json.dumps(self.meta).encode(), np.uint8)
                np.savez_compressed(file, meta=meta, **self.arrays)  # type: ignore[arg-type]
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Golden:
        """Reads a file.

        Raises
        ------
        GoldenError
            It is cut short, something else, or of a newer format.
        """
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(arrays.pop("meta").tobytes())
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, AttributeError, TypeError) as error:
            raise GoldenError(f"{path} is no golden replay, or cut short ({error}): record it again") from None
        if meta.get("format") != FORMAT:
            raise GoldenError(f"{path} has format {meta.get('format')}, this version reads {FORMAT}: use the version that wrote "
                              f"it ({meta.get('package')})")  # fmt: skip
        return cls(meta, arrays)


def _raw(buffer: Buffer) -> Bytes:
    assert isinstance(buffer, (DeviceBuffer, MappedBuffer))
    return np.frombuffer(buffer.to_numpy().tobytes(), np.uint8)


def _put(buffer: Buffer, raw: Bytes) -> None:
    assert isinstance(buffer, (DeviceBuffer, MappedBuffer))
    buffer.copy_from(np.frombuffer(raw.tobytes(), buffer.dtype).reshape(buffer.shape))


class _Subject:
    """A step, with its buffers by position in the plan."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.buffers = step.buffers()
        positions = {(b.ptr, b.nbytes): i for i, b in enumerate(self.buffers)}
        self.written = [sorted({positions[b.ptr, b.nbytes] for b in (*c.writes, *c.private)}) for c in step.children]
        self._volatile = step.plan.volatile_fields
        self._fields = {buffer.ptr: fields for buffer, fields in self._volatile}

    def about(self) -> dict[str, Any]:
        """What a recording and a replay must agree on, for `meta`."""
        return {
            "children": [{"name": c.name, "launches": [getattr(op, "kernel", type(op).__name__) for op in c.ops]}
                         for c in self.step.children],
            "buffers": [{"label": b.label, "shape": list(b.shape), "dtype": _dtype_text(b.dtype),
                         "mapped": isinstance(b, MappedBuffer)} for b in self.buffers],
        }  # fmt: skip

    def digest(self, index: int) -> str:
        state = State([self.buffers[index]], self._volatile)
        return state.digest(state.snapshot())

    def volatile(self, buffer: Buffer) -> tuple[str, ...] | None:
        """Fields that are never the same twice; empty for all of them, None for no such."""
        return self._fields.get(buffer.ptr)

    def launches(self, child: Child, functions: dict[str, Function]) -> Iterator[tuple[int, KernelOp]]:
        """Each kernel launch, which the caller issues; copies and fills between them are issued here."""
        runtime = self.step.runtime
        for position, op in enumerate(child.ops):
            if isinstance(op, KernelOp):
                yield position, op
            else:
                op.issue(runtime.context, runtime.stream, functions)

    def issue(self, op: KernelOp, functions: dict[str, Function]) -> None:
        op.issue(self.step.runtime.context, self.step.runtime.stream, functions)
        self.step.runtime.synchronize()

    def functions(self) -> list[dict[str, Function]]:
        if self.step._ungraphed is None:
            raise FoxhuntError("the ungraphed module set is not loaded: build(ungraphed=True)")
        return self.step._ungraphed


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(dtype.descr) if dtype.names else dtype.str if dtype.kind != "V" else str(dtype)


def _pointees(op: KernelOp) -> dict[str, Any]:
    """What each pointer argument may touch, as buffers of bytes, by field."""
    return {use.field: use.buffer.view((use.buffer.nbytes,), np.uint8)[: use.nbytes] for use in op.args.uses}  # type: ignore[attr-defined]


class Recorder:
    """Records steps of a graph from the state that it is in.

    Parameters
    ----------
    step : StepGraph
    detail : str
        ``"digests"``: 16 hex digits of each buffer that a child wrote. ``"children"``: its bytes too, so that a departure has
        an index and values. ``"launches"``: the bytes before and after each launch too; runs ungraphed.
    """

    def __init__(self, step: StepGraph, detail: str = "children") -> None:
        if detail not in DETAILS:
            raise FoxhuntError(f"detail={detail!r} is unknown: use {', '.join(DETAILS)}")
        self.step, self.detail = step, detail

    def record(self, steps: int = 1) -> Golden:
        """Runs steps, child by child, and puts the state back.

        In a capture: refused. Synchronizes: yes. Allocates: may, executables the first time.
        """
        subject, step = _Subject(self.step), self.step
        if steps < 1:
            raise FoxhuntError(f"a golden replay needs at least one step, not {steps}")
        arrays = {f"input/{i}": _raw(b) for i, b in enumerate(subject.buffers)}
        digests: list[list[dict[str, str]]] = []
        before = step.state.snapshot()
        try:
            with step.runtime.context.current():
                for n in range(steps):
                    digests.append([])
                    for c, child in enumerate(step.children):
                        if self.detail == "launches":
                            self._launches(subject, n, c, arrays)
                        else:
                            step.run_children(child.name)
                        digests[-1].append({str(i): subject.digest(i) for i in subject.written[c]})
                        if self.detail != "digests":
                            arrays.update({f"after/{n}/{c}/{i}": _raw(subject.buffers[i]) for i in subject.written[c]})
        finally:
            step.state.restore(before)
        runtime = step.runtime
        meta = {"format": FORMAT, "notes": dict(step.plan.notes), "package": package_version(),
                "driver": runtime.driver_kind, "device": runtime.device.name,
                "driver_version": runtime.device.driver_version, "architecture": runtime.device.architecture,
                "plan": step.plan.name, **subject.about(), "steps": steps, "detail": self.detail,
                "digests": digests}  # fmt: skip
        return Golden(meta, arrays)

    def _launches(self, subject: _Subject, n: int, c: int, arrays: dict[str, Bytes]) -> None:
        functions = subject.functions()[c]
        for position, op in subject.launches(self.step.children[c], functions):
            parts = _pointees(op)
            arrays.update(
                {f"launch/{n}/{c}/{position}/{use.field}/before": _raw(parts[use.field]) for use in op.args.uses}
            )
            subject.issue(op, functions)
            arrays.update({f"launch/{n}/{c}/{position}/{use.field}/after": _raw(parts[use.field]) for use in op.args.uses
                           if use.direction != "in"})  # fmt: skip


class Replayer:
    """Replays a recording in a graph of the same plan.

    Parameters
    ----------
    step : StepGraph
    golden : Golden

    Raises
    ------
    GoldenError
        The plan has other children or buffers; the first difference is named.
    """

    def __init__(self, step: StepGraph, golden: Golden) -> None:
        self.step, self.golden = step, golden
        self._subject = _Subject(step)
        mine, theirs = self._subject.about(), golden.meta
        for kind, noun in (("children", "child"), ("buffers", "buffer")):
            ours, recorded = mine[kind], theirs[kind]
            for i in range(max(len(ours), len(recorded))):
                a = recorded[i] if i < len(recorded) else None
                b = ours[i] if i < len(ours) else None
                if (
                    kind == "children" and golden.detail != "launches"
                ):  # a build may launch a child's work in another way
                    a, b = a and a["name"], b and b["name"]
                if a != b:
                    raise GoldenError(f"the recording is of another plan: {noun} {i} is {_said(a)} there and {_said(b)} here: "
                                      "build the plan with the same configuration")  # fmt: skip

    def run(self, *, tolerance: float | None = None, ungraphed: bool = False) -> Departure | None:
        """Replays child by child and returns the first departure, or None. What the buffers held is put back.

        In a capture: refused. Synchronizes: yes. Allocates: may, executables the first time.

        Parameters
        ----------
        tolerance : float, optional
            None compares bits. On another driver or device floats may differ by this share of |expected| + rms of the tensor (see
            `TOLERANCE`); each child then starts from the recorded state, so that nothing adds up. Needs the children's bytes.
        ungraphed : bool
            Launch by launch instead of each child's own executable.
        """
        if tolerance is not None and self.golden.detail == "digests":
            raise GoldenError("a recording of digests can only be compared bit for bit: record with detail='children'")
        step, subject = self.step, self._subject
        run = step.run_ungraphed if ungraphed else step.run_children
        saved = [_raw(b) for b in subject.buffers]
        try:
            self._enter()
            for n in range(self.golden.steps):
                for c, child in enumerate(step.children):
                    run(child.name)
                    for i in subject.written[c]:
                        found = self._compare(n, c, i, tolerance)
                        if found is not None:
                            return found
        finally:
            for buffer, raw in zip(subject.buffers, saved, strict=True):
                _put(buffer, raw)
        return None

    def _enter(self) -> None:
        for i, buffer in enumerate(self._subject.buffers):
            _put(buffer, self.golden.arrays[f"input/{i}"])

    def _compare(self, n: int, c: int, i: int, tolerance: float | None) -> Departure | None:
        subject = self._subject
        if subject.digest(i) == self.golden.meta["digests"][n][c].get(str(i)):
            return None
        buffer, expected = subject.buffers[i], self.golden.arrays.get(f"after/{n}/{c}/{i}")
        child = self.step.children[c].name
        if expected is None:
            return Departure(n, child, buffer.label, None)
        volatile = subject.volatile(buffer)
        a, b = expected.view(buffer.dtype), _raw(buffer).view(buffer.dtype)
        if tolerance is None:
            element = first_difference(a, b, volatile)
        else:
            worst = worst_deviation(a, b, tolerance, volatile)
            element = worst if worst is not None and worst.deviation > 1 else None
            if element is None:
                _put(buffer, expected)
        return None if element is None else Departure(n, child, buffer.label, element)

    def launches(self, tolerance: float = TOLERANCE) -> dict[str, tuple[float, str]]:
        """Issues each launch on the bytes that it was recorded with, and compares what it writes.

        In a capture: refused. Synchronizes: yes. Allocates: no.

        Parameters
        ----------
        tolerance : float
            See `run`.

        Returns
        -------
        dict
            Per kernel the worst deviation in units of the tolerance (infinite for a wrong integer), and where it is.

        Raises
        ------
        GoldenError
            The file has no launches.
        """
        if self.golden.detail != "launches":
            raise GoldenError(f"the recording has {self.golden.detail} only: record with detail='launches'")
        subject, arrays = self._subject, self.golden.arrays
        worst: dict[str, tuple[float, str]] = {}
        saved = [_raw(b) for b in subject.buffers]
        try:
            with self.step.runtime.context.current():
                for n in range(self.golden.steps):
                    for c, child in enumerate(self.step.children):
                        functions = subject.functions()[c]
                        for position, op in subject.launches(child, functions):
                            key, parts = f"launch/{n}/{c}/{position}", _pointees(op)
                            for use in op.args.uses:
                                _put(parts[use.field], arrays[f"{key}/{use.field}/before"])
                            subject.issue(op, functions)
                            for use in op.args.uses:
                                if use.direction == "in":
                                    continue
                                kind = np.dtype(use.buffer.dtype)
                                a, b = arrays[f"{key}/{use.field}/after"], _raw(parts[use.field])
                                whole = a.size // kind.itemsize * kind.itemsize
                                found = worst_deviation(a[:whole].view(kind), b[:whole].view(kind), tolerance,
                                                        subject.volatile(use.buffer))  # type: ignore[arg-type]  # fmt: skip
                                size = 0.0 if found is None else found.deviation
                                where = f"{child.name}.{use.field}{found or ''}"
                                worst[op.kernel] = max(worst.get(op.kernel, (0.0, "")), (size, where))
        finally:
            for buffer, raw in zip(subject.buffers, saved, strict=True):
                _put(buffer, raw)
        return worst


def _said(item: Any) -> str:
    return "missing" if item is None else str(item)


__all__ = ["TOLERANCE", "Departure", "Golden", "GoldenError", "Recorder", "Replayer"]
