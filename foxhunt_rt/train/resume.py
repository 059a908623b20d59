"""A run that goes on where it was left, bit for bit: all that it hands from one launch to the next, in one checkpoint file.

    save_run(path, world, log, folds, reports, fold)     fold: the one that is under way, or None between two
    saved = SavedRun.load(Path("runs/20260102-030405-smoke"))
    WalkForward(rt, data, saved.config, resume=saved).run()

The learner's part, replay included, is dqn/learner_state.py. Beside it: folds that are done, every record so far, and of the fold
under way its position in the data, the accounts of its environments, the counters of the random numbers that collection draws,
the fixed rows of the loss probe and the best parameters.
"""

from __future__ import annotations

import dataclasses
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from foxhunt_rt.dqn.learner_state import check_state, read_state, write_state
from foxhunt_rt.market.bars import Bars
from foxhunt_rt.replay import saved as plainly
from foxhunt_rt.train.evaluate import Served
from foxhunt_rt.train.fold import FoldReport, FoldRun
from foxhunt_rt.train.metrics_log import MetricsLog
from foxhunt_rt.train.support import Support
from foxhunt_rt.train.world import World

__all__ = ["ResumeError", "SavedRun", "bars_digest", "save_run"]

_KIND = "run"
_CURRENT, _PREVIOUS = "resume", "resume-previous"
#: Of a FoldReport, what is JSON.
_REPORT = ("epochs", "best_epoch", "bars_seen", "steps", "launches", "alarms", "loss_first", "loss_last", "test")

Tensors = dict[str, NDArray[Any]]


class ResumeError(CheckpointError):
    """A run that cannot be gone on with; says why."""


def bars_digest(bars: Bars) -> str:
    """CRC-32 of what a run trains on: times, prices, volume, sessions."""
    crc = 0
    for name in ("ts", "open", "high", "low", "close", "volume", "session", "segment", "mark"):
        crc = zlib.crc32(np.ascontiguousarray(getattr(bars, name)).data, crc)
    return f"{crc:08x}"


