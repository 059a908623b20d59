"""Calls of a library inside a child: declared, captured, counted as foreign, run ungraphed, and equal four ways.

The library here is a stand-in that launches two fills through the driver, as cuBLASLt launches a kernel and a memset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import foxhunt_rt as fx
from foxhunt_rt.driver import Buffer, FoxhuntError, Stream, memset
from foxhunt_rt.graph.child import DeclarationError, Use
from foxhunt_rt.graph.flatten import Flattened
from foxhunt_rt.graph.golden import Recorder, Replayer
from foxhunt_rt.graph.write_check import WriteCheck


@dataclass
class Fill:
    """Sets the first half of a buffer to one value, the second to another: two nodes."""

    out: Buffer
    source: Buffer
    low: int
    name: str = "fill"

    @property
    def uses(self) -> Sequence[Use]:
        return Use("source", self.source, writes=False), Use("out", self.out, writes=True)

    def launch(self, stream: Stream) -> None:
        half = len(self.out) // 2
        memset(stream.context, self.out[:half], self.low, stream)
        memset(stream.context, self.out[half:], self.low + 1, stream)


def step_of(runtime: fx.Runtime, out: Buffer, source: Buffer) -> fx.graph.StepGraph:
    plan = runtime.plan("library")
    with plan.child("mixed", reads=[source], writes=[out]) as child:
        child.library(Fill(out, source, 5))
        child.launch("add_scalar", (1,), (64,), dict(x=out, value=1.0, n=16))
    return plan.build()


@pytest.fixture
def buffers(runtime: fx.Runtime):
    return runtime.zeros(64, np.float32, "out"), runtime.zeros(16, np.float32, "source")


def test_a_call_is_several_nodes_and_the_same_bits_in_every_mode(runtime: fx.Runtime, buffers) -> None:
    out, source = buffers
    step = step_of(runtime, out, source)
    step.launch()
    want = np.repeat(np.array([5, 6], np.float32), 32)
    want[:16] += np.float32(1.0)
    np.testing.assert_array_equal(out.to_numpy(), want)
    assert step.verify(steps=2).bitwise_equal
    assert [str(n) for n in step.nodes] == ["mixed/fill#0", "mixed/fill#1", "mixed/add_scalar#0"]
    assert step.info()["nodes"] == 3 and "fill" in step.dot()
    flat = Flattened(step)
    assert flat.compare(rounds=1).difference is None
    flat.close()
    golden = Recorder(step).record()
    assert Replayer(step, golden).run() is None
    with runtime.context.current():
        step.children[0].run(runtime.context, runtime.stream, step._ungraphed[0], True, WriteCheck(runtime))
    assert {"fill", "add_scalar"} <= {launch.launch for launch in step.profile(steps=2).launches}
    step.close()


def test_undeclared_buffers_of_a_call_are_refused(runtime: fx.Runtime, buffers) -> None:
    out, source = buffers
    plan = runtime.plan("undeclared")
    with pytest.raises(DeclarationError, match=r"fill.source reads source, which is not declared"):
        with plan.child("c", reads=[], writes=[out]) as child:
            child.library(Fill(out, source, 0))
    with pytest.raises(DeclarationError, match=r"fill.out writes out"):
        with plan.child("d", reads=[out, source], writes=[]) as child:
            child.library(Fill(out, source, 0))


def test_kernels_of_a_call_stand_in_the_ledger_as_foreign(runtime: fx.Runtime, buffers) -> None:
    out, source = buffers
    function = runtime.modules.function("a library", "add_scalar")

    class Kernels(Fill):
        """Launches a kernel of a module that no pool handed out, as a library does."""

        def launch(self, stream: Stream) -> None:
            args = fx.graph.Child("x", [], [out]).pack("add_scalar", dict(x=out, value=2.0, n=64))
            function.launch((1,), (64,), args.params, stream, 0)

    plan = runtime.plan("foreign")
    with plan.child("c", reads=[source], writes=[out]) as child:
        child.library(Kernels(out, source, 0))
    step = plan.build()
    step.launch()
    assert (out.to_numpy() == 2.0).all()
    assert runtime.ledger.foreign["foreign/c"] == 1 and "1 kernels" in runtime.ledger.table()
    step.close()


def test_a_product_needs_someone_who_records_it(runtime: fx.Runtime, buffers) -> None:
    out, source = buffers
    runtime.products = None
    plan = runtime.plan("none")
    with pytest.raises(FoxhuntError, match=r"foxhunt_rt.gemm.attach"):
        with plan.child("c", reads=[source], writes=[out]) as child:
            child.gemm(source, source, out)
