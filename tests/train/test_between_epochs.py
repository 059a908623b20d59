"""Training with what acts on parameters between epochs, and what is served: bounded, pruned, reported; each fold by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from foxhunt_rt.dqn.checkpoint import load_checkpoint
from foxhunt_rt.train import WalkForward

from .train_harness import small_config, small_data, timeless

pytestmark = pytest.mark.usefixtures("quick")

ON = ("spectral.enabled=true", "spectral.sigma_max=0.4", "vaccine.enabled=true", "vaccine.period=2", "causal.enabled=true",
      "causal.period=5", "causal.rows=4", "prune.enabled=true", "prune.first_epoch=0", "prune.last_epoch=1",
      "perturb.enabled=true", "optim.lr=0.01", "epoch.enabled=true", "epoch.validation_rows=31", "adaptive_gamma.enabled=true",
      "adaptive_gamma.high=0.95", "homeostat.enabled=true")  # fmt: skip


def test_folds_with_features_between_epochs(runtime, tmp_path):
    config = small_config(*ON)
    whole = WalkForward(runtime, small_data(config), config, runs=tmp_path, name="whole")
    alone = WalkForward(runtime, small_data(config), config)
    try:
        result, second = whole.run(), alone.run([2])
        layout = whole.world.learner.layout
    finally:
        whole.close()
        alone.close()
    assert timeless(second)["detail"] == [timeless(result)["detail"][1]], "masks, importances and targets begin anew"
    json.dumps(result)
    for number, fold in enumerate(result["detail"], 1):
        told = [epoch["features"] for epoch in fold["epochs"]]
        for t in told:
            assert (t["epoch"]["batch"]["rows"], t["epoch"]["validation"]["rows"]) == (19, 31)
            assert (
                1 / 13 <= t["epoch"]["validation"]["atom_use"] <= 1 and min(t["epoch"]["validation"]["q_variance"]) > 0
            )
            assert 0.8 <= t["adaptive_gamma"]["gamma"] <= 0.95 and set(t["homeostat"]["violations"]) == {
                "atom_use", "entropy", "grad_norm", "weight_norm"}  # fmt: skip
        assert told[0]["adaptive_gamma"]["gamma"] < 0.9, "a flat network uses all atoms: the horizon shrinks"
        shares = [t["prune"]["sparsity"] for t in told]
        assert np.allclose(shares[1], 0.5, atol=0.02) and np.allclose(shares[0], 0.5 * (1 - 0.5**3), atol=0.02)
        assert [t["causal"]["interventions"] for t in told] == [2, 4]  # steps 5, 10; 15, 20
        importance = np.array(told[1]["causal"]["importance"])
        assert len(importance) == layout.state_dim and np.isfinite(importance).all() and importance.max() > 0
        tensors, facts, _ = load_checkpoint(whole.folder.checkpoint(f"fold{number}-best"))
        weights = layout.unpack(tensors["theta"])
        for i, share in enumerate(shares[facts["epoch"] - 1]):
            w = weights[f"trunk.{i}.weight"]
            assert np.linalg.norm(w, 2) <= 0.4 * 1.1, "what was judged is bounded"
            assert (w == 0).mean() == pytest.approx(share, abs=1e-6), "and pruned"