def save_run(folder: Path, world: World, log: MetricsLog, folds: Sequence[int], reports: Sequence[FoldReport],
             fold: FoldRun | None) -> Path:  # fmt: skip
    """Writes ``checkpoints/resume.safetensors`` in a run folder; the one before becomes ``resume-previous``. Synchronizes.

    Parameters
    ----------
    folder : Path
    world : World
    log : MetricsLog
    folds : sequence of int
        Indices of the folds that the run is to do.
    reports : sequence of FoldReport
        Of those that are done.
    fold : FoldRun or None
        The one under way, between two launches; None between two folds.
    """
    tensors: Tensors = {}
    facts: dict[str, Any] = {"kind": _KIND, "folds": list(folds), "bars": bars_digest(world.data.bars),
                             "config": world.config.to_dict(), "current": None}  # fmt: skip
    facts["log"] = [[part[0], part[1]] for part in log.parts]
    for i, (_, _, records) in enumerate(log.parts):
        file = io.BytesIO()
        np.save(file, records, allow_pickle=False)
        tensors[f"log.{i}"] = np.frombuffer(file.getvalue(), np.uint8)
    facts["reports"] = []
    for i, report in enumerate(reports):
        tensors.update({f"report.{i}.{name}": array for name, array in report.served.kept().items()})
        facts["reports"].append({"fold": report.fold.index, "support": dataclasses.asdict(report.support),
                                 **{name: getattr(report, name) for name in _REPORT}})  # fmt: skip
    if fold is not None:
        state, learner = read_state(world.learner)
        own, facts["current"] = fold.state()
        facts["current"]["learner"] = learner
        tensors.update({f"learner.{name}": array for name, array in state.items()})
        tensors.update({f"fold.{name}": plainly.plain(array) for name, array in own.items()})
    path = folder / "checkpoints" / f"{_CURRENT}.safetensors"
    if path.exists():
        os.replace(path, path.with_name(f"{_PREVIOUS}.safetensors"))
    save_checkpoint(path, tensors, facts, world.config)
    return path


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A run as it was left.

    Attributes
    ----------
    path : Path
        The checkpoint.
    folder : Path
        The run folder that it belongs to.
    config : Config
    """

    path: Path
    folder: Path
    config: Config
    tensors: Tensors
    facts: dict[str, Any]

    @classmethod
    def load(cls, run: Path) -> SavedRun:
        """Reads the checkpoint of a run folder, or the one given.

        Raises
        ------
        ResumeError
            There is none, the run is complete, or the file is damaged, foreign or newer; the one before is offered.
        """
        path = run
        if not run.exists():
            raise ResumeError(f"{run}: no such run; give the folder that a run left, or its resume.safetensors")
        if run.is_dir():
            path, previous = (run / "checkpoints" / f"{name}.safetensors" for name in (_CURRENT, _PREVIOUS))
            if not path.exists() and previous.exists():  # the run was killed while it wrote
                path = previous
            if not path.exists():
                why = "is complete" if (run / "result.json").exists() else "holds no checkpoint to go on from"
                raise ResumeError(f"{run} {why}; start a new run")
        previous = path.with_name(f"{_PREVIOUS}.safetensors")
        try:
            tensors, facts, _ = load_checkpoint(path)
            if facts.get("kind") != _KIND:
                raise CheckpointError(f"{path} is no checkpoint of a run; give a run folder, or its resume.safetensors")
        except CheckpointError as error:
            before = f"; the one before is {previous}" if previous.exists() and previous != path else ""
            raise ResumeError(f"{error}{before}") from error
        folder, config = path.parent.parent, Config().merged(facts["config"])
        if (folder / "choices.json").exists():  # products by others than were measured then would give other bits
            config = config.merged({"network": {"choices": str(folder)}})
        return cls(path, folder, config, tensors, facts)

    @property
    def folds(self) -> list[int]:
        """Indices of the folds that the run is to do."""
        return [int(index) for index in self.facts["folds"]]

    def check(self, world: World) -> None:
        """Raises ResumeError unless a world can go on from here. Changes nothing."""
        if self.facts["bars"] != bars_digest(world.data.bars):
            raise ResumeError(
                f"{self.path} was trained on other bars than {world.data.bars.source}; give those of the run"
            )
        if (current := self.facts["current"]) is not None:
            try:
                check_state(world.learner, self._part("learner"), current["learner"])
            except CheckpointError as error:
                raise ResumeError(f"{self.path}: {error}") from error

    def restore_log(self, log: MetricsLog) -> None:
        """Puts the records so far in place of those of ``log``."""
        log.clear()
        for i, (fold, epoch) in enumerate(self.facts["log"]):
            records = np.load(io.BytesIO(self.tensors[f"log.{i}"].tobytes()), allow_pickle=False)
            log.add(int(fold), int(epoch), records)

    def reports(self, world: World) -> list[FoldReport]:
        """Of the folds that are done."""
        return [FoldReport(fold=world.folds[facts["fold"]], support=Support(**facts["support"]),
                           served=Served.restored(self._part(f"report.{i}")), **{name: facts[name] for name in _REPORT})
                for i, facts in enumerate(self.facts["reports"])]  # fmt: skip

    def restore_fold(self, fold: FoldRun) -> None:
        """Puts the fold under way, and its world, to where they were. Nothing to do where the run was left between two."""
        if (current := self.facts["current"]) is None:
            return
        fold.enter()
        write_state(fold.world.learner, self._part("learner"), current["learner"])
        fold.restore(self._part("fold"), current)

    def _part(self, prefix: str) -> Tensors:
        return {name[len(prefix) + 1 :]: array for name, array in self.tensors.items() if name.startswith(f"{prefix}.")}
