"""Folds: independent of one another, the test window touched once, every record kept, faults and stops handled."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from foxhunt_rt.config import ConfigError
from foxhunt_rt.dqn.checkpoint import load_checkpoint
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.graph.golden import Golden, Replayer
from foxhunt_rt.train import Observer, TrainingInterrupted, WalkForward
from foxhunt_rt.train.evaluate import Evaluator

from .train_harness import small_bars, small_config, small_data, timeless

pytestmark = pytest.mark.usefixtures("quick")


def train(runtime, config, data=None, **kwargs):
    training = WalkForward(runtime, data or small_data(config), config, **kwargs)
    return training


class Watcher(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def fold_started(self, fold, about):
        self.told.append(("fold", fold))

    def epoch_ended(self, fold, epoch, about):
        self.told.append(("epoch", fold, epoch))

    def fold_ended(self, fold, about):
        self.told.append(("test", fold))


@pytest.fixture(scope="module")
def whole(runtime, quick, tmp_path_factory):
    """Both folds in sequence, with a run folder; and what the evaluator was asked."""
    config = small_config()
    windows = []
    judge = Evaluator.judge

    def watched(self, window):
        windows.append((window.first, window.stop))
        return judge(self, window)

    observer = Watcher()
    training = train(runtime, config, observer=observer, runs=tmp_path_factory.mktemp("runs"), name="test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "judge", watched)
        result = training.run()
    yield training, result, windows, observer
    training.close()


def test_a_fold_alone_equals_the_fold_in_sequence(runtime, whole, tmp_path):
    _, result, _, _ = whole
    alone = train(runtime, small_config(), runs=tmp_path)
    try:
        found = alone.run([2])
    finally:
        alone.close()
    sequence, single = timeless(result), timeless(found)
    assert single["test"] == [sequence["test"][1]]
    assert single["detail"] == [sequence["detail"][1]]
    expected, facts, _ = load_checkpoint(whole[0].folder.checkpoint("fold2"))
    tensors, alone_facts, _ = load_checkpoint(alone.folder.checkpoint("fold2"))
    assert alone_facts == facts
    assert set(tensors) >= {"theta", "target", "m", "v", "counters", "normalizer.center", "normalizer.scale"}
    for name, tensor in tensors.items():
        assert tensor.tobytes() == expected[name].tobytes(), name


def test_the_same_run_again_gives_the_same_numbers_and_another_seed_others(runtime, whole):
    _, result, _, _ = whole
    again = train(runtime, small_config())
    other = train(runtime, small_config("train.seed=1"))
    try:
        assert timeless(again.run()) == timeless(result)
        assert timeless(other.run())["detail"] != timeless(result)["detail"]
    finally:
        again.close()
        other.close()


def test_the_test_window_is_touched_once_and_last(whole):
    training, result, windows, observer = whole
    folds = training.world.folds
    expected = [w for fold in folds for w in (fold.validate, fold.validate, fold.test)]
    assert windows == expected
    assert observer.told == [
        (*x,) for n in (1, 2) for x in (("fold", n), ("epoch", n, 1), ("epoch", n, 2), ("test", n))
    ]
    for fold, detail in zip(folds, result["detail"], strict=True):
        judged = [e["validation"] for e in detail["epochs"]]
        ranked = [(v["sharpe"] if v["sharpe"] is not None else 0.0, v["net_pnl"]) for v in judged]
        assert detail["best_epoch"] == 1 + ranked.index(max(ranked))
        assert fold.train[1] < fold.validate[0] < fold.validate[1] < fold.test[0]


def test_nothing_of_the_future_reaches_training(runtime, whole):
    """Other prices after the first fold's validation window change neither its epochs nor its normalizer."""
    training, result, _, _ = whole
    config = small_config()
    bars = small_bars()
    cut = training.world.folds[0].test[0]
    columns = {name: np.concatenate([getattr(bars, name)[:cut], getattr(bars, name)[cut:] + 40.0])
               for name in ("open", "high", "low", "close")}  # fmt: skip
    other = train(runtime, config, small_data(config, dataclasses.replace(bars, **columns)))
    try:
        found = other.run([1])
    finally:
        other.close()
    assert timeless(found)["detail"][0]["epochs"] == timeless(result)["detail"][0]["epochs"]
    assert found["detail"][0]["support"] == result["detail"][0]["support"]
    assert found["test"][0]["net_pnl"] != result["test"][0]["net_pnl"]


def test_one_launch_a_step_counted_from_the_driver_calls(runtime, whole, monkeypatch):
    assert whole[1]["launches_per_step"] == 1
    monkeypatch.setenv("FOXHUNT_GRAPH", "off")
    ungraphed = train(runtime, small_config("train.steps_per_epoch=2"))
    try:
        result = ungraphed.run([1])
        nodes = ungraphed.world.learner.graph.info()["nodes"]
    finally:
        ungraphed.close()
    assert nodes > 10
    assert result["launches_per_step"] == nodes  # one by one


