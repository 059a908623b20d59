"""One fold, from reset to test. Everything it does depends on the configuration, the seed and its windows alone.

1  reset; features normalized by the training window
2  a random policy walks the training window: reward scale and support from its returns, and the fixed rows
3  epochs: collection of every bar of the training window, interleaved with the training steps; then validation
4  the parameters of the best validation walk the test window, once
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt import driver
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.driver.tracing import launches
from foxhunt_rt.market.features import Normalizer
from foxhunt_rt.market.folds import Fold
from foxhunt_rt.market.walks import Walks, split_window
from foxhunt_rt.replay.saved import structured
from foxhunt_rt.train.collector import bars_of
from foxhunt_rt.train.evaluate import Served, reference_policies
from foxhunt_rt.train.metrics_log import MetricsLog
from foxhunt_rt.train.progress import Observer, Progress
from foxhunt_rt.train.support import Support, fit_support
from foxhunt_rt.train.world import World

__all__ = ["ALARMS", "FoldReport", "FoldRun", "fold_seed"]

ALARMS = ("edge_mass", "spike_share", "q_clip", "atom_use")
_SHOW_EVERY = 12  # steps between two looks of the observer


def fold_seed(seed: int, index: int) -> int:
    """The seed of fold ``index``: depends on no other fold. 63 bits."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclasses.dataclass
class FoldReport:
    """What a fold leaves. Epochs and the fold itself count from 1 in what people read."""

    fold: Fold
    support: Support
    epochs: list[dict[str, Any]]
    best_epoch: int
    bars_seen: int
    steps: int
    launches: int  # driver launches during training steps
    alarms: dict[str, int]
    loss_first: dict[str, float]
    loss_last: dict[str, float]
    test: dict[str, Any]
    served: Served  # of the best epoch


