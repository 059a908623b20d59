"""The minibatch that replay fills and a learner reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import Runtime

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
    """

    state: DeviceBuffer
    next_state: DeviceBuffer
    action: DeviceBuffer
    ret: DeviceBuffer
    discount: DeviceBuffer
    index: DeviceBuffer
    priority: DeviceBuffer
    td_error: DeviceBuffer

    @classmethod
    def allocate(cls, runtime: Runtime, batch: int, state_dim: int) -> Batch:
        """Device memory for B = `batch` rows of states of `state_dim` floats.

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
        )

    def rows(self, begin: int, stop: int) -> Batch:
        """Its rows begin to stop: views of the same memory."""
        if (begin, stop) == (0, self.size):
            return self
        return Batch(**{f.name: getattr(self, f.name)[begin:stop] for f in dataclasses.fields(self)})

    @property
    def size(self) -> int:
        """B."""
        return self.action.shape[0]

    @property
    def sampled(self) -> tuple[DeviceBuffer, ...]:
        """What `Replay.record_sample` writes."""
        return (self.state, self.next_state, self.action, self.ret, self.discount, self.index, self.priority)
