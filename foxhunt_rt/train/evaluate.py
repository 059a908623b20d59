"""Evaluation: the greedy policy over every session of a window, side by side, flat before and after each.

T steps of all sessions are one launch, of a plan of its own. The record of each bar comes back (`bar_result`), and the
metrics are computed from it on the host, beside reference policies on the same bars.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foxhunt_rt.config import MarketConfig, PlanConfig
from foxhunt_rt.dqn.blocks import history_of
from foxhunt_rt.dqn.children.plan import Conviction, Plan
from foxhunt_rt.dqn.layout import NetworkLayout
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.policy import Policy
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Runtime, StepGraph
from foxhunt_rt.kernels import abi
from foxhunt_rt.market.actions import BRANCH_NAMES, BRANCHES, decode_actions
from foxhunt_rt.market.bars import Bars
from foxhunt_rt.market.baselines import baseline
from foxhunt_rt.market.contract import ContractSpec
from foxhunt_rt.market.environment import BarResults, MarketEnvironment, MarketTables
from foxhunt_rt.market.execution import ExecutionModel
from foxhunt_rt.market.metrics import Metrics, summarize
from foxhunt_rt.market.walks import Walks, session_walks
from foxhunt_rt.replay.saved import plain, structured

__all__ = ["Evaluator", "Judgement", "Served", "Window", "branch_entropy", "reference_policies"]

#: A branch whose choices are spread like this share of a uniform draw's entropy looks untrained (known failure K15).
RANDOM_ENTROPY = 0.98


@dataclasses.dataclass(frozen=True)
class Window:
    """Bars [first, stop) of a data set, with what turns a record of them into money."""

    bars: Bars
    ends: NDArray[np.int32]
    spec: ContractSpec
    config: MarketConfig
    first: int
    stop: int

    @property
    def slice(self) -> Bars:
        """The window's bars."""
        return self.bars.slice(self.first, self.stop)

    @property
    def capital(self) -> float:
        """Equity at the window's start: as configured, else the notional value of the position limit there."""
        if self.config.capital > 0:
            return self.config.capital
        return float(self.bars.close[self.first]) * self.spec.multiplier * self.config.position_limit

    def metrics(self, results: NDArray[Any]) -> Metrics:
        """Of a record of the window's bars."""
        ts = self.bars.ts[self.first : self.stop]
        return summarize(results, ts, self.spec, capital=self.capital, clock=self.bars.clock)


@dataclasses.dataclass(frozen=True)
class Served:
    """A policy as it is judged and written for use.

    Attributes
    ----------
    theta : float32 (P,)
        Flat parameters as `Learner.served` gives them.
    plan : plan_state (1,) or None
        With the plan head on: the readiness at that moment, by which conviction counts or not.
    context : float32 (C,) or None
        What its states end with (`Replay.context`), as it was at that moment.
    """

    theta: NDArray[np.float32]
    plan: NDArray[Any] | None = None
    context: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, learner: Learner) -> Served:
        """What a learner would serve now. Synchronizes."""
        found = [e.state.to_numpy() for e in learner.extensions if isinstance(e, Plan)]
        context = learner.replay.context
        return cls(
            learner.served().to_numpy(), found[0] if found else None, None if context is None else context.to_numpy()
        )

    def kept(self) -> dict[str, NDArray[Any]]:
        """As plain arrays, all of it, for `restored`."""
        parts = {"theta": self.theta, "plan": None if self.plan is None else plain(self.plan), "context": self.context}
        return {name: array for name, array in parts.items() if array is not None}

    @classmethod
    def restored(cls, tensors: Mapping[str, NDArray[Any]]) -> Served:
        """What `kept` gave."""
        plan = structured(tensors["plan"], abi.dtype("plan_state")) if "plan" in tensors else None
        return cls(tensors["theta"], plan, tensors.get("context"))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Plain arrays of a checkpoint: `theta`, `context` where there is one, and so `plan.state`, with `plan.readiness` and
        `plan.skill`."""
        found: dict[str, NDArray[Any]] = {"theta": self.theta}
        if self.context is not None:
            found["context"] = self.context
        if self.plan is None:
            return found
        parts = {f"plan.{name}": np.array(self.plan[name]) for name in ("readiness", "skill")}
        return {**found, "plan.state": plain(self.plan), **parts}


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What a policy did in a window."""

    metrics: Metrics
    entropy: dict[str, float]  # of the choices, by branch, as a share of a uniform draw's
    equity: NDArray[np.float64]  # net, at each bar's close

    @property
    def alarms(self) -> list[str]:
        """Signs of a policy that is not one."""
        spread = [name for name, share in self.entropy.items() if share > RANDOM_ENTROPY]
        extra = [f"choices of {', '.join(spread)} are spread like random ones"] if len(spread) == len(BRANCHES) else []
        return [*self.metrics.alarms, *extra]

    @property
    def rank(self) -> tuple[float, float]:
        """Orders policies: by Sharpe ratio, then by net PnL.

        Where there is no ratio it counts as 0: for a policy that never trades that is what its returns are worth, and in a
        window of a single day it leaves the order to the net PnL. A policy that lost everything comes last.
        """
        m = self.metrics
        ruined = -math.inf if m.max_drawdown_share >= 1.0 else 0.0
        return (m.sharpe if m.sharpe is not None else ruined, m.net_pnl)


def branch_entropy(action: NDArray[np.int32]) -> dict[str, float]:
    """Entropy of the choices of each branch, as a share of log(number of choices)."""
    if not len(action):
        return dict.fromkeys(BRANCH_NAMES, 0.0)
    parts = decode_actions(action)
    result = {}
    for b, (name, choices) in enumerate(zip(BRANCH_NAMES, BRANCHES, strict=True)):
        share = np.bincount(parts[:, b], minlength=choices) / len(parts)
        share = share[share > 0]
        result[name] = float(-(share * np.log(share)).sum() / math.log(choices))
    return result


