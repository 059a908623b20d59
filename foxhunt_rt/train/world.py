"""Everything of a run that lives as long as the run: bars and features on the device, environments, learner, graphs.

Built once; a fold changes values in it (normalized features, cost model, parameters, replay), never an address, so that
every graph is captured once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.children.epoch_stats import statistics_of
from foxhunt_rt.dqn.children.isv import context_dim
from foxhunt_rt.dqn.children.plan import Conviction, Plan
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.policy import Policy
from foxhunt_rt.driver import live_allocations
from foxhunt_rt.graph import Runtime
from foxhunt_rt.market.actions import BRANCHES
from foxhunt_rt.market.augment import augmentation, mirror_sign
from foxhunt_rt.market.environment import MarketEnvironment, MarketTables
from foxhunt_rt.market.execution import ExecutionModel, fit_pnl_scale_ticks
from foxhunt_rt.market.features import Normalizer
from foxhunt_rt.market.folds import Fold
from foxhunt_rt.market.walks import session_walks
from foxhunt_rt.replay import GoalSlot, Replay
from foxhunt_rt.train.collector import Collector
from foxhunt_rt.train.dataset import DataSet
from foxhunt_rt.train.evaluate import Evaluator, Window
from foxhunt_rt.train.loss_probe import LossProbe

__all__ = ["World"]

#: Sessions that an evaluation walks side by side at most; more are walked in rounds.
MAX_SESSIONS = 1024


class World:
    """Bars, environments, learner and graphs of one run.

    Parameters
    ----------
    rt : Runtime
    data : DataSet
    config : Config

    Attributes
    ----------
    learner : Learner
    collector : Collector
    evaluator : Evaluator
    probe : LossProbe

    Notes
    -----
    Allocates, loads, captures and synchronizes.
    """

    def __init__(self, rt: Runtime, data: DataSet, config: Config) -> None:
        self.runtime, self.data, self.config = rt, data, config
        self.ends, self.folds = data.ends, data.folds
        bars, train = data.bars, config.train
        ohlc = np.stack([bars.open, bars.high, bars.low, bars.close], axis=1)
        table = np.zeros_like(data.features.values)
        context, goal = context_dim(config), config.her.enabled
        self.tables = MarketTables(rt, ohlc, self.ends, table, data.spec.tick, context=context, goal=goal)
        model = self.execution_model(self.folds[0])
        self.environment = MarketEnvironment(rt, self.tables, model, config.market.environments)
        self.replay = Replay(rt, config.replay.capacity, self.tables.state_width + context, mode="market",
                             portfolio_dim=self.tables.portfolio_width + context, context_dim=context,
                             n_step=config.replay.n_step)  # fmt: skip
        self.replay.set_feature_table(self.tables.features)
        if (sign := mirror_sign(config.market, data.features.directional, self.tables.portfolio_width)) is not None:
            self.replay.set_mirror(np.append(sign, np.ones(context, np.float32)))
        if config.plan.enabled:
            self.replay.track_conviction()
        if goal:
            self.replay.goal = GoalSlot(*self.tables.goal_columns, 1, self.environment.pnl_scale)
        self.learner = Learner(rt, config, self.tables.state_width, BRANCHES, replay=self.replay)
        layout, control = self.learner.layout, self.learner.control.buffer
        policy = Policy(
            rt, layout, control, config.market.environments, guard=self.learner.guard, context=self.replay.context,
            label="collect.policy",
        )  # fmt: skip
        augment = augmentation(rt, config.market.environments, config.market, control)
        self.collector = Collector(
            rt,
            self.environment,
            policy,
            self.learner.adam.theta,
            self.replay,
            train.collect_steps,
            augment,
            self._gate(),
        )
        sessions = max(len(session_walks(self.ends, *w)) for fold in self.folds for w in (fold.validate, fold.test))
        self.evaluator = Evaluator(
            rt, self.tables, model, layout, control, min(sessions, MAX_SESSIONS), train.collect_steps, config.plan
        )
        self.probe = LossProbe(rt, self.learner, train.probe_rows)

    def _gate(self) -> Conviction | None:
        """What scales the decisions of collection: the plan head as it stands in training."""
        found = [e.state for e in self.learner.extensions if isinstance(e, Plan)]
        if not found:
            return None
        return Conviction(self.runtime, self.learner.layout, self.config.plan, found[0], self.config.market.environments,
                          "collect.conviction")  # fmt: skip

    def execution_model(self, fold: Fold) -> ExecutionModel:
        """Costs, and the scale of profits in the portfolio features, which is fitted on the training window."""
        scale = self.config.market.pnl_scale_ticks
        if scale == 0.0:
            scale = fit_pnl_scale_ticks(self.data.bars.close, self.ends, *fold.train, self.data.spec.tick)
        return ExecutionModel.from_config(self.config.market, self.data.spec, scale, self.config.her.target)

    def enter(self, fold: Fold, seed: int) -> Normalizer:
        """Puts everything to the start of a fold, whatever ran before: fold k alone equals fold k in sequence, bit for bit.

        Synchronizes.

        Returns
        -------
        Normalizer
            Of the features, fitted on the training window.
        """
        normalizer = Normalizer.fit(self.data.features, *fold.train, self.config.market.features)
        self.runtime.synchronize()
        features = normalizer.apply(self.data.features.values)
        self.tables.features.copy_from(features)
        model = self.execution_model(fold)
        self.environment.set_model(model)
        self.evaluator.environment.set_model(model)
        loss = self.config.loss
        self.learner.set(reward_scale=loss.reward_scale, v_min=loss.v_min, v_max=loss.v_max)
        self.learner.reset(seed)
        self.collector.reset()
        self.evaluator.policy.reset()
        if (statistics := statistics_of(self.learner.extensions)) is not None:
            statistics.set_validation(self._states(features, fold.validate, self.config.epoch.validation_rows))
        return normalizer

    def _states(self, features: NDArray[np.float32], window: tuple[int, int], most: int) -> NDArray[np.float32]:
        """States of a flat account at decisions spread evenly over a window, (at most ``most``, S)."""
        bars = np.arange(*window)
        bars = bars[self.ends[bars] > bars]
        chosen = bars[np.linspace(0, len(bars) - 1, min(most, len(bars))).astype(np.int64)]
        states = np.zeros((len(chosen), self.tables.state_width), np.float32)
        states[:, : features.shape[1]] = features[chosen]  # the portfolio's features are 0 when flat
        if self.config.her.enabled:
            states[:, self.tables.goal_columns[1]] = self.config.her.target
        return states

    def window(self, first: int, stop: int) -> Window:
        """Bars [first, stop) as an evaluation takes them."""
        return Window(self.data.bars, self.ends, self.data.spec, self.config.market, first, stop)

    def about(self) -> dict[str, Any]:
        """For the observer: what is trained on what."""
        info = self.learner.graph.info()
        layout = self.learner.layout
        return {
            "bars": self.data.bars.describe(),
            "contract": next((n for n in self.data.bars.notes if n.startswith("contract")), ""),
            "folds": len(self.folds),
            "epochs": self.config.train.epochs,
            "batch": self.config.replay.batch,
            "network": {"widths": [layout.state_dim, *layout.hidden, layout.head_width], "parameters": layout.parameters,
                        "atoms": layout.atoms, "branches": list(layout.branches)},
            "graph": {"children": len(info["children"]), "nodes": info["nodes"]},
            "driver": self.runtime.driver_kind,
            "device": self.runtime.device.name,
            "device_bytes": sum(size for _, size in live_allocations()),
        }  # fmt: skip

    def close(self) -> None:
        """Waits for the stream and destroys the graphs."""
        self.evaluator.close()
        self.collector.close()
        self.learner.close()
