"""The flattened twin has the step's nodes and dependencies and gives its bits."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import FoxhuntError
from foxhunt_rt.graph import Flag
from foxhunt_rt.graph.flatten import Flattened

N = 300


def test_kernels_fills_and_copies_in_their_order(runtime, step_plan):
    x, y, z = (runtime.zeros(N, np.float32, name) for name in "xyz")
    total = runtime.zeros(1, np.float32, "total")
    with step_plan.child("fill", reads=[], writes=[x]) as c:
        c.memset(x, 2.0)
        c.launch("add_scalar", (3,), (128,), dict(x=x, value=1.0, n=N))
    with step_plan.child("beside", reads=[], writes=[z]) as c:
        c.launch("add_scalar", (3,), (128,), dict(x=z, value=1.0, n=N))
    with step_plan.child("copy", reads=[x], writes=[y]) as c:
        c.copy(y, x)
        c.launch("add_scalar", (3,), (128,), dict(x=y, value=0.5, n=N))
    with step_plan.child("sum", reads=[y, z], writes=[total]) as c:
        c.launch("sum", (1,), (256,), dict(x=y, sum=total, n=N))
    step = step_plan.build()
    flat = Flattened(step)
    found = flat.compare()
    assert found.bitwise_equal, found.difference
    assert (found.nodes, found.edges) == (6, 5), (
        "two chains of two, one in between, and the ends of two children before the sum"
    )
    assert not total.to_numpy().any(), "the state is put back"
    flat.launch()
    assert total.to_numpy()[0] == 3.5 * N and (y.to_numpy() == 3.5).all() and (z.to_numpy() == 1).all()
    flat.close()


def test_a_difference_would_be_seen(runtime, step_plan):
    x = runtime.zeros(N, np.float32, "x")
    with step_plan.child("a", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (3,), (128,), dict(x=x, value=1.0, n=N))
    step = step_plan.build()
    step.children[0].ops.append(step.children[0].ops[0])  # the twin launches twice what the step does once
    found = Flattened(step).compare(steps=1)
    assert str(found.difference) == "x[0]: 1.0 against 2.0"


@pytest.mark.parametrize("launches", [1, 2])
def test_a_learner(runtime, launches):
    config = Config().with_set(["network.hidden=12", "network.atoms=11", "replay.batch=16", "replay.capacity=512",
                                "loss.v_min=-3", "loss.v_max=3", f"train.steps_per_launch={launches}"])  # fmt: skip
    learner = Learner(runtime, config, 5, (3, 2))
    random, staging = np.random.default_rng(0), learner.replay.staging(8)
    for _ in range(6):
        state, after = (random.normal(size=(8, 5)).astype(np.float32) for _ in range(2))
        learner.replay.insert_batch(staging, random.integers(0, 6, 8), random.normal(size=8), random.random(8) < 0.1,
                                    np.zeros(8, bool), state=state, next_state=after)  # fmt: skip
    flat = Flattened(learner.graph)
    found = flat.compare(steps=3, rounds=3)
    assert found.bitwise_equal, found.difference
    assert found.nodes == learner.graph.info()["nodes"]
    flat.close()
    learner.close()


def test_what_cannot_be_flattened_is_refused(runtime, step_plan):
    x, word = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.uint32, "word")
    with step_plan.child("gated", reads=[], writes=[x], when=Flag(word)) as c:
        c.memset(x, 1.0)
    with pytest.raises(FoxhuntError, match="child gated stands behind an IF node"):
        Flattened(step_plan.build())
