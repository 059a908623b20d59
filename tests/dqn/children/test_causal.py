"""causal: importances against the network in float64, planted groups, and what the step is with it on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import ConfigError
from foxhunt_rt.dqn import Learner
from foxhunt_rt.dqn.children.causal import Causal
from foxhunt_rt.kernels import abi
from foxhunt_rt.testing import assert_calls

from .. import feature_harness as harness
from .. import oracle

ON = ("causal.enabled=true", "causal.period=2", "causal.groups=3,1,2", "causal.rows=8", "causal.rate=0.4",
      "optim.horizon=1000")  # fmt: skip


def expected_q(learner: Learner, params: dict[str, Any], x: Any) -> Any:
    """(R, S) expected return of every action of every branch, f64."""
    loss, case = learner.config.loss, harness.CASE
    settings = oracle.Settings(case.branches, case.atoms, loss.v_min, loss.v_max, 0.0, 0.0, 0.0)
    found = []
    for logits in oracle.forward(params, x, settings, np):
        p = np.exp(logits - logits.max(-1, keepdims=True))
        found.append((p * settings.z).sum(-1) / p.sum(-1))
    return np.concatenate(found, axis=1)


def effects(learner: Learner, params: dict[str, Any], groups: tuple[int, ...], rows: int, mean: bool) -> Any:
    """Mean |Q(do) - Q| of each group on the first rows of the batch that the last step drew."""
    params = {name: t.astype(np.float64) for name, t in params.items()}
    x = learner.batch.state.to_numpy()[:rows, : harness.CASE.state_dim].astype(np.float64)
    before, out, at = expected_q(learner, params, x), [], 0
    for size in groups:
        changed = x.copy()
        changed[:, at : at + size] = x[:, at : at + size].mean(0) if mean else 0.0
        out.append(np.abs(expected_q(learner, params, changed) - before).mean())
        at += size
    return np.array(out)


@pytest.mark.parametrize(("reference", "groups", "rows"), [("mean", (3, 1, 2), 8), ("zero", (3, 1, 2), 29), ("zero", (), 1),
                                                           ("mean", (7,), 64)])  # fmt: skip
def test_importance_is_the_running_mean_of_the_effects(runtime: Runtime, reference: str, groups: tuple[int, ...],
                                                       rows: int) -> None:  # fmt: skip
    learner = harness.learner(runtime, (*ON, f"causal.reference={reference}", f"causal.groups={','.join(map(str, groups))}",
                                        f"causal.rows={rows}"))  # fmt: skip
    causal = harness.extension(learner, Causal)
    sizes = groups or (1,) * harness.CASE.state_dim
    assert causal.groups == sizes
    importance, seen = np.zeros(len(sizes)), 0
    for step in range(9):
        params = learner.params()
        learner.step()
        record = learner.drain()[-1]
        if step % 2 == 0 and step > 0:
            seen += 1
            effect = effects(learner, params, sizes, min(rows, harness.CASE.batch), reference == "mean")
            importance += max(0.4, 1 / seen) * (effect - importance)
        found = causal.importance.to_numpy()
        z = max(abs(learner.config.loss.v_min), abs(learner.config.loss.v_max))
        np.testing.assert_allclose(found, importance, rtol=2e-4, atol=2e-6 * z)
        share = importance / importance.sum() if importance.any() else importance
        entropy = -(share * np.log(np.where(share > 0, share, 1))).sum() / np.log(len(sizes)) if len(sizes) > 1 else 1.0
        assert record["causal_largest"] == found.max()
        assert record["causal_entropy"] == pytest.approx(entropy if seen else 0.0, abs=1e-3)
    assert causal.measured.to_numpy()[0] == 4 == causal.report()["interventions"]
    assert causal.report()["importance"] == [float(x) for x in found] and causal.report()["groups"] == list(sizes)
    learner.close()


def test_metrics_move_with_what_the_network_uses(runtime: Runtime) -> None:
    """Planted: a first layer that reads one group alone; the same ten times as strong; all groups alike."""
    found = {}
    for name, scale in {"one": (1.0, 0.0, 0.0), "stronger": (10.0, 0.0, 0.0), "all": (1.0, 1.7, 1.2)}.items():
        learner = harness.learner(runtime, (*ON, "optim.lr_min=0", "optim.lr=0"))
        params = learner.params()
        params["trunk.0.weight"][6:] = 0.0
        params["trunk.0.weight"][:6] *= np.repeat(scale, (3, 1, 2))[:, None].astype(np.float32)
        learner.load_params(params)
        for _ in range(3):
            learner.step()
        found[name] = learner.drain()[-1]
        importance = harness.extension(learner, Causal).importance.to_numpy()
        assert importance[0] > 0 and ((importance[1:] > 0).all() if name == "all" else not importance[1:].any())
        learner.close()
    assert found["one"]["causal_entropy"] == 0.0 < found["all"]["causal_entropy"] <= 1.0
    assert found["stronger"]["causal_largest"] > 2 * found["one"]["causal_largest"] > 0.0


def test_an_effect_that_is_not_finite_is_kept(runtime: Runtime) -> None:
    user, groups, rows = runtime.ungraphed("test.causal"), 3, 5
    effect = np.ones((groups, rows), np.float32)
    effect[1, 2] = np.nan
    names = dict(importance=groups, largest=1, entropy=1)
    buffers = {name: runtime.zeros(n, np.float32, name) for name, n in names.items()}
    measured = runtime.zeros(1, np.uint32, "measured")
    user.launch("causal_update", (1,), (64,), dict(buffers, effect=runtime.array(effect, "effect"), measured=measured,
                                                   rate=0.1, R=rows, G=groups))  # fmt: skip
    np.testing.assert_array_equal(buffers["importance"].to_numpy(), np.float32([1, np.nan, 1]))
    assert np.isnan(buffers["largest"].to_numpy()[0]) and np.isnan(buffers["entropy"].to_numpy()[0])


def test_the_network_does_not_notice(runtime: Runtime) -> None:
    found = []
    for settings in (ON, ON[5:]):
        learner = harness.learner(runtime, settings)
        for _ in range(7):
            learner.step()
        learner.drain()
        found.append((learner.adam.theta.to_numpy().tobytes(), learner.replay.priority.to_numpy().tobytes()))
        learner.close()
    assert found[0] == found[1]


def test_bits_launches_resume_and_reset(runtime: Runtime) -> None:
    learner = harness.learner(runtime, (*ON, "train.steps_per_launch=3"))
    learner.step(1)
    learner.drain()
    result = learner.graph.verify(steps=4)
    assert result.bitwise_equal, str(result)
    with assert_calls({"cuGraphLaunch": 10}, runtime=runtime) as calls:
        for _ in range(10):
            learner.step(1)
    assert calls.ours["cuGraphLaunch"] == 10
    learner.close()
    harness.check_resume(runtime, ON)
    harness.check_reset(runtime, ON)


def test_off_it_adds_nothing_and_on_what_is_said(runtime: Runtime) -> None:
    off, on = harness.footprint(runtime, ("causal.period=2",)), harness.footprint(runtime, ON)
    assert off == harness.footprint(runtime, ())
    layers = len(harness.CASE.hidden) + 1
    assert on.nodes == off.nodes + 3 + layers and on.children - off.children == {"maintenance.causal"}
    assert on.bytes > off.bytes
    learner = harness.learner(runtime, ON, rows=False)
    info = learner.graph.info()
    edges = info["edges"]
    assert info["if_nodes"] == 1
    assert ["maintenance.causal", "adam"] in edges and ["per_sample", "maintenance.causal"] in edges
    assert not any(["maintenance.causal", child] in edges for child in ("ddqn", "adam_grad", "per_priority")), (
        "a side branch"
    )
    learner.close()


def test_too_many_columns_are_refused(runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match=r"causal\.groups has 9 columns, a state 7"):
        harness.learner(runtime, (*ON, "causal.groups=5,4"))
    assert abi.constant("DUE_CAUSAL") == 4
