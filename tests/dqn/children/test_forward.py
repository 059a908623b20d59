"""forward: three passes of the network against NumPy float64; single passes for acting."""

from __future__ import annotations

import numpy as np
import pytest

import foxhunt_rt as fx
from foxhunt_rt.dqn.children import forward

from .network_case import SHAPES, Case, Shape, assert_close, pad_columns
from .network_case import forward as reference


def run_forward(runtime: fx.Runtime, case: Case) -> forward.ForwardBuffers:
    layout = case.layout
    inputs = forward.ForwardInputs(
        runtime.array(layout.pack(case.theta), "theta"),
        runtime.array(layout.pack(case.target), "target"),
        runtime.array(pad_columns(case.state, layout.state_padded), "state"),
        runtime.array(pad_columns(case.next_state, layout.state_padded), "next_state"),
    )
    buffers = forward.ForwardBuffers.create(runtime, layout, case.batch)
    plan = runtime.plan("forward")
    forward.add(plan, layout, inputs, buffers)
    plan.build(ungraphed=False).launch()
    return buffers


def run_rows(runtime: fx.Runtime, case: Case, rows: int) -> forward.ForwardWorkspace:
    """One pass of the online network over the first ``rows`` states, in a workspace for all of them."""
    layout = case.layout
    params = runtime.array(layout.pack(case.theta), "theta")
    x = runtime.array(pad_columns(case.state, layout.state_padded), "x")
    workspace = forward.ForwardWorkspace.create(runtime, layout, case.batch, "policy")
    plan = runtime.plan("act")
    with plan.child("policy", reads=[params, x], writes=workspace.buffers()) as child:
        forward.record_forward(child, layout, params, x, rows, workspace)
    plan.build(ungraphed=False).launch()
    return workspace


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_three_passes_agree_with_float64(runtime: fx.Runtime, shape: Shape) -> None:
    case = Case.make(*shape)
    buffers = run_forward(runtime, case)
    passes = [(case.theta, case.state), (case.theta, case.next_state), (case.target, case.next_state)]
    for p, (tensors, x) in enumerate(passes):
        outputs, terms = reference(tensors, x)
        for i, (buffer, ref, budget) in enumerate(zip([*buffers.hidden, buffers.logits], outputs, terms, strict=True)):
            got = buffer.to_numpy()[p]
            assert_close(f"pass {p}, layer {i}", got[:, : ref.shape[1]], ref, budget)
            assert not got[:, ref.shape[1] :].any(), f"pass {p}, layer {i}: pads must stay zero"


@pytest.mark.parametrize(("hidden", "batch", "kernels"), [
    ((17, 40, 9), 37, ["linear_pair", "linear_forward", "linear_forward"]),  # narrow, few rows: the first two in one launch
    ((17, 40, 9), 257, ["linear_forward"] * 4),
    ((17, 65), 37, ["linear_forward"] * 3),
    ((17,), 37, ["linear_forward"] * 2),
])  # fmt: skip
def test_launches_are_one_per_layer_or_per_narrow_pair(
    runtime: fx.Runtime, hidden: tuple[int, ...], batch: int, kernels: list[str]
) -> None:
    case = Case.make(33, hidden, (2, 4), 13, batch)
    inputs = forward.ForwardInputs(
        *(runtime.zeros(n, np.float32, "x") for n in (case.layout.size,) * 2),
        *(runtime.zeros((batch, 64), np.float32, "s") for _ in range(2)),
    )
    plan = runtime.plan("forward")
    forward.add(plan, case.layout, inputs, forward.ForwardBuffers.create(runtime, case.layout, batch))
    assert [op.kernel for op in plan.children[0].ops] == kernels


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 37])
def test_a_row_does_not_depend_on_the_rows_with_it(runtime: fx.Runtime, rows: int) -> None:
    """Nor on whether its layers are launches of their own, as they are for acting, or a pair."""
    case = Case.make(33, (17, 40, 9), (2, 4), 13, 37)
    batch = run_forward(runtime, case).logits.to_numpy()[forward.ONLINE]
    alone = run_rows(runtime, case, rows).logits.to_numpy()
    np.testing.assert_array_equal(alone[:rows], batch[:rows])
    assert not alone[rows:].any(), "rows beyond R are not touched"


def test_nan_is_not_lost_in_relu(runtime: fx.Runtime) -> None:
    """Known failure K11: a maximum that drops NaN hides a broken network behind a plausible number."""
    case = Case.make(7, (5, 6), (3,), 11, 3)
    case.state[1, 4] = np.nan
    logits = run_forward(runtime, case).logits.to_numpy()[:, :, : case.layout.head_width]
    assert np.isnan(logits[forward.ONLINE, 1]).all()
    assert np.isfinite(np.delete(logits[forward.ONLINE], 1, axis=0)).all() and np.isfinite(logits[1:]).all()


def test_negative_infinity_is_clipped_and_positive_infinity_kept(runtime: fx.Runtime) -> None:
    case = Case.make(7, (5,), (3,), 11, 2)
    case.theta["trunk.0.bias"][:] = [np.inf, -np.inf, 1, -1e9, 0]
    hidden = run_forward(runtime, case).hidden[0].to_numpy()[forward.ONLINE]
    assert (hidden[:, 0] == np.inf).all() and (hidden[:, 1] == 0).all() and (hidden[:, 3] == 0).all()
