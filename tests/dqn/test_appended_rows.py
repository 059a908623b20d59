"""Rows that extensions append to the batch: who runs on them, what they weigh, what of the step stays with the rows drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn import Extension, ExtensionError, Learner, StepView
from tests.dqn import oracle
from tests.dqn.test_whole_step import CASES, chain, fill, transitions

CASE = CASES[1]
_COPIED = ("state", "next_state", "action", "ret", "discount", "index", "priority")


class Copies(Extension):
    """Appends the first drawn rows once more."""

    def __init__(self, name: str, rows: int, *, in_loss: bool = True, leave_out: str = "") -> None:
        self.name, self.appends, self.in_loss, self.leave_out = name, rows, in_loss, leave_out

    def record(self, step: StepView) -> None:
        to, source = step.appended(self.name), step.drawn
        pairs = [(getattr(source, f), getattr(to, f)) for f in _COPIED if f != self.leave_out]
        with step.child(f"per_sample.{self.name}", after="per_sample", reads=[a for a, _ in pairs],
                        writes=[b for _, b in pairs]) as child:  # fmt: skip
            for a, b in pairs:
                child.copy(b, a[: self.appends])


def learner_of(rt: Runtime, *extensions: Extension, settings: tuple[str, ...] = ()) -> Learner:
    made = Learner(rt, CASE.config().with_set([*settings]), CASE.state_dim, CASE.branches, keep_target=True,
                   extensions=extensions)  # fmt: skip
    fill(made, chain(transitions(CASE)))
    made.set(alpha_c51=CASE.alpha_c51)
    return made


def reference(made: Learner, before: dict[str, Any], rows: int) -> oracle.Result:
    """The oracle's step over the first ``rows`` rows of the batch, as they stand."""
    batch, config, layout = made.rows, made.config, made.layout
    value = {name: getattr(batch, name).to_numpy()[:rows] for name in _COPIED}
    size = CASE.state_dim
    drawn = value["priority"][: made.drawn.size].astype(np.float64)
    beta = config.replay.beta_start
    weight = (drawn.min() / value["priority"].astype(np.float64)) ** beta
    settings = oracle.Settings(CASE.branches, CASE.atoms, config.loss.v_min, config.loss.v_max, CASE.alpha_c51,
                               config.loss.label_smoothing, config.loss.grad_budget, config.loss.branch_reduction)  # fmt: skip
    rows_of = oracle.Batch(value["state"][:, :size].astype(np.float64), value["next_state"][:, :size].astype(np.float64),
                           value["action"], value["ret"].astype(np.float64), value["discount"].astype(np.float64),
                           weight)  # fmt: skip
    return oracle.loss(layout.unpack(before["theta"]), layout.unpack(before["target"]), rows_of,
                       made.ddqn.next_action.to_numpy()[:rows], settings)  # fmt: skip


@pytest.mark.parametrize("settings", [(), ("loss.grad_budget=1e-3",), ("replay.batch=270", "loss.grad_budget=1e-3")],
                         ids=["no budget", "budget", "statistics in chunks"])  # fmt: skip
def test_rows_with_and_without_a_loss(runtime: Runtime, settings: tuple[str, ...]) -> None:
    """The gradient is that of the mean over all rows with a loss; statistics are those of the rows drawn alone."""
    made = learner_of(runtime, Copies("silent", 16, in_loss=False), Copies("more", 17), settings=settings)
    drawn = made.drawn.size
    assert (made.batch.size, made.rows.size) == (drawn + 17, drawn + 33)
    before = {"theta": made.adam.theta.to_numpy(), "target": made.adam.target.to_numpy()}
    priority = made.replay.priority.to_numpy()
    made.step()
    record = made.drain()[-1]
    expected = reference(made, before, drawn + 17)
    found = made.layout.unpack(made.grad.grad.to_numpy())
    for name in expected.gradient:
        print(oracle.compare(name, found[name], expected.gradient[name], expected.magnitude[name]))
    assert record["ce_scale"] == pytest.approx(expected.scales[0], rel=5e-5)
    assert record["mse_scale"] == pytest.approx(expected.scales[1], rel=5e-5)
    assert made.ddqn.dlogits_all is not None and not made.ddqn.dlogits_all.to_numpy()[drawn + 17 :].any()
    # of the rows drawn: statistics, priorities
    assert record["td_error"] == pytest.approx(expected.td_error[:drawn].mean(), rel=5e-5)
    assert record["q_mean"] == pytest.approx(expected.q[:drawn].mean(), rel=5e-5, abs=1e-5)
    index, delta = made.drawn.index.to_numpy(), made.drawn.td_error.to_numpy().astype(np.float64)
    priority[index] = (delta + made.config.replay.eps) ** made.config.replay.alpha
    np.testing.assert_allclose(made.replay.priority.to_numpy(), priority, rtol=1e-5)
    result = made.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    made.close()


def test_every_feature_runs_on_appended_rows(runtime: Runtime) -> None:
    on = tuple(f"{name}.enabled=true" for name in ("popart", "cql", "iql", "iqn", "selectivity", "risk", "causal"))
    made = learner_of(runtime, Copies("silent", 16, in_loss=False), Copies("more", 17), settings=on)
    for _ in range(3):
        made.step()
    records = made.drain()
    assert all(
        np.isfinite(records[name]).all() for name in ("loss", "cql_loss", "iql_loss", "iqn_loss", "risk_pinball")
    )
    result = made.graph.verify(steps=2)
    assert result.bitwise_equal, str(result)
    made.close()


def test_rows_that_nobody_writes_are_refused(runtime: Runtime) -> None:
    with pytest.raises(ExtensionError, match="half: no child writes the whole of the rows"):
        learner_of(runtime, Copies("half", 16, leave_out="discount"))
    with pytest.raises(ExtensionError, match="announced no rows"):
        learner_of(runtime, Copies("none", 0))
