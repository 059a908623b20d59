"""Actor: a policy in a graph of its own, from host states to host actions. What `Agent` and `PolicySnapshot` act by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn.layout import NetworkLayout
from foxhunt_rt.dqn.policy import Policy, PolicyError
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Runtime
from foxhunt_rt.interop import to_numpy
from foxhunt_rt.replay import ReplayError, padded_state_dim

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
        plan = runtime.plan("act")
        written = [self._state] if context is not None else []
        with plan.child("act", reads=self.policy.reads(params, self._state), writes=[*self.policy.writes(self._action), *written],
                        private=self.policy.private()) as child:  # fmt: skip
            self.policy.record_act(child, params, self._state, self._action)
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
        """The states as (n, S), and the shape of what comes out for them."""
        array, width = finite(self.runtime, "states", states), self.width
        if array.ndim not in (1, 2) or array.shape[-1] != width:
            raise ReplayError(f"states have shape {array.shape}; give (n, {width}) or ({width},)")
        return array.reshape(-1, width), array.shape[:-1]

    def _forward(self, rows: npt.NDArray[np.float32]) -> Iterator[slice]:
        """Launches for `rows`, as many at a time as the graph takes; yields which ones have been."""
        for first in range(0, len(rows), self.rows):
            part = slice(first, min(first + self.rows, len(rows)))
            self._padded[: part.stop - first, : self.width] = rows[part]
            self._state.copy_from(self._padded)
            self.graph.launch()
            yield part

    def close(self) -> None:
        """Waits for the stream and destroys the graph. Idempotent."""
        self.graph.close()
