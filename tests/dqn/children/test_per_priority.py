"""per_priority as a child of a graph. Formula, duplicates and sums: tests/replay."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.dqn.children import per_priority, per_sample
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import Batch

from ...replay.harness import check_sums, filled, step_block


@pytest.mark.parametrize(("capacity", "launches"), [(256, 1), (65536, 1), (66_000, 2)])
def test_launches_and_the_same_bits_in_every_mode(runtime: Runtime, capacity: int, launches: int) -> None:
    replay = filled(runtime, capacity, capacity)
    batch = Batch.allocate(runtime, 64, 1)
    batch.td_error.copy_from(np.linspace(0, 3, 64, dtype=np.float32))
    step = step_block(runtime)
    plan = runtime.plan("step")
    per_sample.add(plan, per_sample.PerSampleInputs(replay, step, None), batch)
    per_priority.add(plan, per_priority.PerPriorityInputs(batch, step), replay)
    assert [len(child.ops) for child in plan.children] == [1, launches]
    assert plan.dependencies() == [(0, 1)]
    graph = plan.build()
    for _ in range(3):
        graph.launch()
        check_sums(replay)
    index, priority = batch.index.to_numpy(), replay.priority.to_numpy()
    last = np.flatnonzero(np.append(index[1:] != index[:-1], True))
    expected = (np.linspace(0, 3, 64, dtype=np.float32)[last].astype(np.float64) + 1e-6) ** 0.6
    np.testing.assert_allclose(priority[index[last]], expected, rtol=1e-5)
    assert graph.verify(steps=2).bitwise_equal
    graph.close()
