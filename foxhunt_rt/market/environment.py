"""The trading environment on the device: E episodes in parallel over one bar table and one feature table.

    tables = MarketTables(rt, ohlc, ends, features, tick)            shared by all environments of a data set
    env = MarketEnvironment(rt, tables, model, environments=64)      model: ExecutionModel
    env.reset(split_window(ends, lo, hi, 64))
    with plan.child("observe", reads=env.reads, writes=[state]) as child:
        env.record_observe(child, state)
    staging = replay.staging(64)
    with plan.child("environment", reads=[*env.reads, action], writes=[*env.writes, *staging.buffers, state]) as child:
        env.record_step(child, action, staging, state)

One kernel a step: it trades, writes the transition for the replay ring, and writes the next observation. Semantics and
scales: docs/environment.md; kernels: cuda_src/market.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import Staging

from .augment import NO_AUGMENTATION, Augmentation
from .execution import GOAL_FEATURES, PORTFOLIO_FEATURES, ExecutionModel
from .walks import Walks

if TYPE_CHECKING:
    from foxhunt_rt.graph import Runtime
    from foxhunt_rt.graph.child import Child
    from foxhunt_rt.graph.runtime import UngraphedUser

    Launcher = Child | UngraphedUser

__all__ = ["BarResults", "MarketEnvironment", "MarketTables"]

_ROW = {
    "row_mirrored": "mirrored",
    "row_conviction": "conviction",
    "row_feature": "feature_row",
    "row_next_feature": "next_feature_row",
    **{f"row_{part}": part for part in ("portfolio", "next_portfolio", "action", "reward", "ended")},
}
_EXACT_TICKS = 1 << 24  # integers up to here are exact in f32
_THREADS = 32  # one warp an environment: its barrier is free, and a feature row is one or two passes


class MarketTables:
    """The bars and features of one data set in device memory.

    Parameters
    ----------
    rt : Runtime
    ohlc : float64 (n, 4)
        Open, high, low, close, in price units.
    ends : int32 (n,)
        `walks.session_ends`.
    features : float32 (n, F) or DeviceBuffer
        Market features; a buffer may have more columns than `feature_count`, which are not read.
    tick : float
        Prices are stored in ticks, f32: a price on the tick grid is exact up to 16,777,216 ticks, so that comparing a
        low with a limit is exact too. Others (adjusted by ratio) are rounded to f32.
    feature_count : int, optional
        Columns of `features` that are features; all of them if left out.
    context : int
        Columns behind the portfolio that others write into observations; zeros here.
    label : str
    goal : bool
        Whether states have a goal slot behind the portfolio: the episode's return so far and the one that it is to reach.

    Raises
    ------
    ValueError
        Shapes disagree, or a price is not finite, above its high, below its low, or beyond 16,777,216 ticks.

    Notes
    -----
    Allocates and synchronizes; not legal inside a capture. Takes n * (20 + 4 F) bytes.
    """

    def __init__(
        self,
        rt: Runtime,
        ohlc: ArrayLike,
        ends: NDArray[np.int32],
        features: NDArray[np.float32] | DeviceBuffer,
        tick: float,
        feature_count: int | None = None,
        context: int = 0,
        label: str = "market",
        goal: bool = False,
    ) -> None:
        bars = bars_in_ticks(ohlc, tick)
        n = len(bars)
        if ends.shape != (n,) or ends.dtype != np.int32:
            raise ValueError(f"session ends are {ends.dtype} {ends.shape}; give int32 ({n},), from walks.session_ends")
        if np.any(ends < np.arange(n)) or np.any(ends >= n):
            raise ValueError("a session ends before its bar or beyond the last; give walks.session_ends of the bars")
        if len(features.shape) != 2 or features.shape[0] != n or features.dtype != np.float32:
            raise ValueError(f"features are {features.dtype} {tuple(features.shape)}; give float32 ({n}, F)")
        self.bar_count, self.context = n, context
        self.stride = int(features.shape[1])
        self.feature_count = self.stride if feature_count is None else feature_count
        if not 0 <= self.feature_count <= self.stride:
            raise ValueError(f"feature_count = {feature_count}; the table has {self.stride} columns")
        self.portfolio_width = PORTFOLIO_FEATURES + (GOAL_FEATURES if goal else 0)
        self.bars = rt.array(bars, f"{label}.bars")
        self.session_end = rt.array(ends, f"{label}.session_end")
        self.features = features if isinstance(features, DeviceBuffer) else rt.array(features, f"{label}.features")

    @property
    def state_width(self) -> int:
        """S: market features and portfolio, with the goal slot where there is one."""
        return self.feature_count + self.portfolio_width

    @property
    def goal_columns(self) -> tuple[int, int]:
        """Columns of a state with the return so far, and the one to reach. Raises ValueError without a goal slot."""
        if self.portfolio_width == PORTFOLIO_FEATURES:
            raise ValueError("these states have no goal slot; make the tables with goal=True")
        first = self.feature_count + PORTFOLIO_FEATURES
        return first, first + 1

    @property
    def padded_width(self) -> int:
        """Sp: S and the context, rounded up to 32 floats."""
        return -(-(self.state_width + self.context) // 32) * 32


def bars_in_ticks(ohlc: ArrayLike, tick: float) -> NDArray[np.float32]:
    """Prices (n, 4) as float32 ticks; within 1e-6 ticks of the tick grid they are put on it. Raises ValueError."""
    prices = np.asarray(ohlc, np.float64)
    if prices.ndim != 2 or prices.shape[1] != 4 or len(prices) == 0:
        raise ValueError(f"bars have shape {prices.shape}; give (n, 4): open, high, low, close")
    bad = np.flatnonzero(~np.isfinite(prices).all(axis=1))
    if len(bad):
        raise ValueError(f"bar {bad[0]} has a price that is not finite; validate the bars first")
    bad = np.flatnonzero((prices[:, 1] < prices.max(axis=1)) | (prices[:, 2] > prices.min(axis=1)))
    if len(bad):
        raise ValueError(f"bar {bad[0]} has a price above its high or below its low; validate the bars first")
    ticks = prices / tick
    grid = np.rint(ticks)
    if np.abs(grid).max() > _EXACT_TICKS:
        top = np.abs(grid).max()
        raise ValueError(
            f"prices reach {top:.0f} ticks of {tick:g}, f32 is exact to {_EXACT_TICKS}; give a larger tick"
        )
    return np.where(np.abs(ticks - grid) < 1e-6, grid, ticks).astype(np.float32)


class BarResults:
    """A `bar_result` for each bar of [first, stop), which `record_step` fills: what an evaluation reads (`results.py`).

    Allocates; `clear` and `to_numpy` are in the order of the runtime's stream, and `to_numpy` synchronizes.
    """

    def __init__(self, rt: Runtime, first: int, stop: int, label: str = "bar_results") -> None:
        if not 0 <= first < stop:
            raise ValueError(f"results for bars [{first}, {stop}); give 0 <= first < stop")
        self.first, self.stop = first, stop
        self.buffer = rt.zeros(stop - first, abi.dtype("bar_result"), label)

    def clear(self) -> None:
        """Every record to zero: not visited."""
        self.buffer.fill(0)

    def to_numpy(self) -> NDArray[Any]:
        """`bar_result` (stop - first,): see cuda_src/abi/types.h. Synchronizes."""
        return self.buffer.to_numpy()


class MarketEnvironment:
    """E trading environments.

    Parameters
    ----------
    rt : Runtime
    tables : MarketTables
    model : ExecutionModel
        May be changed between launches by `set_model`.
    environments : int
        E.
    label : str
        Prefix of its buffers' labels.

    Attributes
    ----------
    reads, writes : list of DeviceBuffer
        What its kernels touch beside the buffers that are passed to the record methods.

    Notes
    -----
    Idle until `reset`. Allocates E * 92 bytes.
    """

    def __init__(
        self, rt: Runtime, tables: MarketTables, model: ExecutionModel, environments: int, label: str = "environment"
    ) -> None:
        if environments < 1:
            raise ValueError(f"{environments} environments; give at least 1")
        self.rt, self.tables, self.model, self.environments = rt, tables, model, environments
        self.state = rt.zeros(environments, abi.dtype("env_state"), f"{label}.state")
        self.block = rt.array(model.to_block(), f"{label}.market_block")
        names = ("start", "end", "flatten")
        self._walks = {name: rt.zeros(environments, np.int32, f"{label}.{name}") for name in names}
        self._user = f"{label}.reset"
        self.longest = 0

    @property
    def reads(self) -> list[DeviceBuffer]:
        t = self.tables
        return [t.bars, t.session_end, t.features, self.block, *self._walks.values(), self.state]

    @property
    def writes(self) -> list[DeviceBuffer]:
        return [self.state]

    def set_model(self, model: ExecutionModel) -> None:
        """New costs and scales, from the next launch on. Synchronizes; not legal inside a capture.

        Raises
        ------
        ValueError
            The tick differs: the bars of the tables are in ticks.
        """
        if model.tick != self.model.tick:
            raise ValueError(f"tick {model.tick:g} is not the tables' {self.model.tick:g}; make new tables")
        self.model = model
        self.block.copy_from(model.to_block())

    def reset(self, walks: Walks) -> None:
        """Starts new walks; environments beyond `len(walks)` idle. Synchronizes; not legal inside a capture.

        Raises
        ------
        ValueError
            There are more walks than environments, or one leaves the bars.
        """
        if len(walks) > self.environments:
            raise ValueError(f"{len(walks)} walks for {self.environments} environments; give at most that many")
        if np.any(walks.start < 0) or np.any(walks.end > self.tables.bar_count) or np.any(walks.start >= walks.end):
            raise ValueError(f"a walk leaves the {self.tables.bar_count} bars; give 0 <= start < end <= bars")
        for name, buffer in self._walks.items():
            values = np.zeros(self.environments, np.int32)
            values[: len(walks)] = getattr(walks, name)
            buffer.copy_from(values)
        self.longest = walks.longest
        self.rt.ungraphed(self._user).launch("env_reset", *self._reset_shape, self._reset_args)

    def record_reset(self, child: Launcher) -> None:
        """Records the return of every environment to the start of the walk that `reset` gave it."""
        child.launch("env_reset", *self._reset_shape, self._reset_args)

    @property
    def _reset_shape(self) -> tuple[tuple[int], tuple[int]]:
        return (-(-self.environments // 128),), (128,)

    @property
    def _reset_args(self) -> dict[str, Any]:
        return {
            "env": self.state,
            **self._walks,
            "session_end": self.tables.session_end,
            "E": self.environments,
            "N": self.tables.bar_count,
        }

    def record_observe(self, child: Launcher, state_out: DeviceBuffer) -> None:
        """Records the observation as it stands: f32 (E, Sp), features then portfolio then zeros; zeros where idle."""
        self._check_state(state_out)
        child.launch(
            "env_observe",
            (self.environments,),
            (_THREADS,),
            {
                "env": self.state,
                "features": self.tables.features,
                "market": self.block,
                "state": state_out,
                **self._sizes,
            },
        )

    def record_step(
        self,
        child: Launcher,
        actions: DeviceBuffer,
        staging: Staging | None = None,
        state_out: DeviceBuffer | None = None,
        results: BarResults | None = None,
        augment: Augmentation | None = None,
        conviction: DeviceBuffer | None = None,
    ) -> None:
        """Records one step of every environment: one kernel.

        Parameters
        ----------
        child : Child or UngraphedUser
            Declares `reads` and `writes` of the environment and the buffers below; an `rt.ungraphed` user launches now.
        actions : i32 (E,)
            `actions.encode_actions`. An action outside the action space places no order and is counted (`check`).
        staging : Staging, optional
            Of a replay in market mode. Receives the transition, with the raw reward in money; ENDED_ABSENT and zeros from an
            idle environment. None: not wanted (evaluation). With `augment`, of `augment.rows` rows: the counterfactual ones last.
        state_out : f32 (E, Sp), optional
            Receives the observation after the step, of the next session where one ended; None: not wanted.
        results : BarResults, optional
            Receives what happened in each bar; None: not wanted (collection).
        augment : Augmentation, optional
            Counterfactual and mirrored rows, in the same kernel; the child declares its `reads` and `writes` too.
        conviction : f32 (E,), optional
            Scales the size of each order (docs/step/plan.md) and, where the staging keeps it, the training reward. The money in
            `results` and the raw reward are those of what was traded.

        Raises
        ------
        ValueError
            A buffer of another size, `augment` without `staging`, or a mirror in one of the two alone.
        """
        if staging is not None and staging.environments != (rows := augment.rows if augment else self.environments):
            raise ValueError(
                f"the staging takes {staging.environments} rows, a step writes {rows}; give replay.staging({rows})"
            )
        if augment is not None and (staging is None or (staging.mirrored is None) != (augment.mirror_share == 0)):
            raise ValueError("rows can be added or mirrored only where they go: give the staging of a replay, with "
                             "Replay.set_mirror before it where rows are mirrored")  # fmt: skip
        if state_out is not None:
            self._check_state(state_out)
        row = dict.fromkeys(_ROW) if staging is None else {name: getattr(staging, part) for name, part in _ROW.items()}
        child.launch(
            "env_step",
            (self.environments,),
            (_THREADS,),
            {
                "env": self.state,
                "action": actions,
                "bars": self.tables.bars,
                "session_end": self.tables.session_end,
                "features": self.tables.features,
                "market": self.block,
                "conviction": conviction,
                "state": state_out,
                **row,
                **(NO_AUGMENTATION if augment is None else augment.launch_args()),
                "result": None if results is None else results.buffer,
                "result_first": 0 if results is None else results.first,
                "results": 0 if results is None else results.stop - results.first,
                **self._sizes,
            },
        )

    @property
    def _sizes(self) -> dict[str, int]:
        t = self.tables
        sizes = {"N": t.bar_count, "F": t.feature_count, "stride": t.stride, "Sp": t.padded_width}
        return {"E": self.environments, "P": t.portfolio_width, **sizes}

    @property
    def pnl_scale(self) -> DeviceBuffer:
        """f64 (1,): money that reads 1 in the portfolio features and the goal slot, as the environment has it now."""
        words: DeviceBuffer = self.block.view((self.block.nbytes // 8,), np.float64)
        at = abi.dtype("market_block").fields["pnl_scale"][1] // 8  # type: ignore[index]
        one: DeviceBuffer = words[at : at + 1]
        return one

    def _check_state(self, state_out: DeviceBuffer) -> None:
        expected = (self.environments, self.tables.padded_width)
        if tuple(state_out.shape) != expected:
            raise ValueError(f"{state_out.label} has shape {tuple(state_out.shape)}; give {expected}: environments, Sp")

    def active(self) -> int:
        """Environments that still walk. Synchronizes."""
        state = self.state.to_numpy()
        return int(np.count_nonzero(state["cursor"] + 1 < state["end"]))

    def check(self) -> None:
        """Raises RuntimeError when a step met an action outside the action space. Synchronizes."""
        invalid = self.state.to_numpy()["invalid_actions"]
        if np.any(invalid):
            e = int(np.argmax(invalid > 0))
            bound = abi.constant("ACTION_COUNT")
            raise RuntimeError(f"environment {e} met {invalid[e]} actions outside [0, {bound}); mend the policy kernel")
