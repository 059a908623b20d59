"""The current context, and with it the device, is the same before and after every public call, whatever was current: nothing, as
in a thread that has not used CUDA, or another library's context. Any thread may make any call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from foxhunt_rt.graph import Runtime

from .legality_cases import CASES, World

#: Whose purpose is to do what it is told by the raw call that it is given.
AS_TOLD = {"driver.call", "Context.call"}


@pytest.fixture(scope="module")
def others(world: World) -> Iterator[int]:
    """A context of another library on the same device."""
    cu = world.rt.context.cu
    context = world.rt.context.call(cu.cuCtxCreate, None, 0, world.rt.device.handle)
    cu.cuCtxPopCurrent()
    yield int(context)
    cu.cuCtxDestroy(context)


def current(rt: Runtime) -> int:
    return int(rt.context.cu.cuCtxGetCurrent()[1] or 0)


@pytest.mark.parametrize("situation", ["nothing current", "another context current"])
@pytest.mark.parametrize("name", [n for n in CASES if n.partition("#")[0] not in AS_TOLD])
def test_what_was_current_stays_so(name: str, situation: str, world: World, others: int) -> None:
    cu = world.rt.context.cu
    run = CASES[name](world)
    before, wanted = current(world.rt), 0 if situation == "nothing current" else others
    found: list[Any] = []
    try:
        cu.cuCtxSetCurrent(cu.CUcontext(wanted))
        kept = run()
        found.append(current(world.rt))
        del kept
        found.append(current(world.rt))  # after what a destructor does
    finally:
        cu.cuCtxSetCurrent(cu.CUcontext(before))
    if name.partition("#")[0] == "Context.current":
        return  # a context manager, which says so
    assert found == [wanted, wanted]


@pytest.mark.parametrize("name", CASES)
def test_any_thread_may_call(name: str, world: World) -> None:
    """A thread in which no context was ever current."""
    run = CASES[name](world)
    found: list[Any] = []

    def call() -> None:
        try:
            with world.rt.context.current():  # nothing but what `driver.call` is told
                pass
            run()
            found.append(current(world.rt))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    if name.partition("#")[0] in AS_TOLD:
        return
    assert found == [0]
