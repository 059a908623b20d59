"""Blocks in front of the trunk: what makes its input of a window of past states (docs/step/forward.md).

A block is three things: a parameter group of its name, an `InputBlock`, which records its forward pass for any rows (training,
acting, evaluation), and an extension that records it in the step and, behind adam_grad, its way back. Blocks follow one another:
each takes the state as the one before left it, all of them see the same windows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.replay import History, Windows

if TYPE_CHECKING:
    from foxhunt_rt.dqn.layout import NetworkLayout


@dataclass(frozen=True)
class BlockInputs:
    """What a block reads in one pass."""

    x: Buffer  # f32 (R, Sp) the state, or what the block before made of it
    windows: Windows  # R windows of L states, the last of which is the state


@dataclass(frozen=True)
class BlockWorkspace:
    """What a block writes for its passes."""

    out: Buffer  # f32 (passes, R, Sp) what follows takes instead of the state, pads zero
    scratch: Mapping[str, Buffer] = field(default_factory=dict)

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, block: InputBlock, rows: int, passes: int,
               label: str) -> BlockWorkspace:  # fmt: skip
        """Allocates it; ``label`` begins the labels."""
        out = rt.zeros((passes, rows, layout.state_padded), np.float32, f"{label}.out")
        return cls(out, block.scratch(rt, layout, rows, passes, label))

    def buffers(self) -> list[Buffer]:
        """All of them, for a child's declared writes."""
        return [self.out, *self.scratch.values()]


class InputBlock(ABC):
    """A block's sizes, and its forward pass."""

    name: str
    window: int
    """L, states that it looks at, the present one included."""

    @abstractmethod
    def scratch(self, rt: Runtime, layout: NetworkLayout, rows: int, passes: int, label: str) -> dict[str, Buffer]:
        """Allocates what it keeps in between, for ``passes`` passes over ``rows`` rows."""

    @abstractmethod
    def record(self, child: Child, layout: NetworkLayout, theta: Buffer, target: Buffer | None,
               passes: Sequence[BlockInputs], work: BlockWorkspace) -> None:  # fmt: skip
        """Records one pass by ``theta``, or three: two by ``theta`` and one by ``target``. Both are the flat parameters of
        ``layout``."""


def history_of(rt: Runtime, layout: NetworkLayout, environments: int, label: str) -> History | None:
    """What keeps the windows of environments that are acted for; None for a network that does not look back. Allocates."""
    return History(rt, environments, layout.window, layout.state_padded, label) if layout.window else None


@dataclass(frozen=True)
class BlockChain:
    """The blocks of a learner's step, as they hand on the state and its gradient.

    Attributes
    ----------
    inputs : dict
        By block: its three passes' inputs, online on s, online on s', target on s'.
    work : dict
        By block: what it writes, ``out`` f32 (3, B, Sp).
    gradient : dict
        By block: f32 (B, Sp), the loss's gradient by its output in the pass on s.
    before : dict
        By block: where it writes the gradient by the state that it took; None for the first, which nobody asks.
    passes : tuple of Buffer
        f32 (B, Sp) each: the trunk's input of the three passes.
    """

    inputs: Mapping[str, tuple[BlockInputs, ...]]
    work: Mapping[str, BlockWorkspace]
    gradient: Mapping[str, Buffer]
    before: Mapping[str, Buffer | None]
    passes: tuple[Buffer, ...]

    @classmethod
    def create(cls, rt: Runtime, layout: NetworkLayout, states: tuple[Buffer, Buffer], windows: Sequence[Windows],
               dinput: Buffer | None) -> BlockChain:  # fmt: skip
        """Allocates the outputs and gradients.

        Parameters
        ----------
        states : tuple of Buffer
            f32 (B, Sp): s and s'.
        windows : sequence of Windows
            That end in s and s'; empty without blocks.
        dinput : Buffer or None
            f32 (B, Sp), where adam_grad writes the gradient by the trunk's input.
        """
        x: tuple[Buffer, ...] = (states[0], states[1], states[1])
        inputs, work, gradient, before = {}, {}, dict[str, Buffer](), dict[str, Buffer | None]()
        rows, name = states[0].shape[0], ""
        for block in layout.blocks:
            inputs[block.name] = tuple(BlockInputs(x[p], windows[min(p, 1)]) for p in range(len(x)))
            made = work[block.name] = BlockWorkspace.create(rt, layout, block, rows, len(x), block.name)
            x = tuple(made.out[p : p + 1].view(states[0].shape) for p in range(len(x)))
            before[block.name] = None
            if name:
                gradient[name] = before[block.name] = rt.zeros(states[0].shape, np.float32, f"{name}.gradient")
            name = block.name
        if name:
            assert dinput is not None
            gradient[name] = dinput
        return cls(inputs, work, gradient, before, x)


__all__ = ["BlockChain", "BlockInputs", "BlockWorkspace", "InputBlock", "history_of"]