def test_every_step_leaves_its_record_also_in_epochs_of_three_steps(runtime, tmp_path):
    """Known failure K10: a guard that looked every fifth step missed whole epochs."""
    from pyarrow import parquet

    config = small_config("train.steps_per_epoch=3", "train.epochs=3")
    training = train(runtime, config, runs=tmp_path)
    try:
        training.run()
    finally:
        training.close()
    table = parquet.read_table(training.folder.path / "metrics.parquet").to_pydict()
    assert table["step"] == list(range(9)) * 2
    assert table["fold"] == [1] * 9 + [2] * 9
    assert table["epoch"] == [1] * 3 + [2] * 3 + [3] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    np.testing.assert_allclose(table["alpha_c51"], ([0.0] * 3 + [0.2] * 3 + [0.4] * 3) * 2, rtol=1e-6)
    for name in ("loss", "ce", "mse", "td_error", "q_min", "grad_norm", "lr"):
        assert np.isfinite(table[name]).all()
        assert len(set(table[name])) > 1, f"{name} does not move"


def test_a_fold_ends_early_when_validation_gets_no_better(runtime):
    """With a learning rate of zero no epoch is better than the first."""
    config = small_config(
        "train.epochs=6", "train.patience=2", "optim.lr_min=0", "optim.lr=0", "train.steps_per_epoch=2"
    )
    training = train(runtime, config)
    try:
        result = training.run([1])
    finally:
        training.close()
    assert result["detail"][0]["best_epoch"] == 1
    assert [e["epoch"] for e in result["detail"][0]["epochs"]] == [1, 2, 3]
    assert result["steps"] == 6


def test_the_run_folder_is_complete_and_says_what_it_was(whole):
    training, result, _, _ = whole
    path = training.folder.path
    files = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert files == {"config.toml", "environment.json", "choices.json", "metrics.parquet", "epochs.json", "result.json",
                     *(f"checkpoints/fold{n}{kind}.safetensors" for n in (1, 2) for kind in ("", "-best"))}  # fmt: skip
    from foxhunt_rt.config import Config

    assert Config.load(path / "config.toml") == training.config
    assert json.loads((path / "result.json").read_text()) == json.loads(json.dumps(result))
    environment = json.loads((path / "environment.json").read_text())
    assert environment["bars"]["clock"] == "1 minute"
    assert {"driver", "device", "commit", "foxhunt_rt"} <= set(environment)
    from foxhunt_rt.dqn.checkpoint import load_checkpoint
    from foxhunt_rt.gemm import ChoiceTable

    kept = json.loads((path / "choices.json").read_text())
    assert kept == training.world.learner.choices and kept["machines"]
    assert load_checkpoint(path / "checkpoints" / "fold1.safetensors")[1]["choices"] == kept
    for carrier in (path, path / "checkpoints" / "fold1.safetensors"):
        pinned = ChoiceTable.load(carrier)
        for machine, rows in kept["machines"].items():
            assert all(pinned.get(machine, key) for key in rows)


def test_a_fault_ends_training_and_what_came_before_is_kept(runtime, tmp_path):
    from pyarrow import parquet

    training = train(runtime, small_config(), runs=tmp_path)
    learner = training.world.learner

    def spoil():
        if learner.launched == 15:
            theta = learner.adam.theta.to_numpy()
            theta[7] = np.nan
            learner.adam.theta.copy_from(theta)
        return False

    try:
        with pytest.raises(GuardFault, match="non_finite"):
            training.run(stop=spoil)
        golden = Golden.load(training.folder.path / "golden" / "fold1-fault.npz")
        theta = next(i for i, b in enumerate(golden.meta["buffers"]) if b["label"] == "adam.theta")
        assert np.isnan(golden.arrays[f"input/{theta}"].view(np.float32)[7]), "the golden replay holds what was wrong"
        assert Replayer(learner.graph, golden).run() is None
    finally:
        training.close()
    steps = parquet.read_table(training.folder.path / "metrics.parquet").to_pydict()["step"]
    assert steps[:16] == list(range(16))  # the faulty step's record is there too
    assert len(steps) <= 15 + training.config.guard.launches_ahead + 1
    assert not (training.folder.path / "result.json").exists()


def test_a_run_after_a_fault_is_not_touched_by_it(runtime, whole):
    config = small_config()
    training = train(runtime, config)
    learner = training.world.learner
    spoiled = []

    def spoil():
        if learner.launched == 5 and not spoiled:
            spoiled.append(learner.adam.theta.copy_from(np.full(learner.layout.size, np.nan, np.float32)))
        return False

    try:
        with pytest.raises(GuardFault):
            training.run([1], stop=spoil)
        training.log.clear()
        assert timeless(training.run([2]))["detail"] == [timeless(whole[1])["detail"][1]]
    finally:
        training.close()


def test_a_stop_saves_a_whole_state(runtime, tmp_path):
    training = train(runtime, small_config(), runs=tmp_path)
    learner = training.world.learner
    try:
        with pytest.raises(TrainingInterrupted, match=r"fold 1, epoch 2, step 4; saved in .*resume"):
            training.run(stop=lambda: learner.launched == 15)
        tensors, facts, _ = load_checkpoint(training.folder.checkpoint("resume"))
    finally:
        training.close()
    assert (facts["current"]["epoch"], facts["current"]["step"], facts["current"]["learner"]["step"]) == (1, 4, 15)
    np.testing.assert_array_equal(tensors["learner.theta"], learner.adam.theta.to_numpy())
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_fold_that_is_not_there(runtime):
    training = train(runtime, small_config())
    try:
        with pytest.raises(ConfigError, match="no fold 3; give 1 to 2"):
            training.run([3])
    finally:
        training.close()
