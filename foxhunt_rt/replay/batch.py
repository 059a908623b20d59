"""The minibatch that replay fills and a learner reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay.windows import Windows

__all__ = ["Batch", "padded_state_dim"]


def padded_state_dim(state_dim: int) -> int:
    """S rounded up to 32 floats, 128 bytes: one cache line."""
    return -(-state_dim // 32) * 32


@dataclass(frozen=True)
class Batch:
    """B transitions in device memory. Written by `Replay.record_sample`, but `td_error`, which the learner writes.

    Attributes
    ----------
    state, next_state : DeviceBuffer, float32 (B, Sp)
        s and s', pads zero. s' is the state the return bootstraps from: m steps on, or the final observation.
    action : DeviceBuffer, int32 (B,)
        Mixed radix, see `decode_actions`.
    ret : DeviceBuffer, float32 (B,)
        Sum of gamma^j r_j over the window, in normalized reward.
    discount : DeviceBuffer, float32 (B,)
        gamma^m; 0 where the window ended in a terminal state.
    index : DeviceBuffer, int32 (B,)
        Row of the ring. Never falls along the batch.
    priority : DeviceBuffer, float32 (B,)
        P_i as drawn. Importance weights normalized by the batch's maximum are (min P / P_i)^beta, with the minimum in
        ``step_block.min_priority`` (its bits).
    td_error : DeviceBuffer, float32 (B,)
        abs(delta_i) >= 0, from which the new priorities come.
    window, next_window : Windows or None
        The L states that end in s, and those that end in s'; None unless allocated with a window.
    """

    state: DeviceBuffer
    next_state: DeviceBuffer
    action: DeviceBuffer
    ret: DeviceBuffer
    discount: DeviceBuffer
    index: DeviceBuffer
    priority: DeviceBuffer
    td_error: DeviceBuffer
    window: Windows | None = None
    next_window: Windows | None = None

    @classmethod
    def allocate(cls, runtime: Runtime, batch: int, state_dim: int, window: int = 0) -> Batch:
        """Device memory for B = `batch` rows of states of `state_dim` floats, and with `window` = L above 0 for windows of L.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        shape = (batch, padded_state_dim(state_dim))
        f32, i32 = np.float32, np.int32
        return cls(
            state=runtime.zeros(shape, f32, "batch.state"),
            next_state=runtime.zeros(shape, f32, "batch.next_state"),
            action=runtime.zeros(batch, i32, "batch.action"),
            ret=runtime.zeros(batch, f32, "batch.ret"),
            discount=runtime.zeros(batch, f32, "batch.discount"),
            index=runtime.zeros(batch, i32, "batch.index"),
            priority=runtime.zeros(batch, f32, "batch.priority"),
            td_error=runtime.zeros(batch, f32, "batch.td_error"),
            window=Windows.allocate(runtime, batch, window, shape[1], "batch.window") if window else None,
            next_window=Windows.allocate(runtime, batch, window, shape[1], "batch.next_window") if window else None,
        )

    def rows(self, begin: int, stop: int) -> Batch:
        """Its rows begin to stop: views of the same memory."""
        if (begin, stop) == (0, self.size):
            return self
        parts: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in parts:
            parts[name] = None if parts[name] is None else parts[name][begin:stop]
        return Batch(**parts)

    @property
    def size(self) -> int:
        """B."""
        return self.action.shape[0]

    @property
    def transitions(self) -> tuple[DeviceBuffer, ...]:
        """What `Replay.record_transitions` writes: all but `td_error` and the windows."""
        return (self.state, self.next_state, self.action, self.ret, self.discount, self.index, self.priority)

    @property
    def sampled(self) -> tuple[DeviceBuffer, ...]:
        """What `Replay.record_sample` writes: `transitions`, and the windows."""
        return (*self.transitions, *(buffer for windows in self.windows for buffer in windows.buffers()))

    @property
    def windows(self) -> tuple[Windows, ...]:
        """`window` and `next_window`; empty where there are none."""
        return () if self.window is None or self.next_window is None else (self.window, self.next_window)
