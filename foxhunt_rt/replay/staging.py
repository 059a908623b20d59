"""Where the E transitions of one insert lie before they enter the ring."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.graph import Runtime

__all__ = ["Staging"]


@dataclass(frozen=True)
class Staging:
    """E transitions in device memory, one per environment, in environment order. Made by `Replay.staging`.

    Kernels write the buffers before a recorded insert reads them; `Replay.insert_batch` writes them from the host. All of
    them are parts of one allocation, `words`.

    Attributes
    ----------
    environments : int
        E.
    action : DeviceBuffer, int32 (E,)
    reward : DeviceBuffer, float32 (E,)
        Raw, of one step.
    ended : DeviceBuffer, int32 (E,)
        ENDED_* bits. ENDED_ABSENT: the environment has no transition this time, its row is never drawn. ENDED_COUNTERFACTUAL,
        beside one of the others: a step that was not taken, an episode of one row.
    state, next_state : DeviceBuffer, float32 (E, S), or None
        Vector mode. `next_state` is read where `ended`.
    feature_row, next_feature_row : DeviceBuffer, int32 (E,), or None
        Market mode: rows of the feature table.
    portfolio, next_portfolio : DeviceBuffer, float32 (E, P), or None
        Market mode.
    mirrored : DeviceBuffer, int32 (E,), or None
        Market mode with a mirror: 1 where the row is stored as the step of the mirrored market.
    conviction : DeviceBuffer, float32 (E,), or None
        Market mode with conviction: what the training reward is scaled by.
    evicted : DeviceBuffer, int64 (E,), or None
        Vector mode; scratch of the insert.
    """

    environments: int
    words: DeviceBuffer
    action: DeviceBuffer
    reward: DeviceBuffer
    ended: DeviceBuffer
    state: DeviceBuffer | None = None
    next_state: DeviceBuffer | None = None
    feature_row: DeviceBuffer | None = None
    next_feature_row: DeviceBuffer | None = None
    portfolio: DeviceBuffer | None = None
    next_portfolio: DeviceBuffer | None = None
    mirrored: DeviceBuffer | None = None
    conviction: DeviceBuffer | None = None
    evicted: DeviceBuffer | None = None

    @classmethod
    def allocate(cls, runtime: Runtime, environments: int, state_dim: int, portfolio_dim: int | None,
                 mirror: bool = False, conviction: bool = False) -> Staging:  # fmt: skip
        """Device memory for E = `environments` transitions; `portfolio_dim` None means vector mode. `mirror`: rows may be marked,
        `conviction`: scaled.

        In a capture: refused. Synchronizes: no. Allocates: yes.
        """
        e, f32, i32 = environments, np.float32, np.int32
        parts: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            "action": ((e,), i32), "reward": ((e,), f32), "ended": ((e,), i32)}  # fmt: skip
        if portfolio_dim is None:
            parts |= {"state": ((e, state_dim), f32), "next_state": ((e, state_dim), f32)}
        else:
            parts |= {"feature_row": ((e,), i32), "next_feature_row": ((e,), i32),
                      "portfolio": ((e, portfolio_dim), f32), "next_portfolio": ((e, portfolio_dim), f32)}  # fmt: skip
        if mirror:
            parts["mirrored"] = ((e,), i32)
        if conviction:
            parts["conviction"] = ((e,), f32)
        words = runtime.zeros(sum(math.prod(shape) for shape, _ in parts.values()), i32, "replay.staging")
        buffers: dict[str, DeviceBuffer] = {}
        at = 0
        for name, (shape, dtype) in parts.items():
            end = at + math.prod(shape)
            view = words[at:end].view(shape, dtype)
            view.label = f"replay.staging.{name}"
            buffers[name], at = view, end
        if portfolio_dim is None:
            buffers["evicted"] = runtime.zeros(e, np.int64, "replay.evicted")
        return cls(environments=e, words=words, **buffers)

    @property
    def buffers(self) -> tuple[DeviceBuffer, ...]:
        """What a collector writes and `Replay.record_insert` reads, for a child's declaration."""
        return (self.words,)