def reference_policies(window: Window, seed: int) -> dict[str, dict[str, Any]]:
    """Buy-and-hold, always flat and random on the same bars: metrics by name."""
    names = {"buy_and_hold": "buy_and_hold", "always_flat": "flat", "random": "random"}
    return {name: brief(window.metrics(baseline(key, window.slice, window.spec, window.config, seed=seed)))
            for name, key in names.items()}  # fmt: skip


def brief(metrics: Metrics) -> dict[str, Any]:
    """The numbers of a metrics record that stand in every result."""
    names = ("net_pnl", "sharpe", "sortino", "trades", "costs", "max_drawdown", "exposure")
    return {name: getattr(metrics, name) for name in names}


class Evaluator:
    """Walks windows greedily.

    Parameters
    ----------
    rt : Runtime
    tables : MarketTables
    model : ExecutionModel
    layout : NetworkLayout
    control : Buffer
        control_block[1]: the support.
    environments : int
        Sessions side by side; windows with more are walked in rounds.
    steps : int
        T, steps a launch.
    plan : PlanConfig
        With the plan head on, conviction scales sizes as it does in collection.

    Attributes
    ----------
    params : DeviceBuffer
        Flat parameters of the policy that is judged: copy into it before `record`.
    gate : Conviction or None
        Scales sizes; its ``state`` is the readiness that goes with ``params``: copy into it too.
    context : DeviceBuffer or None
        The last columns of its states (`Replay.context`), where it has such: copy into it too.
    """

    def __init__(self, rt: Runtime, tables: MarketTables, model: ExecutionModel, layout: NetworkLayout, control: Buffer,
                 environments: int, steps: int, plan: PlanConfig) -> None:  # fmt: skip
        self.runtime, self.steps = rt, steps
        self.environment = MarketEnvironment(rt, tables, model, environments, label="evaluation")
        self.context = rt.zeros(tables.context, np.float32, "evaluation.context") if tables.context else None
        self.policy = Policy(rt, layout, control, environments, context=self.context, label="evaluation.policy")
        self.results = BarResults(rt, 0, tables.bar_count, label="evaluation.results")
        self.params = rt.zeros(layout.size, np.float32, "evaluation.params")
        self.state = rt.zeros((environments, tables.padded_width), np.float32, "evaluation.state")
        action = rt.zeros(environments, np.int32, "evaluation.action")
        self.gate: Conviction | None = None
        if plan.enabled:
            readiness = rt.zeros(1, abi.dtype("plan_state"), "evaluation.plan_state")
            self.gate = Conviction(rt, layout, plan, readiness, environments, "evaluation.conviction")
        self.history = history_of(rt, layout, environments, "evaluation.history")
        windows = None if self.history is None else self.history.windows
        step = rt.plan("evaluate")
        reads = [*self.policy.reads(self.params, self.state), *self.environment.reads]
        writes = [*self.policy.writes(action), *self.environment.writes, self.results.buffer, self.state,
                  *(windows.buffers() if windows is not None else [])]  # fmt: skip
        conviction = None if self.gate is None else self.gate.value
        if self.gate is not None:
            reads, writes = [*reads, self.gate.state], [*writes, self.gate.value]
        with step.child("evaluate", reads=reads, writes=writes) as child:
            for _ in range(steps):
                # a walk is one session, which is one episode: its history begins with it
                self.policy.record_act(child, self.params, self.state, action, history=self.history)
                if self.gate is not None:
                    self.gate.record(child, self.policy.trunk_output, self.params)
                self.environment.record_step(child, action, None, self.state, self.results, conviction=conviction)
        self.graph: StepGraph = step.build(ungraphed=False)

    def serve(self, policy: Served) -> None:
        """The policy that is judged from now on. Synchronizes."""
        self.params.copy_from(policy.theta)
        if self.gate is not None:
            assert policy.plan is not None
            self.gate.state.copy_from(policy.plan)  # type: ignore[attr-defined]
        if self.context is not None:
            assert policy.context is not None
            self.context.copy_from(policy.context)

    def record(self, ends: NDArray[np.int32], first: int, stop: int) -> NDArray[Any]:
        """What the policy of `params` did in bars [first, stop): `bar_result` (stop - first,). Synchronizes."""
        self.results.clear()
        walks = session_walks(ends, first, stop)
        # Longest first: sessions of one round then end at about the same time.
        order = np.argsort(-walks.steps, kind="stable")
        for at in range(0, len(walks), self.environment.environments):
            chosen = order[at : at + self.environment.environments]
            part = Walks(walks.start[chosen], walks.end[chosen], walks.flatten[chosen], walks.steps[chosen])
            self.environment.reset(part)
            if self.history is not None:
                self.history.clear()
            self.environment.record_observe(self.runtime.ungraphed("evaluate.begin"), self.state)
            for _ in range(-(-part.longest // self.steps)):
                self.graph.launch()
        self.environment.check()
        return self.results.buffer[first:stop].to_numpy()

    def judge(self, window: Window) -> Judgement:
        """Walks a window and computes its metrics. Synchronizes."""
        results = self.record(window.ends, window.first, window.stop)
        visited = results["visited"] != 0
        return Judgement(window.metrics(results), branch_entropy(results["action"][visited]), np.cumsum(results["net"]))

    def close(self) -> None:
        """Waits for the stream and destroys the graph."""
        self.graph.close()
