"""Walk-forward training: the folds in sequence, what they leave in the run folder, and how they end.

bars, spec, report = load_bars("bars.csv.gz", config.market)
result = WalkForward(rt, DataSet.prepare(bars, spec, config), config).run()
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.checkpoint import save_checkpoint
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.driver import DriverError
from foxhunt_rt.graph import Runtime
from foxhunt_rt.graph.golden import Recorder
from foxhunt_rt.graph.memory_plan import require_memory
from foxhunt_rt.train.dataset import DataSet
from foxhunt_rt.train.evaluate import Served
from foxhunt_rt.train.fold import FoldReport, FoldRun, step_us
from foxhunt_rt.train.interrupt import Interrupt
from foxhunt_rt.train.metrics_log import MetricsLog
from foxhunt_rt.train.progress import Observer
from foxhunt_rt.train.result import build_result
from foxhunt_rt.train.resume import SavedRun, save_run
from foxhunt_rt.train.run_folder import RunFolder, describe_environment
from foxhunt_rt.train.world import World

logger = logging.getLogger("foxhunt_rt.train")

__all__ = ["TrainingInterrupted", "TrainingTerminated", "WalkForward"]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C between two launches; the message says what was saved."""


class TrainingTerminated(TrainingInterrupted):
    """The same by SIGTERM, as a scheduler of jobs sends it before it kills."""


