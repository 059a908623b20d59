"""The current context is the same before and after every call: whoever shares the thread notices nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.driver import Stream, dlpack
from foxhunt_rt.graph import Flag, Runtime, Slot
from foxhunt_rt.interop import wrap

N = 64


@pytest.fixture
def nothing_current(runtime: Runtime) -> Iterator[None]:
    cu = runtime.context.cu
    before = cu.cuCtxGetCurrent()[1]
    cu.cuCtxSetCurrent(cu.CUcontext(0))
    yield
    cu.cuCtxSetCurrent(before)


def plan_of(runtime: Runtime, x: Any, word: Any, gated: bool) -> Any:
    plan = runtime.plan("contexts")
    with plan.child("a", reads=[], writes=[x], when=Flag(word) if gated else None) as c:
        c.launch("add_scalar", (1,), (64,), dict(x=x, value=Slot(1.0), n=N))
    return plan


@pytest.mark.usefixtures("nothing_current")
def test_every_new_call_leaves_no_context_current(runtime: Runtime) -> None:
    cu = runtime.context.cu
    x, word, host = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.uint32, "word"), np.zeros(N, np.float32)
    steps: list[Any] = []
    theirs: list[Any] = []
    wrapped: list[Any] = []

    def build(gated: bool) -> None:
        steps.append(plan_of(runtime, x, word, gated).build(steps_per_launch=3 if gated else 1))

    def child() -> None:
        plan = runtime.plan("foreign")
        plan.child_from_graph("theirs", steps[1].graphs[0], reads=[], writes=[x])
        steps.append(plan.build())

    calls: list[tuple[str, Any]] = [
        ("build K steps", lambda: build(True)),
        ("build", lambda: build(False)),
        ("launch fewer", lambda: steps[0].launch(2)),
        ("nodes", lambda: steps[0].nodes),
        ("set", lambda: steps[0].set("a", "add_scalar", value=2.0)),
        ("stopped", lambda: steps[0].stopped()),
        ("verify", lambda: steps[0].verify(steps=4)),
        ("update", lambda: steps[1].update(plan_of(runtime, x, word, False))),
        ("child_from_graph", child),
        ("stream", lambda: theirs.append(Stream(runtime.context))),
        ("launch in another order", lambda: steps[1].launch(stream=theirs[0])),
        ("wrap", lambda: wrapped.append(wrap(runtime, host, "host"))),
        ("export", lambda: dlpack.consume(x.__dlpack__(), "x").release()),
        ("unwrap", lambda: wrapped.pop().free()),
        ("close", lambda: [step.close() for step in steps]),
    ]
    for name, call in calls:
        call()
        assert int(cu.cuCtxGetCurrent()[1] or 0) == 0, f"{name} left a context current"
