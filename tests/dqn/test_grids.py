"""Grids: what grows with batch, window or network stands in the first dimension, the only one above 65535."""

from __future__ import annotations

import pytest

from foxhunt_rt.dqn import Learner
from foxhunt_rt.gemm.products import ProductError
from foxhunt_rt.graph import PlanningRuntime
from foxhunt_rt.graph.child import KernelOp

from .everything import EVERYTHING, SMALL
from .test_whole_step import CASES

#: Whose second dimension is rows all the same, which keeps a wave of blocks on few rows; bounded by `row_blocks`.
BOUNDED = {"linear_forward"}


def launches(*settings: str) -> list[KernelOp]:
    """Of a step with every feature, planned without memory."""
    case = CASES[1]
    rt = PlanningRuntime("host")
    learner = Learner(rt, case.config().with_set([*EVERYTHING, *SMALL, *settings]), case.state_dim, case.branches)
    found = [op for child in learner.graph.children for op in child.ops if isinstance(op, KernelOp)]
    learner.close()
    return found


def test_no_other_dimension_grows_with_the_data() -> None:
    large = launches("replay.batch=32768", "replay.capacity=65536", "network.window=100", "network.hidden=300,300",
                     "her.rows=3000", "denoise.rows=3000", "causal.rows=3000")  # fmt: skip
    assert {op.kernel for op in large} >= {"linear_forward", "mamba_scan", "attention", "replay_windows"}
    assert {op.kernel for op in large if max(op.grid[1:], default=1) > 64} <= BOUNDED
    assert any(op.kernel == "linear_forward" and op.grid[1] > 50000 for op in large)


def test_more_rows_than_a_grid_has_are_refused_with_the_mend() -> None:
    with pytest.raises(ProductError, match=r"65535; lower replay\.batch or network\.window"):
        launches("replay.batch=65536", "replay.capacity=65536", "network.window=64")