class WalkForward:
    """Trains and judges fold after fold.

    Parameters
    ----------
    rt : Runtime
    data : DataSet
    config : Config
    observer : Observer, optional
    runs : Path, optional
        Where the run folder is made; None: nothing is written.
    name : str
        Of the run folder, after the time.
    resume : SavedRun, optional
        A run to go on with, in its own folder: ``data`` and ``config`` are those of that run.
    began : float, optional
        `time.perf_counter` from which the wall time counts; None: now.

    Attributes
    ----------
    memory : MemoryPlan or None
        What the world allocates, known before it did.
    world : World
    folder : RunFolder or None
        Made when the first fold begins, so that a run that cannot start leaves nothing.
    """

    def __init__(self, rt: Runtime, data: DataSet, config: Config, *, observer: Observer | None = None,
                 runs: Path | None = None, name: str = "run", resume: SavedRun | None = None,
                 began: float | None = None) -> None:  # fmt: skip
        self.began = time.perf_counter() if began is None else began
        self.runtime, self.config = rt, config
        self.observer = observer or Observer()
        self.memory = require_memory(rt, lambda planning: World(planning, data, config))
        self.world = World(rt, data, config)
        self.log = MetricsLog()
        self.runs, self.name, self.resume = runs, name, resume
        self.folder: RunFolder | None = None

    def run(self, folds: Sequence[int] | None = None, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Runs the folds (all, or those numbered from 1) and returns the result (`train.result`).

        Parameters
        ----------
        folds : sequence of int, optional
        stop : callable, optional
            Asked between launches; true ends training as Ctrl-C does.

        Raises
        ------
        GuardFault
            The device found something impossible: what was learned before is saved, the fold is lost.
        TrainingInterrupted
            SIGINT, SIGTERM (`TrainingTerminated`), or `stop`: the state is saved.
        ConfigError
            There is no fold of such a number.
        ResumeError
            The run to go on with was one on other bars, or of other sizes.
        """
        if self.resume is not None:
            self.resume.check(self.world)
        self.chosen = self._choose(folds) if self.resume is None else self.resume.folds
        self.observer.started({**self.world.about(), "memory": self.memory.summary() if self.memory else ""})
        reports: list[FoldReport] = []
        if self.resume is not None:
            self.folder, reports = RunFolder(self.resume.folder), self.resume.reports(self.world)
            self.resume.restore_log(self.log)
        elif self.runs is not None:
            environment = describe_environment(self.runtime, self.world.data.bars.describe())
            self.folder = RunFolder.create(self.runs, self.name, self.config, environment)
            self.folder.write_json("choices.json", self.world.learner.choices)
        resume = self.resume
        with Interrupt() as interrupt:
            for index in self.chosen[len(reports) :]:
                fold = FoldRun(self.world, self.world.folds[index], self.log, self.observer,
                               lambda: interrupt.requested > 0 or (stop is not None and stop()),
                               lambda fold: self._save_run(reports, fold))  # fmt: skip
                try:
                    if resume is not None:
                        resume.restore_fold(fold)
                        resume = None
                    reports.append(fold.run())
                except FoldRun.Stopped:
                    kind = TrainingTerminated if interrupt.requested == signal.SIGTERM else TrainingInterrupted
                    raise kind(self._interrupted(fold, reports)) from None
                except GuardFault:
                    self._save_progress(reports)
                    self._save_golden(fold)
                    raise
                self._save_fold(fold, reports[-1])
                self._save_run(reports, None)
            result = build_result(self.world, reports, time.perf_counter() - self.began, _median_step_us(self.log))
            if self.folder is not None:
                result["run"] = str(self.folder.path)
                self._save_progress(reports)
                self.folder.write_json("result.json", result)
                self.folder.forget_resume()
        self.observer.ended(result)
        return result

    def _choose(self, folds: Sequence[int] | None) -> list[int]:
        count = len(self.world.folds)
        for number in folds or ():
            if not 1 <= number <= count:
                raise ConfigError(f"there is no fold {number}; give 1 to {count}")
        return list(range(count)) if folds is None else [number - 1 for number in folds]

    def _tensors(self, fold: FoldRun) -> dict[str, NDArray[Any]]:
        """Parameters, moments, counters, readiness and normalizer of a fold."""
        adam, learner = self.world.learner.adam, self.world.learner
        tensors = {name: getattr(adam, name).to_numpy() for name in ("theta", "target", "m", "v")}
        tensors.update({name: array for name, array in Served.of(learner).tensors().items() if name != "theta"})
        state = learner.state.to_numpy()[0]
        tensors["counters"] = np.array([state[name] for name in state.dtype.names], np.uint64)
        assert fold.normalizer is not None
        tensors.update({f"normalizer.{name}": array for name, array in fold.normalizer.to_arrays().items()})
        return tensors

    def _facts(self, fold: FoldRun) -> dict[str, Any]:
        learner = self.world.learner
        counters = list(learner.state.dtype.names or ())
        return {
            "fold": fold.number, "windows": fold.fold.to_dict(), "epoch": fold.epoch + 1, "step": fold.step,
            "seed": fold.seed, "support": dataclasses.asdict(fold.support) if fold.support else None,
            "alpha_c51": learner.control.alpha_c51, "choices": learner.choices, "counters": counters,
            "features": list(self.world.data.features.names),
            "bar_clock": self.world.data.bars.clock, "symbol": self.world.data.bars.symbol,
            "parameters": {s.name: [s.offset, list(s.padded_shape)] for s in learner.layout.segments},
        }  # fmt: skip

    def _save_fold(self, fold: FoldRun, report: FoldReport) -> None:
        if self.folder is None:
            return
        facts = self._facts(fold)
        path = self.folder.checkpoint(f"fold{fold.number}")
        save_checkpoint(path, self._tensors(fold), facts, self.config)
        path = self.folder.checkpoint(f"fold{fold.number}-best")
        save_checkpoint(path, {**report.served.tensors(), **{k: v for k, v in self._tensors(fold).items()
                                                         if k.startswith("normalizer.")}},
                        {**facts, "epoch": report.best_epoch}, self.config)  # fmt: skip

    def _save_progress(self, reports: list[FoldReport]) -> None:
        if self.folder is None:
            return
        if len(self.log):
            self.log.write(self.folder.path / "metrics.parquet")
        self.folder.write_json("epochs.json", [{"fold": r.fold.index + 1, **e} for r in reports for e in r.epochs])

    def _save_golden(self, fold: FoldRun) -> None:
        """One training step from the state at the fault, which the guard has kept as it was, as a golden replay: what a report of
        the fault can carry (docs/golden.md). Synchronizes."""
        if self.folder is None:
            return
        path = self.folder.path / "golden" / f"fold{fold.number}-fault.npz"
        try:
            path.parent.mkdir(exist_ok=True)
            Recorder(self.world.learner.graph).record().save(path)
        except (OSError, DriverError) as error:  # the fault is what ends training, not this
            logger.warning("no golden replay of the fault in %s: %s", path, error)

    def _interrupted(self, fold: FoldRun, reports: list[FoldReport]) -> str:
        where = f"interrupted in fold {fold.number}, epoch {fold.epoch + 1}, step {fold.step}"
        if self.folder is None:
            return f"{where}; nothing was saved, the state is lost"
        self._save_progress(reports)
        path = self._save_run(reports, fold)
        return f"{where}; saved in {path}: train --resume {self.folder.path} goes on from there"

    def _save_run(self, reports: list[FoldReport], fold: FoldRun | None) -> Path | None:
        """All that the run needs to go on from here."""
        if self.folder is None:
            return None
        return save_run(self.folder.path, self.world, self.log, self.chosen, reports, fold)

    def close(self) -> None:
        """Waits for the stream and destroys the graphs."""
        self.world.close()


def _median_step_us(log: MetricsLog) -> float:
    parts = [step_us(records) for records in log.records()]
    return float(np.median(parts)) if parts else 0.0
