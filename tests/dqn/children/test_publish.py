"""publish alone, on statistics of one's own: what is reported of Q lies within the support, or it is a fault (known failure K11:
a reduction's seed, -1e30, was reported as a Q-value)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime, abi
from foxhunt_rt.dqn.children import publish
from foxhunt_rt.dqn.children.ddqn import LossShape
from foxhunt_rt.dqn.guard import CLEAR, Finding, decode

SHAPE, V_MIN, V_MAX = LossShape(9, (3, 2), 11), -2.0, 3.0
LIMIT = np.float32(V_MAX) * np.float32(1.00001)


def published(rt: Runtime, *, key: int = CLEAR, **given: float) -> tuple[Any, Finding | None]:
    """The record, and what the guard block holds, of statistics that are sound but for those given (means over the rows)."""
    total = np.zeros((1, SHAPE.stats_width), np.float32)
    total[:, abi.constant("STATS") :] = SHAPE.batch / SHAPE.atoms
    means = {"q_min": -1.0, "q_max": 2.0, "q": 0.5, "target": 0.25, "non_terminal": 1.0} | given
    for name, value in means.items():
        factor = 1 if name in ("q_min", "q_max") else SHAPE.batch
        total[0, abi.constant(f"STAT_{name.upper()}")] = np.float32(value) * factor
    step = np.zeros(1, abi.dtype("step_block"))
    step["v_min"], step["v_max"] = V_MIN, V_MAX
    guard = rt.array(np.array([(key,)], abi.dtype("guard_block")), "test.guard")
    records = rt.mapped(4, abi.dtype("step_record"), "test.records")
    zeros = {
        name: rt.zeros(1, abi.dtype(name), f"test.{name}") for name in ("optim_stats", "replay_state", "alarm_block")
    }
    publish.record(
        rt.ungraphed("test.publish"), SHAPE,  # type: ignore[arg-type]
        publish.PublishInputs(rt.array(total, "test.total"), rt.array(step, "test.step"), zeros["optim_stats"],
                              zeros["replay_state"], guard),
        publish.PublishBuffers(zeros["alarm_block"], records),
    )  # fmt: skip
    return records.to_numpy()[0], decode(int(guard.to_numpy()["key"][0]))


@pytest.mark.parametrize(("name", "element"), [("q_min", 0), ("q_max", 1), ("q", 2), ("target", 3)])
def test_a_reported_q_beyond_the_support_is_a_fault_in_this_very_record(
    runtime: Runtime, name: str, element: int
) -> None:
    for value, check in ((-1e30, "q_range"), (3.01, "q_range"), (np.nan, "non_finite"), (-np.inf, "non_finite")):
        record, finding = published(runtime, **{name: value})
        assert finding is not None and (finding.child, finding.check, finding.element) == ("publish", check, element)
        assert decode(int(record["guard_key"])) == finding or check == "non_finite"
        assert record["guard_key"] != CLEAR and record["sequence"] == 1
        if check == "q_range":
            assert finding.value == pytest.approx(value, rel=1e-6)


def test_at_the_limit_nothing_is_said_and_an_earlier_finding_stays(runtime: Runtime) -> None:
    record, finding = published(runtime, q_min=-float(LIMIT), q_max=float(LIMIT), q=2.9, target=-2.9)
    assert finding is None and record["guard_key"] == CLEAR
    first = abi.constant("GUARD_DDQN") << 60 | abi.constant("CHECK_MASS") << 56 | 7 << 32
    record, finding = published(runtime, key=first, q_max=-1e30)
    assert record["guard_key"] == first and finding is not None and finding.child == "ddqn"


def test_statistics_of_no_rows_are_a_fault(runtime: Runtime) -> None:
    """The seeds of the minimum and the maximum, where no row came by: the old system reported them."""
    for seeds in ((np.inf, -np.inf), (1e30, -1e30)):
        _, finding = published(runtime, q_min=seeds[0], q_max=seeds[1])
        assert finding is not None and finding.child == "publish"