class FoldRun:
    """Runs one fold in a world.

    Parameters
    ----------
    world : World
    fold : Fold
    log : MetricsLog
        Receives every record.
    observer : Observer
    stop : callable
        Asked between launches; true ends the fold by `Stopped`.
    kept : callable, optional
        Called with this object between two epochs, so that a run can be left there (`resume`).
    """

    class Stopped(Exception):
        """The caller asked to stop; the state on the device is whole."""

    def __init__(self, world: World, fold: Fold, log: MetricsLog, observer: Observer, stop: Callable[[], bool],
                 kept: Callable[[FoldRun], object] | None = None) -> None:  # fmt: skip
        self.world, self.fold, self.log, self.observer, self.stop = world, fold, log, observer, stop
        self.seed = fold_seed(world.config.train.seed, fold.index)
        self.epoch = self.step = self.launches = self.steps = 0
        self.normalizer: Normalizer | None = None
        self.support: Support | None = None
        self.best: tuple[int, tuple[float, float], Served] | None = None  # epoch, rank, policy
        self.kept = kept
        self.first: NDArray[np.float32] | None = None  # parameters before the first step
        self.epochs: list[dict[str, Any]] = []
        self._under_way = False  # resumed within an epoch

    @property
    def number(self) -> int:
        """Of the fold, from 1."""
        return self.fold.index + 1

    def run(self) -> FoldReport:
        """The whole fold. Synchronizes at epoch boundaries only.

        Raises
        ------
        GuardFault
            The device found something impossible.
        FoldRun.Stopped
            `stop` was true.
        """
        with self.world.runtime.context.current():  # once, not at every launch
            return self._run()

    def _run(self) -> FoldReport:
        world, train = self.world, self.world.config.train
        if self.first is None:
            self.enter()
            self._walk_randomly()
            self.first = world.learner.adam.theta.to_numpy()  # type: ignore[attr-defined]
        assert self.support is not None and self.first is not None
        first, epochs = self.first, self.epochs
        while len(epochs) < train.epochs:
            epochs.append(self._run_epoch(len(epochs)))
            if train.patience and len(epochs) - self.best_epoch >= train.patience:
                break
            if self.kept is not None and len(epochs) < train.epochs:
                self.kept(self)
        target = world.learner.adam.target.to_numpy()  # type: ignore[attr-defined]
        last = world.learner.adam.theta.to_numpy()  # type: ignore[attr-defined]
        assert self.best is not None
        best_epoch, _, served = self.best
        record = world.learner.last
        assert record is not None
        report = FoldReport(
            fold=self.fold, support=self.support, epochs=epochs, best_epoch=best_epoch,
            bars_seen=len(bars_of(world.ends, *self.fold.train)), steps=self.steps, launches=self.launches,
            alarms={name: int(record[f"alarm_{name}"]) for name in ALARMS},
            loss_first=world.probe.measure(first, target), loss_last=world.probe.measure(last, target),
            test=self._test(served), served=served,
        )  # fmt: skip
        self.observer.fold_ended(self.number, {"test": report.test, "best_epoch": best_epoch,
                                               "loss_first": report.loss_first, "loss_last": report.loss_last})  # fmt: skip
        return report

    def enter(self) -> None:
        """Puts the world to the start of the fold. Synchronizes."""
        self.normalizer = self.world.enter(self.fold, self.seed)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where the fold stands between two launches, the learner's state apart: tensors, and facts for JSON. Synchronizes."""
        world = self.world
        assert self.first is not None and self.support is not None
        tensors = {f"collector.{name}": buffer.to_numpy() for name, buffer in world.collector.persistent().items()}
        tensors |= {f"probe.{name}": buffer.to_numpy() for name, buffer in world.probe.persistent().items()}
        tensors |= {"probe.raw": world.probe.raw, "first": self.first}
        if self.best is not None:
            tensors["rank"] = np.array(self.best[1], np.float64)
            tensors |= {f"best.{name}": array for name, array in self.best[2].kept().items()}
        within = self.step < world.config.train.steps_per_epoch
        return tensors, {
            "fold": self.fold.index, "epoch": self.epoch, "step": self.step, "steps": self.steps, "launches": self.launches,
            "launched": world.collector.launched, "within": within, "epochs": self.epochs, "best_epoch": self.best_epoch,
            "support": dataclasses.asdict(self.support),
        }  # fmt: skip

    def restore(self, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Takes what `state` gave, after `enter` and the learner's own state. Synchronizes."""
        world = self.world
        self.epoch, self.step, self.steps = int(facts["epoch"]), int(facts["step"]), int(facts["steps"])
        self.launches, self.epochs = int(facts["launches"]), list(facts["epochs"])
        self.support, self.first = Support(**facts["support"]), tensors["first"]
        if facts["best_epoch"]:
            sharpe, net = tensors["rank"].tolist()
            best = {name.removeprefix("best."): array for name, array in tensors.items() if name.startswith("best.")}
            self.best = (int(facts["best_epoch"]), (sharpe, net), Served.restored(best))
        self._under_way = bool(facts["within"])
        world.collector.restore(self._walks(), int(facts["launched"]))
        for prefix, buffers in (("collector", world.collector.persistent()), ("probe", world.probe.persistent())):
            for name, buffer in buffers.items():
                buffer.copy_from(structured(tensors[f"{prefix}.{name}"], buffer.dtype))
        world.probe.raw = tensors["probe.raw"]
        self.observer.fold_started(self.number, {**self.fold.to_dict(), "support": dict(facts["support"])})

    def _walk_randomly(self) -> None:
        """Fills the replay by a random policy over the training window; support, reward scale and fixed rows from it."""
        world, learner = self.world, self.world.learner
        world.collector.policy.set_exploration(1.0)
        world.collector.begin(self._walks())
        world.collector.finish()
        reward, ended = collected(world)
        self.support = fit_support(reward, ended, world.config)
        learner.set(**dataclasses.asdict(self.support))
        world.probe.draw(self.seed)
        self.observer.fold_started(self.number, {**self.fold.to_dict(), "support": dataclasses.asdict(self.support)})

    def _walks(self) -> Walks:
        return split_window(self.world.ends, *self.fold.train, self.world.config.market.environments)

    def _run_epoch(self, epoch: int) -> dict[str, Any]:
        """Collection and training, interleaved; then validation. The host waits for nothing but its own bound on launches."""
        world, learner, collector = self.world, self.world.learner, self.world.collector
        config = world.config
        steps, shown = config.train.steps_per_epoch, -1
        parts: list[NDArray[Any]] = []
        if self._under_way:
            self._under_way, parts = False, self.log.take(self.number, epoch + 1)
        else:
            self.epoch, self.step = epoch, 0
            learner.set(alpha_c51=config.alpha_c51(epoch))
            learner.begin_epoch(epoch)
            collector.begin(self._walks())
        while self.step < steps:
            if self.stop():
                self._keep(parts)
                raise FoldRun.Stopped
            # The pass is spread over the epoch, one launch ahead of the steps that may draw from it.
            while (
                collector.launched < collector.launches and collector.launched * steps <= self.step * collector.launches
            ):
                collector.policy.set_exploration(self.epsilon)
                collector.launch()
            before = _launch_count()
            try:
                count = learner.step(min(learner.steps_per_launch, steps - self.step))
            except GuardFault as fault:
                self._keep(parts)
                raise fault
            self.launches += _launch_count() - before
            self.steps += count
            self.step += count
            if self.step // _SHOW_EVERY != shown and learner.last is not None:
                shown = self.step // _SHOW_EVERY
                self.observer.progressed(self._progress(learner.last))
        collector.finish()
        records = self._keep(parts)
        learner.end_epoch(epoch)
        return self._validate(epoch, records)

    @property
    def best_epoch(self) -> int:
        """With the best validation so far, from 1; 0: none yet."""
        return self.best[0] if self.best is not None else 0

    @property
    def epsilon(self) -> float:
        """Linear over the fold, by launches of collection."""
        train, collector = self.world.config.train, self.world.collector
        done = (self.epoch * collector.launches + collector.launched) / max(1, train.epochs * collector.launches - 1)
        return train.epsilon_start + (train.epsilon_end - train.epsilon_start) * min(done, 1.0)

    def _keep(self, parts: list[NDArray[Any]]) -> NDArray[Any]:
        """Drains the learner into the log; on a fault what came before it is kept too."""
        fault: GuardFault | None = None
        while True:
            try:
                parts.append(self.world.learner.drain())
                break
            except GuardFault as error:  # once for each record in flight, then the records come
                fault = fault or error
        records = np.concatenate(parts)
        self.log.add(self.number, self.epoch + 1, records)
        if fault is not None:
            raise fault
        return records

    def _validate(self, epoch: int, records: NDArray[Any]) -> dict[str, Any]:
        world = self.world
        served = Served.of(world.learner)
        world.evaluator.serve(served)
        judged = world.evaluator.judge(world.window(*self.fold.validate))
        better = self.best is None or judged.rank > self.best[1]
        if better:
            self.best = (epoch + 1, judged.rank, served)
        about = {
            "epoch": epoch + 1, "steps": len(records), "step_us_median": step_us(records), "best": better,
            "bars_seen": len(bars_of(world.ends, *self.fold.train)),
            "alpha_c51": float(records["alpha_c51"][-1]), "epsilon": self.epsilon,
            **{name: float(records[name].astype(np.float64).mean())
               for name in ("loss", "ce", "mse", "td_error", "atom_use", "grad_norm")},
            "q_min": float(records["q_min"].min()), "q_max": float(records["q_max"].max()),
            "validation": {**judged.metrics.to_dict(), "branch_entropy": judged.entropy, "alarms": judged.alarms},
        }  # fmt: skip
        if reports := {e.name: dict(r) for e in world.learner.extensions if (r := e.report())}:
            about["features"] = reports
        if added := world.collector.report():
            about["collection"] = added
        self.observer.epoch_ended(self.number, epoch + 1, about)
        return about

    def _test(self, served: Served) -> dict[str, Any]:
        """The test window, touched here and nowhere else."""
        world = self.world
        window = world.window(*self.fold.test)
        world.evaluator.serve(served)
        judged = world.evaluator.judge(window)
        about = window.slice.describe()
        return {"fold": self.number, "first": about["first"], "last": about["last"], **judged.metrics.to_dict(),
                "alarms": judged.alarms, "branch_entropy": judged.entropy,
                "baselines": reference_policies(window, self.seed)}  # fmt: skip

    def _progress(self, record: NDArray[Any]) -> Progress:
        world, train = self.world, self.world.config.train
        fields = ("loss", "ce", "mse", "q_min", "q_max", "atom_use", "td_error", "lr", "alpha_c51")
        return Progress(
            fold=self.number, folds=len(world.folds), epoch=self.epoch + 1, epochs=train.epochs, step=self.step,
            steps=train.steps_per_epoch, bars_seen=min(world.collector.decisions, world.collector.total),
            bars=world.collector.total, epsilon=self.epsilon,
            step_us=float(record["ended_ns"] - record["started_ns"]) / 1e3,
            **{name: float(record[name]) for name in fields},
        )  # fmt: skip


def collected(world: World) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Rewards and ENDED_* words (T, E) of the last inserts that the ring still holds, oldest first. Of steps that were taken:
    what collection adds to them is left out. Synchronizes."""
    replay, stride = world.replay, world.collector.staging.environments
    inserts = min(replay.inserted, replay.capacity) // stride
    rows = replay.rows.to_numpy()
    at = np.arange(replay.inserted - inserts * stride, replay.inserted) % replay.capacity
    chosen = rows[at].reshape(inserts, stride)[:, : world.environment.environments]
    return chosen["reward"], chosen["ended"]


def step_us(records: NDArray[Any]) -> float:
    """Median time from the start of a step to the start of the next, by the device's clock, in microseconds.

    It holds everything that a step costs: the launch, the host's part of the loop, and the kernels. Steps between which a
    launch of collection lies are among them, too few to move the median.
    """
    if len(records) < 2:
        return (
            float((records["ended_ns"] - records["started_ns"]).astype(np.float64).mean() / 1e3)
            if len(records)
            else 0.0
        )
    return float(np.median(np.diff(records["started_ns"].astype(np.int64))) / 1e3)


def _launch_count() -> int:
    return sum(n for name, n in driver.counts.items() if launches(name))
