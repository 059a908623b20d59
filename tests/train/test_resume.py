"""A run that was interrupted or killed goes on bit for bit: results, records and checkpoints are those of a run that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.checkpoint import CheckpointError, load_checkpoint
from foxhunt_rt.dqn.features import FEATURES
from foxhunt_rt.train import Observer, TrainingInterrupted, WalkForward
from foxhunt_rt.train.resume import SavedRun

from .train_harness import small_bars, small_config, small_data, timeless

pytestmark = pytest.mark.usefixtures("quick")

BASE = ("train.steps_per_epoch=30", "train.steps_per_launch=1", "replay.capacity=3001")
ADDED = ("market.counterfactual.enabled=true", "market.counterfactual.share=0.5", "market.mirror.enabled=true")
EVERYTHING = (*ADDED, *(f"{name}.enabled=true" for name, _ in FEATURES), "vaccine.period=7", "causal.period=6",
              "network.residual=true", "network.hidden=24,24")  # fmt: skip
#: Of the record of a step, what depends on the clock.
CLOCK = ("step_us",)


class Ends(Observer):
    """Ends the run at a step: kills the process, or asks it to stop."""

    def __init__(self, fold: int, epoch: int, *, kill: bool) -> None:
        self.at, self.kill, self.reached = (fold, epoch), kill, False

    def progressed(self, progress: Any) -> None:
        if (progress.fold, progress.epoch) == self.at:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self.reached = True


def ran(rt: Runtime, config: Config, *, runs: Path | None = None, resume: SavedRun | None = None,
        observer: Observer | None = None, stop: Any = None) -> Any:  # fmt: skip
    """(result, records, tensors of each fold's checkpoints) of a run."""
    training = WalkForward(rt, small_data(config), config, runs=runs, resume=resume, observer=observer)
    try:
        result = training.run(stop=stop)
        assert training.folder is not None
        folder = training.folder.path
        tensors = {file.stem: load_checkpoint(file)[0] for file in (folder / "checkpoints").iterdir()}
        records = {name: column for name, column in training.log.columns().items() if name not in CLOCK}
        return timeless(result), records, tensors
    finally:
        training.close()


def check_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert list(ours) == list(theirs)
    for name, column in expected[1].items():
        assert column.tobytes() == found[1][name].tobytes(), name
    assert sorted(expected[2]) == ["fold1", "fold1-best", "fold2", "fold2-best"], "nothing to resume is left behind"
    for file, tensors in expected[2].items():
        assert sorted(found[2][file]) == sorted(tensors)
        for name, array in tensors.items():
            assert array.tobytes() == found[2][file][name].tobytes(), f"{file} {name}"


KILLED = """
import sys
from pathlib import Path
import foxhunt_rt as fx
from tests.train.test_resume import ADDED, BASE, Ends, ran
from tests.train.train_harness import small_config
fold, epoch = int(sys.argv[2]), int(sys.argv[3])
ran(fx.Runtime(), small_config(*BASE, *ADDED), runs=Path(sys.argv[1]), observer=Ends(fold, epoch, kill=True))
"""


@pytest.fixture(scope="module")
def whole(quick: None, runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that nobody ended."""
    return ran(runtime, small_config(*BASE, *ADDED), runs=tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("fold", "epoch"), [(1, 2), (2, 1), (2, 2)])
def test_a_killed_run_goes_on_bit_for_bit(runtime: Runtime, whole: Any, tmp_path: Path, fold: int, epoch: int) -> None:
    """kill -9 within an epoch: from the checkpoint before it, another process does what the first would have done."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(fold), str(epoch)], capture_output=True, text=True,
                          timeout=300, env=os.environ | {"FOXHUNT_HOSTSIM": "redzones=0"})  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    (run,) = tmp_path.iterdir()
    saved = SavedRun.load(run)
    current = saved.facts["current"]
    assert (len(saved.facts["reports"]), current and len(current["epochs"])) == {
        (1, 2): (0, 1), (2, 1): (1, None), (2, 2): (1, 1)}[fold, epoch]  # fmt: skip
    check_same(ran(runtime, saved.config, resume=saved), whole)
    with pytest.raises(CheckpointError, match="is complete; start a new run"):
        SavedRun.load(run)


@pytest.mark.parametrize("settings", [ADDED, EVERYTHING], ids=["collection", "every feature"])
def test_an_interrupted_run_goes_on_within_the_epoch(
    runtime: Runtime, whole: Any, tmp_path: Path, settings: Any
) -> None:
    """Ended between two launches, twice: in the second epoch and, resumed, in the second fold."""
    config = small_config(*BASE, *settings)
    if settings != ADDED:
        whole = ran(runtime, config, runs=tmp_path / "whole")
    runs, saved = tmp_path / "runs", None
    for fold, epoch in ((1, 2), (2, 1)):
        ends = Ends(fold, epoch, kill=False)
        with pytest.raises(
            TrainingInterrupted, match=rf"fold {fold}, epoch {epoch}, step \d+; saved in .*train --resume"
        ):
            ran(runtime, config if saved is None else saved.config, runs=runs, resume=saved, observer=ends,
                stop=lambda ends=ends: ends.reached)  # fmt: skip
        (run,) = runs.iterdir()
        saved = SavedRun.load(run)
        assert saved.facts["current"]["within"] and 0 < saved.facts["current"]["step"] < 30
        for name, array in saved.tensors.items():  # what is to be put back is not what is there anyway
            assert not name.startswith("fold.collector.") or array.any(), name
    assert saved is not None
    check_same(ran(runtime, saved.config, resume=saved), whole)


def test_what_cannot_be_gone_on_from_says_why(runtime: Runtime, tmp_path: Path) -> None:
    config, ends = small_config(*BASE), Ends(1, 2, kill=False)
    with pytest.raises(TrainingInterrupted):
        ran(runtime, config, runs=tmp_path, observer=ends, stop=lambda: ends.reached)
    (run,) = tmp_path.iterdir()
    saved = SavedRun.load(run)
    bars = small_bars()
    other = WalkForward(runtime, small_data(config, bars.take(np.arange(len(bars)) != 7)), config, resume=saved)
    with pytest.raises(CheckpointError, match="on other bars"):
        other.run()
    other.close()
    wider = small_config(*BASE, "network.hidden=24,18")
    training = WalkForward(runtime, small_data(wider), wider, resume=saved)
    with pytest.raises(CheckpointError, match="network.hidden"):
        training.run()
    training.close()

    newest, previous = (run / "checkpoints" / f"{name}.safetensors" for name in ("resume", "resume-previous"))
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"damaged.*the one before is .*resume-previous"):
        SavedRun.load(run)
    assert SavedRun.load(previous).facts["current"]["step"] == 30
    newest.unlink()  # killed while it was written
    assert SavedRun.load(run).path == previous
    previous.unlink()
    with pytest.raises(CheckpointError, match="no checkpoint to go on from"):
        SavedRun.load(run)
