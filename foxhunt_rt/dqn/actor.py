"""Actor: a policy in a graph of its own, from host states to host actions. What `Agent` and `PolicySnapshot` act by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn.blocks import history_of
from foxhunt_rt.dqn.layout import NetworkLayout
from foxhunt_rt.dqn.policy import Policy, PolicyError
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Runtime
from foxhunt_rt.interop import to_numpy
from foxhunt_rt.replay import ReplayError, Windows, padded_state_dim

__all__ = ["Actor", "finite"]


def finite(rt: Runtime, name: str, values: object) -> npt.NDArray[np.float32]:
    """Any array as finite float32 on the host, or a ReplayError."""
    given = to_numpy(rt, values, name)
    if not np.can_cast(given.dtype, np.float64, "same_kind"):
        raise ReplayError(f"{name} are {given.dtype}; give numbers")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(given, np.float32)
    if not np.isfinite(array).all():
        raise ReplayError(f"{name} hold a value that is not finite in float32; mend the environment")
    return array


class Actor:
    """Builds the graph of one forward pass and choice, and runs it for batches of any size.

    Parameters
    ----------
    runtime : Runtime
    layout : NetworkLayout
    params : Buffer, float32 (P,)
    control : Buffer of control_block, (1,)
    rows : int
        States of one launch.
    guard : Buffer of guard_block, optional
    context : Buffer, float32 (C,), optional
        The last C columns of every state: those that come from the host are without them.

    Notes
    -----
    Allocates, loads, captures and synchronizes; not legal inside a capture.

    A network that looks back acts on ``history``, the past states of as many environments as ``rows``, which only `Agent.observe`
    moves on, and the states given; or on windows that are given whole.
    """

    def __init__(self, runtime: Runtime, layout: NetworkLayout, params: Buffer, control: Buffer, rows: int,
                 guard: Buffer | None = None, context: Buffer | None = None) -> None:  # fmt: skip
        self.runtime, self.layout, self.rows = runtime, layout, rows
        self.width = layout.state_dim - (0 if context is None else context.size)
        self.policy = Policy(runtime, layout, control, rows, guard=guard, context=context)
        self._exploration = (0.0, 0.0)  # as the device has it
        self._state = runtime.zeros((rows, padded_state_dim(layout.state_dim)), np.float32, "act.state")
        self._action = runtime.zeros(rows, np.int32, "act.action")
        self._padded = np.zeros(self._state.shape, np.float32)
        self.history = history_of(runtime, layout, rows, "act.history")
        self._windows: Windows | None = None
        if self.history is not None:
            kept = self.history.windows
            self._windows = Windows.allocate(runtime, rows, kept.window, self._state.shape[1], "act.windows")
        plan = runtime.plan("act")
        written = [self._state] if context is not None else []
        written += [] if self._windows is None else self._windows.buffers()
        past = [] if self.history is None else self.history.windows.buffers()
        reads, writes = [*self.policy.reads(params, self._state), *past], [*self.policy.writes(self._action), *written]
        with plan.child("act", reads=reads, writes=writes, private=self.policy.private()) as child:
            self.policy.record_act(
                child, params, self._state, self._action, history=self.history, windows=self._windows
            )
        self.graph = plan.build(ungraphed=False)

    def explore(self, epsilon: float, temperature: float) -> None:
        """Sets the exploration of later launches, in stream order, where it differs."""
        if (epsilon, temperature) != self._exploration:
            self.policy.set_exploration(epsilon, temperature)
            self._exploration = (epsilon, temperature)

    def act(self, states: object, epsilon: float, temperature: float) -> npt.NDArray[np.int32]:
        """As `Agent.act`."""
        rows, shape = self._rows(states)
        actions = np.empty(len(rows), np.int32)
        with self.runtime.context.current():  # once, not at every call
            self.explore(float(epsilon), float(temperature))
            for part in self._forward(rows):
                actions[part] = self._action.to_numpy()[: part.stop - part.start]
        if actions.size and actions.min() < 0:
            raise PolicyError("the network's values are not finite; load the parameters of an earlier step")
        return actions.reshape(shape)

    def values(self, states: object) -> npt.NDArray[np.float32]:
        """As `Agent.values`."""
        rows, shape = self._rows(states)
        values = np.empty((len(rows), sum(self.layout.branches)), np.float32)
        with self.runtime.context.current():
            for part in self._forward(rows):
                values[part] = self.policy.q.to_numpy()[: part.stop - part.start]
        return values.reshape(*shape, -1)

    def _rows(self, states: object) -> tuple[npt.NDArray[np.float32], tuple[int, ...]]:
        """The states as (n, S), or windows as (n, k, S), and the shape of what comes out for them."""
        array, width, window = finite(self.runtime, "states", states), self.width, self.layout.window
        if window and array.ndim == 3 and array.shape[-1] == width and 1 <= array.shape[1] <= window:
            return array, array.shape[:1]
        if array.ndim not in (1, 2) or array.shape[-1] != width:
            raise ReplayError(f"states have shape {array.shape}; give (n, {width}) or ({width},)")
        rows = array.reshape(-1, width)
        if window and len(rows) != self.rows:
            raise ReplayError(f"{len(rows)} states follow on the past of {self.rows} environments; give a state of each, or "
                              f"windows (n, 1 to {window}, {width}), oldest state first")  # fmt: skip
        return rows, array.shape[:-1]

    def _forward(self, rows: npt.NDArray[np.float32]) -> Iterator[slice]:
        """Launches for `rows`, as many at a time as the graph takes; yields which ones have been."""
        given = self._given() if rows.ndim == 3 else contextlib.nullcontext()
        with given:
            for first in range(0, len(rows), self.rows):
                part = slice(first, min(first + self.rows, len(rows)))
                states = rows[part] if rows.ndim == 2 else rows[part, -1]
                self._padded[: len(states), : self.width] = states
                self._state.copy_from(self._padded)
                if rows.ndim == 3:
                    self._put_past(rows[part, :-1])
                self.graph.launch()
                yield part

    @contextlib.contextmanager
    def _given(self) -> Iterator[None]:
        """While windows are given whole, the past of the environments is kept aside."""
        assert self.history is not None
        buffers = self.history.windows.buffers()
        kept = [buffer.to_numpy() for buffer in buffers]
        try:
            yield
        finally:
            for buffer, values in zip(buffers, kept, strict=True):
                buffer.copy_from(values)

    def _put_past(self, states: npt.NDArray[np.float32]) -> None:
        """States (n, k, S) as the past, with the context of now: theirs is not known."""
        assert self.history is not None
        windows, (n, held, _) = self.history.windows, states.shape
        past = np.zeros(windows.states.shape, np.float32)
        recent = past[:n, past.shape[1] - held :]
        recent[..., : self.width] = states
        if self.policy.context is not None:
            recent[..., self.width : self.layout.state_dim] = self.policy.context.to_numpy()  # type: ignore[attr-defined]
        windows.states.copy_from(past)
        windows.length.copy_from(np.full(self.rows, held, np.int32))

    def close(self) -> None:
        """Waits for the stream and destroys the graph. Idempotent."""
        self.graph.close()
