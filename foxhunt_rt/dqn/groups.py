"""Parameter groups as the optimizer sees them: where each stands, whose norm clips it, where its squares are.

The squares of the network come first in the buffer of partial sums, then those of the groups that are clipped with it, then
those of the groups with a clip of their own; so every norm is over one run of adjacent sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup
from foxhunt_rt.driver import Buffer
from foxhunt_rt.graph import Child, Runtime
from foxhunt_rt.kernels import abi

_MOST_THREADS = 512
_MANY_PARTS = 32  # partial gradients of a vector from which eight threads share them


class Groups:
    """Ranges of a layout's groups in the partial sums of squares, and the table that adam_update reads.

    Parameters
    ----------
    layout : NetworkLayout
    network_parts : int
        Partial sums that the network's own gradient has.
    """

    def __init__(self, layout: NetworkLayout, network_parts: int) -> None:
        self.layout, self.network_parts = layout, network_parts
        at, self._parts = network_parts, dict[str, tuple[int, int]]()
        for group in sorted(layout.groups, key=lambda g: g.max_grad_norm is not None):
            begin, stop = layout.group_range(group.name)
            count = -(-(stop - begin) // _per_block(stop - begin))
            self._parts[group.name] = (at, at + count)
            at += count
        self.parts = at
        """Partial sums in all."""

    @property
    def count(self) -> int:
        """Groups in all, the network included."""
        return 1 + len(self.layout.groups)

    def parts_of(self, name: str) -> tuple[int, int]:
        """First partial sum of a group, and one past its last."""
        return self._parts[name]

    def table(self, rt: Runtime) -> Buffer | None:
        """The table in device memory, optim_group[count]; None where the network is alone. Allocates, synchronizes."""
        if not self.layout.groups:
            return None
        return rt.array(np.array(list(self._rows()), abi.dtype("optim_group")), "adam.groups")

    def _rows(self) -> Iterator[tuple[float, ...]]:
        shared = [self._parts[g.name][1] for g in self.layout.groups if g.max_grad_norm is None]
        with_network = (0, max(shared, default=self.network_parts))
        yield (0, self.layout.n_decay, *with_network, 1.0, 0.0)
        for group in self.layout.groups:
            segments = self.layout.group_segments[group.name]
            decay_end = segments[0].offset + sum(s.size for s in segments if s.decayed)
            own = self._parts[group.name] if group.max_grad_norm is not None else with_network
            yield (segments[0].offset, decay_end, *own, group.lr_factor, group.max_grad_norm or 0.0)

    def record_squares(self, child: Child, group: ParameterGroup, grad: Buffer, norm_part: Buffer,
                       partial: Buffer | None = None, runs: Buffer | None = None, most_parts: int = 0) -> None:  # fmt: skip
        """Records the sum of squares of a group's gradient, one launch: after the last one that writes that gradient.

        Parameters
        ----------
        child : Child
            Declares both buffers' parts.
        grad : Buffer
            f32 (P,) the flat gradient.
        norm_part : Buffer
            f64 (parts,).
        partial : Buffer, optional
            f32 partial gradients, which this launch adds first.
        runs : Buffer, optional
            grad_run (n,), with ``partial``: where they lie and belong, in floats from the start of the group.
        most_parts : int
            Partial gradients that a run has at most.
        """
        begin, stop = self.layout.group_range(group.name)
        first, last = self._parts[group.name]
        share, per_block = 8 if most_parts >= _MANY_PARTS else 1, _per_block(stop - begin)
        threads = min(max(32, per_block // 4 * share), _MOST_THREADS)
        child.launch("grad_reduce", grid=(last - first,), block=(threads,), args=dict(
            part=partial, done=grad[begin:stop], grad=grad[begin:stop] if partial is not None else None,
            norm_part=norm_part[first:last], runs=runs, n=stop - begin, parts=partial.size if partial is not None else 0,
            n_runs=runs.size if runs is not None else 0, blocks=last - first, per_block=per_block,
            share=share))  # fmt: skip


def _per_block(size: int) -> int:
    """Elements of a group that a block squares, a vector a thread or an eighth of one: few where the group has few, since what
    one block alone adds up, one multiprocessor reads."""
    return 256 if size <= 1 << 16 else 1024


def uniform_bound(inputs: int) -> float:
    """PyTorch's default bound of a linear layer's weights and biases, 1/sqrt(in)."""
    return 1.0 / math.sqrt(inputs)


__all__ = ["Groups", "uniform_bound"]
