"""per_sample as a child of a graph. Which rows are drawn, and their windows: tests/replay."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.dqn.children import per_sample
from foxhunt_rt.graph import DeclarationError, Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Batch, Replay

from ...replay.harness import Filler, poisoned_batch, sample, step_block


def test_one_launch_and_the_same_bits_in_every_mode(runtime: Runtime) -> None:
    replay = Replay(runtime, 300, 7, n_step=3)
    Filler(replay, 5, seed=1).insert(50)
    batch, step = poisoned_batch(runtime, 33, 7), step_block(runtime)
    guard = runtime.empty(1, abi.dtype("guard_block"), "guard")
    guard.copy_from(np.array([(2**64 - 1,)], abi.dtype("guard_block")))
    plan = runtime.plan("step")
    per_sample.add(plan, per_sample.PerSampleInputs(replay, step, guard), batch)
    assert [child.name for child in plan.children] == ["per_sample"] and len(plan.children[0].ops) == 1
    graph = plan.build()
    graph.launch()
    drawn = batch.index.to_numpy()
    np.testing.assert_array_equal(drawn, sample(replay, Batch.allocate(runtime, 33, 7), step_block(runtime))["index"])
    assert graph.verify(steps=2).bitwise_equal
    assert guard.to_numpy()["key"][0] == 2**64 - 1
    graph.close()


def test_the_step_decides_what_is_drawn(runtime: Runtime) -> None:
    # step, gamma and the ring's contents are read at replay, not baked at capture (known failure K8)
    replay = Replay(runtime, 512, 2, n_step=2)
    filler = Filler(replay, 4, seed=2, end_chance=0.0)
    filler.insert(30)
    batch, step = poisoned_batch(runtime, 64, 2), step_block(runtime)
    plan = runtime.plan("step")
    per_sample.add(plan, per_sample.PerSampleInputs(replay, step, None), batch)
    graph = plan.build()
    for rng_step, gamma in ((1, 0.5), (2, 0.25)):
        filler.insert(20)
        step.copy_from(step_block(runtime, rng_step=rng_step, gamma=gamma).to_numpy())
        graph.launch()
        got = batch.index.to_numpy()
        np.testing.assert_array_equal(
            got, sample(replay, Batch.allocate(runtime, 64, 2), step_block(runtime, rng_step=rng_step))["index"]
        )
        assert got.max() >= 4 * 30 * rng_step
        np.testing.assert_allclose(batch.discount.to_numpy(), gamma**2)
    graph.close()


def test_what_is_not_declared_is_refused(runtime: Runtime) -> None:
    replay = Replay(runtime, 256, 2)
    batch, step = Batch.allocate(runtime, 4, 2), step_block(runtime)
    inputs = per_sample.PerSampleInputs(replay, step, None)
    for left_out in (step, batch.ret, batch.next_state):
        plan = runtime.plan("step")
        writes = [b for b in per_sample.writes(inputs, batch) if b is not left_out]
        with pytest.raises(DeclarationError, match=left_out.label):
            with plan.child("per_sample", per_sample.reads(inputs), writes) as child:
                per_sample.record(child, inputs, batch)
