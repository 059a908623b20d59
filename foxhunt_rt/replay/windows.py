"""Windows of past states: what a network that looks back is fed, beside the state itself.

A window holds the last L states of one episode, oldest first, the present one last. Where the episode is younger, or the ring has
overwritten its beginning, the window begins with zeros and ``length`` says how many states it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Runtime

__all__ = ["History", "Windows"]

_THREADS = 128


@dataclass(frozen=True)
class Windows:
    """R windows of L states in device memory.

    Attributes
    ----------
    states : Buffer, float32 (R, L, Sp)
        Oldest first; pads, and what lies before the first state held, zero.
    length : Buffer, int32 (R,)
        States held, 1 to L; 0 before the first, which the blocks take as the present state alone.
    """

    states: DeviceBuffer
    length: DeviceBuffer

    @classmethod
    def allocate(cls, runtime: Runtime, rows: int, window: int, padded_state_dim: int, label: str) -> Windows:
        """Empty windows: ``rows`` of ``window`` states of ``padded_state_dim`` floats in ``runtime``; ``label`` begins
        the labels of both buffers.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        return cls(runtime.zeros((rows, window, padded_state_dim), np.float32, f"{label}.states"),
                   runtime.zeros(rows, np.int32, f"{label}.length"))  # fmt: skip

    @property
    def window(self) -> int:
        """L."""
        return self.states.shape[1]

    def buffers(self) -> list[DeviceBuffer]:
        """Both, for a child's declaration."""
        return [self.states, self.length]

    def __getitem__(self, rows: slice) -> Windows:
        """Some of the rows: views of the same memory."""
        return Windows(self.states[rows], self.length[rows])


class History:
    """The states that E environments have been in, most recent last: a window each, which a launch pushes on.

    Parameters
    ----------
    runtime : Runtime
    environments : int
        E.
    window : int
        L.
    padded_state_dim : int
        Sp.
    label : str
        Begins the labels of its buffers.

    Attributes
    ----------
    windows : Windows
        Empty until the first push.

    Notes
    -----
    In a capture: refused. Synchronizes: no. Allocates: yes.
    """

    def __init__(self, runtime: Runtime, environments: int, window: int, padded_state_dim: int, label: str) -> None:
        self.windows = Windows.allocate(runtime, environments, window, padded_state_dim, label)

    def record_push(self, launcher: Any, state: Buffer, *, fresh: Buffer | None = None, ended: Buffer | None = None,
                    context: Buffer | None = None, to: Windows | None = None) -> None:  # fmt: skip
        """Records one launch that puts a state behind the window of each environment.

        Parameters
        ----------
        launcher : Child or UngraphedUser
            Declares ``windows`` (and ``to``) as written, the other buffers as read.
        state : Buffer, float32 (E, S) or (E, Sp)
        fresh : Buffer, int32 (E,), optional
            Where it is not 0 the state begins an episode: what the window held before is forgotten.
        ended : Buffer, int32 (E,), optional
            Where it is not 0 the state was the last of its episode: the window is empty afterwards.
        context : Buffer, float32 (C,), optional
            The columns that follow those of ``state``, the same for every environment (`Replay.context`).
        to : Windows, optional
            Written instead of ``windows``, which stay as they are.
        """
        made = to or self.windows
        e, window, width = self.windows.states.shape
        launcher.launch("window_push", (e,), (_THREADS,), {
            "before": self.windows.states, "length_before": self.windows.length, "state": state, "fresh": fresh,
            "ended": ended, "context": context, "after": made.states, "length_after": made.length, "E": e, "L": window,
            "S": state.shape[1], "Sp": width, "C": 0 if context is None else context.size})  # fmt: skip

    def clear(self) -> None:
        """Empties every window, in stream order.

        In a capture: refused. Synchronizes: no. Allocates: no.
        """
        self.windows.length.fill(0)
