"""Assertions about graph replays. A failure shows the first difference, or the calls that were made, and the ledger.

They raise plain `AssertionError` and need no pytest.
"""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from foxhunt_rt.driver import PLUMBING, DriverCalls
from foxhunt_rt.driver.tracing import loads, synchronizes, takes_memory

if TYPE_CHECKING:
    from foxhunt_rt.graph import Runtime, StepGraph, Verification


def assert_replay_matches(step: StepGraph, steps: int = 1) -> Verification:
    """The step gives the same bits launch by launch, child by child and as one launch. The state is put back.

    In a capture: refused. Synchronizes: yes. Allocates: may, executables the first time.

    Parameters
    ----------
    step : StepGraph
        Built with its ungraphed module set.
    steps : int

    Returns
    -------
    Verification

    Raises
    ------
    AssertionError
        Names the first departure: run, step, child, buffer, index and both values.
    """
    found = step.verify(steps)
    if not found.bitwise_equal:
        raise AssertionError(f"the replay departs\n{found}\n{_ledger(step.runtime)}")
    return found


def assert_isolated(runtime: Runtime) -> None:
    """No function belongs to two children, and no module with a captured function launches anything ungraphed.

    Both rules are checked anew on the ledger, whatever `Isolation` mode the runtime has.
    """
    problems = list(runtime.ledger.breaches)
    owners: dict[tuple[int, str], str] = {}
    for entry in runtime.ledger.entries():
        for kernel, child in entry.captured.items():
            other = owners.setdefault((entry.instance, kernel), child)
            if other != child:
                problems.append(f"{kernel} of module {entry.instance} belongs to {other} and to {child}")
        if entry.captured and entry.ungraphed:
            problems.append(f"module {entry.instance} ({entry.module.name}) is captured by "
                            f"{', '.join(sorted(set(entry.captured.values())))} and launched ungraphed by "
                            f"{', '.join(sorted(set(entry.ungraphed.values())))}")  # fmt: skip
    if problems:
        raise AssertionError("\n".join([*dict.fromkeys(problems), _ledger(runtime)]))


@contextlib.contextmanager
def assert_no_sync(runtime: Runtime | None = None) -> Iterator[DriverCalls]:
    """No driver call of the with block waits for the device. Under hostsim, and under FOXHUNT_TRACE, the calls of other
    libraries count too."""
    gc.collect()  # what was garbage before is not freed in the block
    with DriverCalls() as calls:
        yield calls
    _refuse(calls, synchronizes, "synchronizing calls", "read results from mapped memory, a step later", runtime)


@contextlib.contextmanager
def assert_no_allocation(runtime: Runtime | None = None) -> Iterator[DriverCalls]:
    """No driver call of the with block allocates, frees, loads, unloads, creates, destroys or sets an attribute or a limit."""
    gc.collect()  # what was garbage before is not freed in the block
    with DriverCalls() as calls:
        yield calls
    _refuse(
        calls,
        lambda call: takes_memory(call) or loads(call),
        "allocating or loading calls",
        "allocate, load and build before the loop",
        runtime,
    )


@contextlib.contextmanager
def assert_calls(expected: Mapping[str, int], *, also: Collection[str] = PLUMBING,
                 runtime: Runtime | None = None) -> Iterator[DriverCalls]:  # fmt: skip
    """The with block makes exactly these driver calls, so often, and beside them none but those of ``also``.

    The strictest of the three: ``with assert_calls({"cuGraphLaunch": 1000}): ...`` leaves room for nothing.
    """
    gc.collect()  # what was garbage before is not freed in the block
    with DriverCalls() as calls:
        yield calls
    wrong = [f"{calls.found.get(name, 0):,} {name}, expected {count:,}" for name, count in expected.items()
             if calls.found.get(name, 0) != count]  # fmt: skip
    wrong += [
        f"{n:,} {name}, expected none" for name, n in calls.found.items() if name not in expected and name not in also
    ]
    if wrong:
        raise AssertionError(_message("\n".join(wrong), calls, runtime))


@contextlib.contextmanager
def assert_no_growth(nbytes: int = 4096) -> Iterator[None]:
    """The with block leaves no more than ``nbytes`` of new Python objects behind, by tracemalloc, garbage collected.

    Run the work once before, so that what is made on first use is not counted, and often inside: an object a turn shows among a
    thousand turns. Blocks do not nest.
    """
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        yield
        gc.collect()
        grown = tracemalloc.take_snapshot().compare_to(before, "lineno")
    finally:
        tracemalloc.stop()
    grown = [line for line in grown if line.traceback[0].filename != tracemalloc.__file__]
    left = sum(line.size_diff for line in grown)
    if left > nbytes:
        largest = "\n".join(str(line) for line in grown[:5])
        raise AssertionError(
            f"{left:,} bytes of Python objects were left behind, at most {nbytes:,} are expected:\n{largest}"
        )


def _refuse(calls: DriverCalls, kind: Callable[[str], bool], what: str, mend: str, runtime: Runtime | None) -> None:
    bad = {name: n for name, n in calls.found.items() if kind(name)}
    if bad:
        made = ", ".join(f"{n:,} {name}" for name, n in bad.items())
        others = sum(max(0, n - calls.ours.get(name, 0)) for name, n in bad.items())
        whose = f" ({others:,} past this package's checked calls: another library, or a destructor)" if others else ""
        raise AssertionError(_message(f"{what}: {made}{whose}: {mend}", calls, runtime))


def _message(text: str, calls: DriverCalls, runtime: Runtime | None) -> str:
    lines = [text, f"all driver calls of the block: {calls.text()}"]
    return "\n".join([*lines, _ledger(runtime)] if runtime is not None else lines)


def _ledger(runtime: Runtime) -> str:
    return f"the ledger:\n{runtime.ledger.table()}"
