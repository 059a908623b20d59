"""Prioritized replay that lives on the device: a ring of transitions, a tree of sums over their priorities.

Nothing here knows what learns from it. The kernels are in cuda_src/replay, the reasons in docs/replay.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay.batch import Batch, padded_state_dim
from foxhunt_rt.replay.errors import ReplayError
from foxhunt_rt.replay.hindsight import GoalSlot
from foxhunt_rt.replay.staging import Staging

__all__ = ["Replay", "ReplayState"]

_BLOCK = (32,)


@dataclass(frozen=True)
class ReplayState:
    """Counts since the last `clear`.

    Attributes
    ----------
    inserted : int
        Rows inserted.
    finals : int
        Final observations stored (vector mode).
    size : int
        Rows held.
    position : int
        Next row to write.
    max_priority : float
        With which new rows enter.
    skipped : int
        Priorities that were not finite and therefore not written.
    stride : int
        Environments of the inserts; 0 before the first.
    """

    inserted: int
    finals: int
    size: int
    position: int
    max_priority: float
    skipped: int
    stride: int


class Replay:
    """A ring of `capacity` transitions with proportional priorities (Schaul et al. 2016).

    Parameters
    ----------
    runtime : Runtime
    capacity : int
        Rows, 256 to 16,777,216; no power of two needed.
    state_dim : int
        S, floats of a state.
    mode : {"vector", "market"}
        What a row keeps of its states. "vector": s itself; s' is the successor's s, and only the last observation of an
        episode is stored beside. "market": rows of a feature table (`set_feature_table`) and `portfolio_dim` floats of its
        own, for s and s'.
    portfolio_dim : int
        P; market mode only. A state is the first S - P columns of its feature row, then the P portfolio values.
    context_dim : int
        C of the last columns of a state (of the P in market mode) that are the same for all environments at a moment: an insert
        takes them from `context`, so s holds the context of its own insert and s' that of the next, of its own where the episode
        ended. Staged rows are without them. 0: none.
    n_step : int
        Rows of a return's window, 1 to 64.
    final_observations : int, optional
        Vector mode: final observations kept. Where episodes are shorter than capacity / final_observations rows, the oldest rows
        leave the ring early. Default: a quarter of the capacity, at least 1,024.
    normalization : {"batch"}
        Whose largest importance weight scales the weights. "buffer" needs a minimum over the ring and is not there.

    Notes
    -----
    In a capture: refused. Synchronizes: no. Allocates: yes.

    Bytes a row: 36, and 4 S (vector) or 8 P (market); 4 more with `track_conviction`.

    `goal` says where states hold a goal, for relabelling; None, as it is made: nowhere that the ring knows of.

    The host counts the rows it knows of (`inserted`): those of `insert_batch`, and those of launched graphs, reported by
    `note_inserted`.
    """

    def __init__(self, runtime: Runtime, capacity: int, state_dim: int, *, mode: str = "vector", portfolio_dim: int = 0,
                 context_dim: int = 0, n_step: int = 1, final_observations: int | None = None,
                 normalization: str = "batch") -> None:  # fmt: skip
        fanout = abi.constant("SUM_FANOUT")
        if not fanout <= capacity <= fanout**3:
            raise ReplayError(f"capacity {capacity} is out of range; give {fanout} to {fanout**3:,} rows")
        if state_dim < 1:
            raise ReplayError(f"state_dim {state_dim} is no width; give at least 1")
        if not 1 <= n_step <= abi.constant("MAX_N_STEP"):
            raise ReplayError(f"n_step {n_step} is out of range; give 1 to {abi.constant('MAX_N_STEP')}")
        if normalization == "buffer":
            raise NotImplementedError("normalization by the buffer's largest weight needs a minimum over the ring, which "
                                      "is not kept; use normalization='batch'")  # fmt: skip
        if normalization != "batch":
            raise ReplayError(f"normalization {normalization!r} is unknown; use 'batch'")
        if mode not in ("vector", "market"):
            raise ReplayError(f"mode {mode!r} is unknown; use 'vector' or 'market'")
        if (mode == "market") != (portfolio_dim > 0) or portfolio_dim >= state_dim:
            raise ReplayError(f"portfolio_dim {portfolio_dim} does not go with {mode} mode and {state_dim} floats a state; "
                              "market mode needs 1 to state_dim - 1, vector mode 0")  # fmt: skip
        if not 0 <= context_dim < (portfolio_dim if mode == "market" else state_dim):
            raise ReplayError(
                f"context_dim {context_dim} leaves nothing of {portfolio_dim or state_dim} columns; give fewer"
            )
        self.runtime, self.capacity, self.state_dim, self.mode = runtime, capacity, state_dim, mode
        self.portfolio_dim, self.context_dim, self.n_step = portfolio_dim, context_dim, n_step
        self.padded_state_dim = padded_state_dim(state_dim)
        # s' of a vector row is the state after its window, so it is complete one insert later; so is its context
        self.lag = n_step if mode == "vector" or context_dim else n_step - 1
        self.inserted = 0
        self._environments: int | None = None
        self._sampled = False

        vector = mode == "vector"
        self.blocks = -(-capacity // fanout)
        middle = -(-self.blocks // fanout)
        self.final_observations = min(capacity, final_observations or max(capacity // 4, 1024)) if vector else 0
        f32, f64 = np.float32, np.float64
        self.priority = runtime.zeros(self.blocks * fanout, f32, "replay.priority")
        self.block_sum = runtime.zeros(middle * fanout, f64, "replay.block_sum")
        self.super_sum = runtime.zeros(fanout, f64, "replay.super_sum") if middle > 1 else None
        self.rows = runtime.zeros(capacity, abi.dtype("replay_row"), "replay.rows")
        self.ring = runtime.zeros(1, abi.dtype("replay_state"), "replay.ring")
        self.goal: GoalSlot | None = None
        self.features: DeviceBuffer | None = None
        self.state: DeviceBuffer | None = None
        self.final_state: DeviceBuffer | None = None
        self.final_owner: DeviceBuffer | None = None
        self.portfolio: DeviceBuffer | None = None
        self.mirrored: DeviceBuffer | None = None
        self.sign: DeviceBuffer | None = None
        self.conviction: DeviceBuffer | None = None
        self.returns: DeviceBuffer | None = None
        self.running: DeviceBuffer | None = None
        self.account: DeviceBuffer | None = None
        self.drawdown: DeviceBuffer | None = None
        self.context = runtime.zeros(context_dim, f32, "replay.context") if context_dim else None
        self._control: Buffer | None = None
        self._insert_launched = False
        self.ahead = (
            0  # rows of an environment that kernels look ahead of one drawn (cuda_src/replay/ahead.h): `staging` asks
        )
        if vector:
            self.state = runtime.zeros((capacity, state_dim), f32, "replay.state")
            self.final_state = runtime.zeros((self.final_observations, state_dim), f32, "replay.final_state")
            self.final_owner = runtime.zeros(self.final_observations, np.int64, "replay.final_owner")
        else:
            self.portfolio = runtime.zeros((capacity, 2, portfolio_dim), f32, "replay.portfolio")
        self.clear()

    # ---------------------------------------------------------------- what kernels touch

    @property
    def _sums(self) -> tuple[DeviceBuffer, ...]:
        return tuple(b for b in (self.priority, self.block_sum, self.super_sum) if b is not None)

    @property
    def _contents(self) -> tuple[DeviceBuffer, ...]:
        stored = (self.rows, self.state, self.final_state, self.portfolio, self.mirrored, self.conviction)
        return tuple(b for b in stored if b is not None)

    @property
    def sample_reads(self) -> tuple[DeviceBuffer, ...]:
        """What `record_sample` reads of the ring: a child declares these."""
        tables = (self.features, self.sign)
        return (*self._sums, self.ring, *self._contents, *(b for b in tables if b is not None))

    @property
    def priority_writes(self) -> tuple[DeviceBuffer, ...]:
        """What `record_priorities` writes of the ring."""
        return (*self._sums, self.ring)

    def insert_writes(self, staging: Staging) -> tuple[DeviceBuffer, ...]:
        """What `record_insert` writes: all of the ring, and the scratch of `staging`."""
        more = (self.final_owner, staging.evicted, self.returns, self.running, self.account, self.drawdown)
        return (*self._sums, self.ring, *self._contents, *(b for b in more if b is not None))

    def insert_reads(self, staging: Staging) -> tuple[Buffer, ...]:
        """What `record_insert` reads: ``staging.buffers``, with `track_returns` the control block, and the context."""
        return (*staging.buffers, *(b for b in (self._control, self.context) if b is not None))

    # ---------------------------------------------------------------- mirrored rows

    def set_mirror(self, sign: npt.ArrayLike) -> None:
        """Lets rows be marked as mirrored when they are inserted: `record_sample` then gives s and s' times `sign`.

        The return, the discount and the action are what they are in the ring: whoever inserts a mirrored row stores the action of
        the mirrored market. The mark of the row that was drawn counts for its whole window.

        In a capture: refused. Synchronizes: yes. Allocates: yes.

        Takes a byte a row.

        Parameters
        ----------
        sign : array_like, shape (S,)
            -1 for columns of a state that change sign in the mirrored market, else 1.

        Raises
        ------
        ReplayError
            In vector mode, for other values or another shape, after an insert or a draw was recorded, or a second time.
        """
        values = np.asarray(sign, np.float32)
        if self.mode != "market":
            raise ReplayError("vector mode stores states, not where they come from; make the Replay with mode='market'")
        if values.shape != (self.state_dim,) or not np.isin(values, (-1.0, 1.0)).all():
            raise ReplayError(
                f"the signs have shape {values.shape}; give -1 or 1 for each of the {self.state_dim} columns"
            )
        if self._insert_launched or self._sampled or self.sign is not None:
            raise ReplayError("rows are marked from the first insert on; call set_mirror once, before anything is inserted, "
                              "drawn or recorded")  # fmt: skip
        self.mirrored = self.runtime.zeros(self.capacity, np.uint8, "replay.mirrored")
        self.sign = self.runtime.array(values, "replay.sign")

    # ---------------------------------------------------------------- conviction

    def track_conviction(self) -> None:
        """Keeps what each row's training reward is scaled by: inserts take it from ``staging.conviction``, and `record_sample`
        forms its returns of the rewards times it. The rewards in the ring stay raw.

        In a capture: refused. Synchronizes: no. Allocates: yes.

        Takes 4 bytes a row.

        Raises
        ------
        ReplayError
            In vector mode, after an insert or a draw was recorded, or a second time.
        """
        if self.mode != "market":
            raise ReplayError("vector mode knows no conviction; make the Replay with mode='market'")
        if self._insert_launched or self._sampled or self.conviction is not None:
            raise ReplayError("rows have a conviction from the first insert on; call track_conviction once, before anything is "
                              "inserted, drawn or recorded")  # fmt: skip
        self.conviction = self.runtime.zeros(self.capacity, np.float32, "replay.conviction")

    # ---------------------------------------------------------------- moments of the returns

    def track_returns(self, control: Buffer) -> None:
        """Keeps the moments of the discounted returns of all that is inserted from now on: one more launch an insert.

        Each environment has G <- r + gamma G, in raw reward, 0 again after an end. `returns` has count, mean and sum of squared
        deviations of every G since the last `clear`, `running` the G of each environment.

        In a capture: refused. Synchronizes: no. Allocates: yes.

        Parameters
        ----------
        control : Buffer of control_block
            Read: gamma, as each insert finds it.

        Raises
        ------
        ReplayError
            Something was inserted, or an insert recorded, before; or returns are tracked already.
        """
        self._begin_tracking("returns are", self.returns)
        self._control = control
        self.returns = self.runtime.zeros(1, abi.dtype("return_stats"), "replay.returns")
        self.running = self.runtime.zeros(self.capacity // (self.n_step + 1), np.float64, "replay.running")

    def track_drawdown(self) -> None:
        """Keeps the drawdown of the rewards of all that is inserted from now on: one more launch an insert.

        `account` (slots, 2) has the sum of the raw rewards of each environment's episode and its peak, at least 0; `drawdown`
        (1,) the mean of peak - sum over the environments whose episode goes on, as the last insert left it; 0 where none does.

        In a capture: refused. Synchronizes: no. Allocates: yes.

        Raises
        ------
        ReplayError
            Something was inserted, or an insert recorded, before; or it is tracked already.
        """
        self._begin_tracking("drawdown is", self.account)
        slots = self.capacity // (self.n_step + 1)
        self.account = self.runtime.zeros((slots, 2), np.float64, "replay.account")
        self.drawdown = self.runtime.zeros(1, np.float64, "replay.drawdown")

    def _begin_tracking(self, what: str, tracked: object) -> None:
        if self._insert_launched or tracked is not None:
            raise ReplayError(f"{what} tracked from the first insert on and for one learner; make the learner before "
                              "anything is inserted or recorded, and a ring for each")  # fmt: skip

    # ---------------------------------------------------------------- sampling and priorities

    def set_feature_table(self, features: DeviceBuffer) -> None:
        """The table that market rows point into.

        Parameters
        ----------
        features : DeviceBuffer, float32 (bars, columns)
            columns >= S - P; further columns are not read.

        Raises
        ------
        ReplayError
            In vector mode, for another shape, or when a recorded launch already holds the address of the last table.
        """
        wanted = self.state_dim - self.portfolio_dim
        if self.mode != "market":
            raise ReplayError("vector mode has no feature table; make the Replay with mode='market'")
        if features.dtype != np.float32 or len(features.shape) != 2 or features.shape[1] < wanted:
            raise ReplayError(
                f"{features.label} is {features.dtype}{list(features.shape)}; give float32 (bars, {wanted} or more)"
            )
        if self._sampled:
            raise ReplayError(
                "a recorded launch holds the address of the last feature table; copy the new values into it"
            )
        self.features = features

    def record_sample(self, child: Child, batch: Batch, step: Buffer, guard: Buffer | None = None) -> None:
        """Records the drawing of `batch`: one launch, two where it has windows.

        Parameters
        ----------
        child : Child
            Declares `sample_reads`, and `step` and ``batch.sampled`` as writes.
        batch : Batch
        step : Buffer of step_block
            Read: seed, rng_step, gamma, reward_scale. ``min_priority`` becomes the minimum of itself and the drawn P.
        guard : Buffer of guard_block, optional
            Takes a fault when nothing can be drawn.

        Notes
        -----
        Rows inserted, and gamma changed, after the capture count in every later replay. When nothing can be drawn, index is
        -1 and priority 0, which makes every importance weight NaN: see `require`.

        A window holds states of one episode, as far back as the ring still has them.
        """
        self.record_transitions(child, batch, step, guard)
        if batch.window is not None:
            self.record_windows(child, batch)

    def record_transitions(self, child: Child, batch: Batch, step: Buffer, guard: Buffer | None = None) -> None:
        """Records the drawing of a batch without its windows: one launch.

        Parameters
        ----------
        child : Child
            Declares `sample_reads`, and `step` and ``batch.transitions`` as writes.
        batch, step, guard
            As `record_sample` has them.
        """
        if self.mode == "market" and self.features is None:
            raise ReplayError("market rows point into a feature table; call set_feature_table first")
        if batch.state.shape[1] != self.padded_state_dim:
            raise ReplayError(f"the batch holds states of {batch.state.shape[1]} floats, the ring of {self.padded_state_dim}; "
                              "allocate it with the ring's state_dim")  # fmt: skip
        self._sampled = True
        bars, table = self.features.shape if self.features is not None else (0, 0)
        child.launch("per_sample", (batch.size,), _BLOCK, {
            "priority": self.priority, "block_sum": self.block_sum, "super_sum": self.super_sum, "ring": self.ring,
            "rows": self.rows, "state": self.state, "final_state": self.final_state, "features": self.features,
            "portfolio": self.portfolio, "mirrored": self.mirrored, "sign": self.sign, "conviction": self.conviction,
            "step": step, "guard": guard, "batch_state": batch.state, "batch_next_state": batch.next_state,
            "batch_action": batch.action, "batch_return": batch.ret,
            "batch_discount": batch.discount, "batch_index": batch.index,
            "batch_priority": batch.priority, "B": batch.size, "capacity": self.capacity, "blocks": self.blocks,
            "finals": self.final_observations, "bars": bars, "S": self.state_dim, "Sp": self.padded_state_dim,
            "F": self.state_dim - self.portfolio_dim, "P": self.portfolio_dim, "table": table,
            "n_step": self.n_step})  # fmt: skip

    def record_windows(self, child: Child, batch: Batch, goal: GoalSlot | None = None) -> None:
        """Records the windows of a batch whose rows ``batch.index`` are: one launch. `record_sample` does so by itself.

        Parameters
        ----------
        child : Child
            Declares `sample_reads`, and the index and the states of the batch, as reads, its windows as writes.
        batch : Batch
            Allocated with a window. Its states are the last of each window, whatever was done to them; those before come from the
            ring.
        goal : GoalSlot, optional
            Where the last state's goal replaces that of the states before: rows that were relabelled.
        """
        if batch.window is None or batch.next_window is None:
            raise ReplayError("the batch has no windows; allocate it with a window")
        bars, table = self.features.shape if self.features is not None else (0, 0)
        child.launch("replay_windows", (2 * batch.size,), (64,), {
            "ring": self.ring, "rows": self.rows, "state": self.state, "features": self.features, "portfolio": self.portfolio,
            "mirrored": self.mirrored, "sign": self.sign, "batch_index": batch.index, "batch_state": batch.state,
            "batch_next_state": batch.next_state,
            "window": batch.window.states, "next_window": batch.next_window.states, "length": batch.window.length,
            "next_length": batch.next_window.length, "B": batch.size, "L": batch.window.window,
            "capacity": self.capacity, "bars": bars, "S": self.state_dim, "Sp": self.padded_state_dim,
            "F": self.state_dim - self.portfolio_dim, "P": self.portfolio_dim, "table": table,
            "n_step": self.n_step, "goal": goal.goal if goal else 0, "goal_width": goal.width if goal else 0})  # fmt: skip

    def record_priorities(self, child: Child, batch: Batch, step: Buffer) -> None:
        """Records new priorities (td_error + eps)^alpha for the drawn rows: one launch, two above 65,536 rows.

        Parameters
        ----------
        child : Child
            Declares ``batch.index``, ``batch.td_error`` and `step` as reads, `priority_writes` as writes.
        batch : Batch
            As `record_sample` left it. Of equal rows the last counts.
        step : Buffer of step_block
            Read: alpha_per, eps_per.
        """
        child.launch("per_priority", (batch.size,), _BLOCK, {
            "batch_index": batch.index, "td_error": batch.td_error, "step": step, "priority": self.priority,
            "block_sum": self.block_sum, "state": self.ring, "B": batch.size, "blocks": self.blocks})  # fmt: skip
        if self.super_sum is not None:
            child.launch("per_priority_upper", (batch.size,), _BLOCK, {
                "batch_index": batch.index, "block_sum": self.block_sum, "super_sum": self.super_sum, "B": batch.size,
                "blocks": self.blocks})  # fmt: skip

    # ---------------------------------------------------------------- insertion

    def staging(self, environments: int) -> Staging:
        """Device memory for the transitions of E = `environments` environments.

        In a capture: refused. Synchronizes: no. Allocates: yes.

        Raises
        ------
        ReplayError
            The ring cannot hold the windows of so many environments.
        """
        need = (self.n_step + 1) * environments
        if self.ahead * environments > self.capacity:
            raise ReplayError(f"targets {self.ahead} steps ahead in {environments} environments span "
                              f"{self.ahead * environments} rows, the ring holds {self.capacity}: none would ever be known; "
                              "raise the capacity, or shorten the horizons")  # fmt: skip
        if environments < 1 or need > self.capacity:
            raise ReplayError(f"{environments} environments with {self.n_step}-step windows need (n_step + 1) * environments = "
                              f"{need} rows, the ring holds {self.capacity}; raise the capacity")  # fmt: skip
        if self.mode == "vector" and need > self.final_observations:
            raise ReplayError(f"{environments} environments with {self.n_step}-step windows need {need} final observations, "
                              f"not {self.final_observations}; raise final_observations")  # fmt: skip
        own, market = self.state_dim - self.context_dim, self.mode == "market"
        return Staging.allocate(self.runtime, environments, own, self.portfolio_dim - self.context_dim if market else None,
                                mirror=self.mirrored is not None,
                                conviction=self.conviction is not None)  # fmt: skip

    def record_insert(self, child: Child, staging: Staging) -> None:
        """Records one insert of the E transitions in `staging`: three launches, the third of which moves size and position, and
        one more each with `track_returns` and `track_drawdown`.

        Parameters
        ----------
        child : Child
            Declares `insert_reads` as reads and `insert_writes` as writes; takes several inserts.
        staging : Staging
            Filled by earlier launches.

        Notes
        -----
        After each launch of the graph call `note_inserted`, from which `require` and `ready` know.
        """
        self._check_stride(staging.environments)
        self._launch_insert(child, staging)

    def insert_batch(self, staging: Staging, action: npt.ArrayLike, reward: npt.ArrayLike, terminated: npt.ArrayLike,
                     truncated: npt.ArrayLike, **states: npt.ArrayLike) -> None:  # fmt: skip
        """Inserts E transitions from host arrays, in stream order.

        Parameters
        ----------
        staging : Staging
            Of this ring; overwritten.
        action : array_like of int, shape (E,)
        reward : array_like of float, shape (E,)
        terminated, truncated : array_like of bool, shape (E,)
        **states
            Vector mode: `state`, `next_state` (E, S), where `next_state` is the true next observation, not that after a reset.
            Market mode: `feature_row`, `next_feature_row` (E,), `portfolio`, `next_portfolio` (E, P); after `set_mirror` also
            `mirrored`, 0 or 1 (E,); after `track_conviction` also `conviction` (E,).

        Raises
        ------
        ReplayError
            Another shape or name, values that are not finite; nothing was inserted.

        Notes
        -----
        In a capture: refused. Synchronizes: yes. Allocates: no.

        Waits for the stream: the copy to the device is not queued.
        """
        self.fill(staging, action, reward, terminated, truncated, **states)
        self._launch_insert(self.runtime.ungraphed("replay"), staging)
        self.note_inserted(staging)

    def fill(self, staging: Staging, action: npt.ArrayLike, reward: npt.ArrayLike, terminated: npt.ArrayLike,
             truncated: npt.ArrayLike, absent: npt.ArrayLike | None = None, **states: npt.ArrayLike) -> None:  # fmt: skip
        """The first half of `Replay.insert_batch`, with its parameters: checks host arrays and copies them to `staging`,
        for a recorded insert.

        `absent`, bool (E,): where the environment has no transition this time.

        In a capture: refused. Synchronizes: yes. Allocates: no.
        """
        self._check_stride(staging.environments)
        e = staging.environments
        ends = {"terminated": np.asarray(terminated), "truncated": np.asarray(truncated),
                "absent": np.zeros(e, bool) if absent is None else np.asarray(absent)}  # fmt: skip
        for name, array in ends.items():
            if array.shape != (e,) or array.dtype != np.bool_:
                raise ReplayError(f"{name} is {array.dtype}{list(array.shape)}; give bool ({e},), one per environment")
        ended = (ends["terminated"] * abi.constant("ENDED_TERMINATED")
                 + ends["truncated"] * abi.constant("ENDED_TRUNCATED"))  # fmt: skip
        ended = np.where(ends["absent"], abi.constant("ENDED_ABSENT"), ended)
        values: dict[str, Any] = {"action": action, "reward": reward, "ended": ended, **states}
        words = np.empty(staging.words.shape, np.int32)
        at = 0
        for name in ("action", "reward", "ended", "state", "next_state", "feature_row", "next_feature_row",
                     "portfolio", "next_portfolio", "mirrored", "conviction"):  # fmt: skip
            buffer: DeviceBuffer | None = getattr(staging, name)
            if buffer is None:
                continue
            if name not in values:
                raise ReplayError(f"insert_batch needs {name} in {self.mode} mode; pass it by keyword")
            array = np.asarray(values.pop(name))
            if array.shape != buffer.shape:
                raise ReplayError(f"{name} has shape {array.shape}; give {buffer.shape}, one row per environment")
            words[at : at + buffer.size] = self._converted(name, array, buffer.dtype).reshape(-1).view(np.int32)
            at += buffer.size
        if values:
            raise ReplayError(f"insert_batch takes no {', '.join(values)} in {self.mode} mode; leave it out")
        staging.words.copy_from(words)

    @staticmethod
    def _converted(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """`array` as `dtype`, refusing what that would lose: fractions of integers, and values that are not finite."""
        if dtype == np.int32:
            if not np.issubdtype(array.dtype, np.integer) or (
                array.size and np.abs(array.astype(np.int64)).max() >= 2**31
            ):
                raise ReplayError(f"{name} is {array.dtype}; give integers of 32 bits")
            return np.ascontiguousarray(array, np.int32)
        if not np.can_cast(array.dtype, np.float64, "same_kind"):
            raise ReplayError(f"{name} is {array.dtype}; give numbers")
        with np.errstate(over="ignore"):
            converted = np.ascontiguousarray(array, np.float32)
        if not np.isfinite(converted).all():
            raise ReplayError(
                f"{name} holds a value that is not finite in float32; mend the environment, nothing was inserted"
            )
        return converted

    def _check_stride(self, environments: int) -> None:
        if self._environments not in (None, environments):
            raise ReplayError(f"this ring holds rows of {self._environments} environments, not {environments}: every insert has "
                              "the same number; clear() first")  # fmt: skip

    def _launch_insert(self, launcher: Any, staging: Staging) -> None:
        e = staging.environments
        fanout, vector = abi.constant("SUM_FANOUT"), self.mode == "vector"
        common = {"E": e, "capacity": self.capacity, "blocks": self.blocks}
        launcher.launch("replay_insert", (e,), _BLOCK, {
            **common, "ring": self.ring, "action": staging.action, "reward": staging.reward, "ended": staging.ended,
            "state": staging.state, "next_state": staging.next_state,
            "feature_row": staging.feature_row, "next_feature_row": staging.next_feature_row,
            "portfolio": staging.portfolio, "next_portfolio": staging.next_portfolio, "mirrored": staging.mirrored,
            "stored_mirrored": self.mirrored, "conviction": staging.conviction, "stored_conviction": self.conviction,
            "rows": self.rows,
            "priority": self.priority, "stored_state": self.state, "final_state": self.final_state,
            "final_owner": self.final_owner, "stored_portfolio": self.portfolio, "evicted": staging.evicted,
            "finals": self.final_observations, "S": self.state_dim, "P": self.portfolio_dim, "n_step": self.n_step,
            "lag": self.lag, "context": self.context, "C": self.context_dim})  # fmt: skip
        # rows of the last lag + 1 inserts, from anywhere in a block, and once round the end of the ring
        recent = min(self.blocks, (self.lag + 1) * e // fanout + 3)
        launcher.launch("replay_insert_sums", (recent + (e if vector else 0),), _BLOCK, {
            **common, "ring": self.ring, "priority": self.priority, "evicted": staging.evicted,
            "block_sum": self.block_sum, "recent": recent, "n_step": self.n_step, "lag": self.lag})  # fmt: skip
        launcher.launch("replay_advance", (-(-self.blocks // fanout),), _BLOCK, {
            **common, "ended": staging.ended if vector else None, "block_sum": self.block_sum,
            "super_sum": self.super_sum, "ring": self.ring})  # fmt: skip
        self._insert_launched = True
        if self.returns is not None:
            launcher.launch("replay_returns", (1,), (min(1024, -(-e // 32) * 32),), {
                "reward": staging.reward, "ended": staging.ended, "control": self._control, "running": self.running,
                "returns": self.returns, "E": e})  # fmt: skip
        if self.account is not None:
            launcher.launch("replay_drawdown", (1,), (min(1024, -(-e // 32) * 32),), {
                "reward": staging.reward, "ended": staging.ended, "account": self.account, "drawdown": self.drawdown,
                "E": e})  # fmt: skip

    def note_inserted(self, staging: Staging, inserts: int = 1) -> None:
        """The host's side of `record_insert`: counts `inserts` inserts from `staging` by a graph that was launched."""
        self._check_stride(staging.environments)
        self._environments = staging.environments
        self.inserted += inserts * staging.environments

    def clear(self) -> None:
        """Empties the ring in stream order; P_max becomes 1. A cleared ring behaves as a new one, bit for bit.

        Afterwards the number of environments may change, but not for graphs that were recorded before: launch those no more.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        self.runtime.ungraphed("replay").launch("replay_clear", (self.blocks,), _BLOCK, {
            "priority": self.priority, "block_sum": self.block_sum, "super_sum": self.super_sum, "ring": self.ring,
            "returns": self.returns, "running": self.running, "blocks": self.blocks,
            "slots": 0 if self.running is None else self.running.size})  # fmt: skip
        for buffer in (self.account, self.drawdown):
            if buffer is not None:
                buffer.fill(0)
        self.inserted = 0
        self._environments = None

    # ---------------------------------------------------------------- the host's view

    @property
    def size(self) -> int:
        """Rows held, as far as the host knows."""
        return min(self.inserted, self.capacity)

    def ready(self, batch: int) -> bool:
        """Whether at least `batch` rows have complete windows."""
        return self.inserted - self.lag * (self._environments or 0) >= batch <= self.capacity

    def require(self, batch: int) -> None:
        """Raises ReplayError unless `ready`: a replay over fewer rows is refused before the launch."""
        if not self.ready(batch):
            self._refuse(batch)

    def _refuse(self, batch: int) -> NoReturn:
        waiting = min(self.lag * (self._environments or 0), self.size)
        raise ReplayError(f"the ring holds {self.size} rows, {waiting} of them without a complete window, which is too few for "
                          f"a batch of {batch}; insert more before the step")  # fmt: skip

    def read_state(self) -> ReplayState:
        """The device's counts. In a capture: refused. Synchronizes: yes. Allocates: no."""
        values = self.ring.to_numpy()[0]
        return ReplayState(**{name: values[name].item() for name in ReplayState.__dataclass_fields__})
