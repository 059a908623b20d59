"""ddqn: from the logits of the three passes to the gradient of the head's output and |delta| (docs/step/ddqn.md).

1. `c51_loss`, a block a row: dueling, a*, projection, both losses, their gradients, statistics, guard;
2. `row_stats`, above 256 rows: adds the rows of statistics up in chunks, those of drawn rows apart from the others;
3. `budget_blend`, a block a row: the gradient budget, dlogits. Left out when the budget is off: then 1 writes dlogits. Where
   losses beside this one wait for a*, it is a child of its own, ddqn.budget, which they need not wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foxhunt_rt.dqn.children import row_stats
from foxhunt_rt.driver import Buffer, FoxhuntError
from foxhunt_rt.graph import Child, Runtime, StepPlan
from foxhunt_rt.kernels import abi

_DIRECT_ROWS = 256  # rows of statistics that one block adds up faster than one more node would


def _chunks(rows: int) -> int:
    """Blocks of row_stats for rows of statistics: 16 rows have all their loads in flight at once; at most 64 blocks."""
    return -(-rows // max(16, -(-rows // 64)))


class BranchError(FoxhuntError):
    """A number of branches or of actions that the loss does not take."""


@dataclass(frozen=True)
class LossShape:
    """Sizes of the loss.

    Parameters
    ----------
    batch : int
        B, rows that have a loss.
    branches : tuple of int
        Actions of each branch: 1 to 8 branches of 1 to 255 actions.
    atoms : int
        N, 2 to 256.
    reduction : str
        How the branches' losses combine: ``"mean"``, or ``"sum"`` as published branching C51 learners have it.
    drawn : int
        The first rows, which were drawn from the replay: the statistics are theirs. 0: all.
    """

    batch: int
    branches: tuple[int, ...]
    atoms: int
    reduction: str = "mean"
    drawn: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.branches) <= 8:
            raise BranchError(f"{len(self.branches)} branches are not 1 to 8: combine some")
        if not all(1 <= n <= 255 for n in self.branches):
            raise BranchError(f"branches {self.branches} have sizes outside 1 to 255: split the large ones")
        if not 2 <= self.atoms <= 256:
            raise BranchError(f"{self.atoms} atoms are not 2 to 256: change network.atoms")

    @property
    def drawn_rows(self) -> int:
        """Rows that were drawn from the replay."""
        return self.drawn or self.batch

    @property
    def actions(self) -> int:
        """S, actions over all branches."""
        return sum(self.branches)

    @property
    def head_padded(self) -> int:
        """Np, floats of a row of logits."""
        return -(-(1 + self.actions) * self.atoms // 16) * 16

    @property
    def stats_width(self) -> int:
        """W, floats of a row of statistics."""
        return abi.constant("STATS") + self.atoms

    @property
    def packed_branches(self) -> int:
        """Sizes in 8 bits each, as the kernels take them."""
        return sum(n << (8 * b) for b, n in enumerate(self.branches))


@dataclass(frozen=True)
class DdqnInputs:
    """What ddqn reads."""

    logits: Buffer  # f32 (3, R, Np): online(s), online(s'), target(s'); R >= B
    action: Buffer  # i32 (B,)
    ret: Buffer  # f32 (B,)
    discount: Buffer  # f32 (B,)
    priority: Buffer  # f32 (B,)
    step: Buffer  # step_block[1]
    guard: Buffer  # guard_block[1]
    next_values: Buffer | None = (
        None  # f32 (B, S) expected returns at s' of other heads, which choose a* too; None: none
    )


@dataclass(frozen=True)
class DdqnBuffers:
    """What ddqn writes."""

    dlogits: Buffer | None  # f32 (B, Np); None: evaluation only
    ce_grad: Buffer | None  # f32 (B, K, N) gradient parts before the budget; None: no budget
    mse_grad: Buffer | None
    td_error: Buffer  # f32 (B,)
    next_action: Buffer  # i32 (B, K)
    target: Buffer | None  # f32 (B, K, N) projected target; None: not kept
    rows: Buffer  # f32 (B, W)
    parts: Buffer | None  # f32 (chunks, W), those of the drawn rows first; None: few rows
    drawn: int  # of rows, or of parts: what comes from drawn rows
    dlogits_all: Buffer | None = None  # f32 (R, Np): dlogits, then zeros for rows without a loss

    @classmethod
    def create(cls, rt: Runtime, shape: LossShape, td_error: Buffer, *, budget: bool, gradient: bool = True,
               keep_target: bool = False, all_rows: int = 0, label: str = "ddqn") -> DdqnBuffers:  # fmt: skip
        """Allocates.

        Parameters
        ----------
        td_error : Buffer
            f32 (B,), where |delta| goes.
        budget : bool
            Whether a gradient budget may be on: costs one more launch and two buffers (B, K, N).
        gradient : bool
            False: no gradient is wanted at all.
        keep_target : bool
            Keep the projected target distributions.
        all_rows : int
            R of `dlogits_all`; 0: those of the loss.
        """
        part = (shape.batch, len(shape.branches), shape.atoms)

        def floats(dims: tuple[int, ...], name: str, wanted: bool = True) -> Buffer | None:
            return rt.zeros(dims, np.float32, f"{label}.{name}") if wanted else None

        statistics = floats((shape.batch, shape.stats_width), "rows")
        assert statistics is not None
        total = max(all_rows, shape.batch)
        dlogits = floats((total, shape.head_padded), "dlogits", gradient)
        many = shape.batch > _DIRECT_ROWS
        chunks = [_chunks(n) for n in (shape.drawn_rows, shape.batch - shape.drawn_rows)]
        return cls(
            dlogits=dlogits if dlogits is None or total == shape.batch else dlogits[: shape.batch],
            ce_grad=floats(part, "ce_grad", gradient and budget),
            mse_grad=floats(part, "mse_grad", gradient and budget),
            td_error=td_error,
            next_action=rt.zeros((shape.batch, len(shape.branches)), np.int32, f"{label}.next_action"),
            target=floats(part, "target", keep_target),
            rows=statistics,
            parts=floats((sum(chunks), shape.stats_width), "parts", many),
            drawn=chunks[0] if many else shape.drawn_rows,
            dlogits_all=dlogits,
        )

    @property
    def stats(self) -> Buffer:
        """The rows of statistics to add up, f32 (R, W): of the batch, or of its chunks; `drawn` of them of drawn rows."""
        return self.rows if self.parts is None else self.parts


def reads(inputs: DdqnInputs) -> list[Buffer]:
    more = [inputs.next_values] if inputs.next_values is not None else []
    return [inputs.logits, inputs.action, inputs.ret, inputs.discount, inputs.priority, inputs.step, *more]


def writes(buffers: DdqnBuffers) -> list[Buffer]:
    found = [buffers.dlogits, buffers.ce_grad, buffers.mse_grad, buffers.td_error, buffers.next_action, buffers.target,
             buffers.rows, buffers.parts]  # fmt: skip
    return [b for b in found if b is not None]


def record(child: Child, shape: LossShape, inputs: DdqnInputs, buffers: DdqnBuffers) -> None:
    """One launch without a budget, two with one; one more above 256 rows, two where some were not drawn. Takes an ungraphed
    user too."""
    record_loss(child, shape, inputs, buffers)
    record_budget(child, shape, inputs, buffers)


def record_loss(child: Child, shape: LossShape, inputs: DdqnInputs, buffers: DdqnBuffers) -> None:
    """a*, |delta|, the parts of the gradient, statistics; without a budget dlogits too."""
    b, k, s, n = shape.batch, len(shape.branches), shape.actions, shape.atoms
    common = _sizes(shape)
    staged = 3 * shape.head_padded
    narrow = n <= abi.constant("C51_NARROW") and staged <= abi.constant("C51_STAGE_FLOATS")
    shared = 4 * (4 * k * n + s + abi.constant("STATS") * k + 4 + (staged if narrow else 0))
    budget = buffers.ce_grad is not None
    child.launch("c51_loss" if narrow else "c51_loss_wide", grid=(b,), block=(32 * (k + 1),), shared=shared,
                 args=dict(common, logits=inputs.logits, action=inputs.action, ret=inputs.ret, discount=inputs.discount,
                           priority=inputs.priority, next_values=inputs.next_values, step=inputs.step, ce_grad=buffers.ce_grad,
                           mse_grad=buffers.mse_grad, dlogits=None if budget else buffers.dlogits,
                           td_error=buffers.td_error, next_action=buffers.next_action, target=buffers.target,
                           rows=buffers.rows, guard=inputs.guard, R=inputs.logits.shape[1],
                           branch_scale=1.0 / k if shape.reduction == "mean" else 1.0))  # fmt: skip
    if buffers.parts is not None:
        drawn = shape.drawn_rows
        row_stats.record(child, buffers.rows[:drawn], buffers.parts[: buffers.drawn])
        if drawn < b:
            row_stats.record(child, buffers.rows[drawn:], buffers.parts[buffers.drawn :])


def record_budget(child: Child, shape: LossShape, inputs: DdqnInputs, buffers: DdqnBuffers) -> None:
    """With a budget dlogits, from the parts of the gradient: one launch."""
    if buffers.ce_grad is not None and buffers.dlogits is not None:
        b = shape.batch
        child.launch("budget_blend", grid=(b,), block=(256 if b <= 256 else 128,),
                     args=dict(_sizes(shape), ce_grad=buffers.ce_grad, mse_grad=buffers.mse_grad, rows=buffers.stats,
                               step=inputs.step, dlogits=buffers.dlogits, action=inputs.action,
                               R=buffers.stats.shape[0]))  # fmt: skip


def _sizes(shape: LossShape) -> dict[str, int]:
    """What both kernels are told."""
    return {"branch_sizes": shape.packed_branches, "B": shape.batch, "K": len(shape.branches), "S": shape.actions,
            "N": shape.atoms, "Np": shape.head_padded, "W": shape.stats_width}  # fmt: skip


def add(plan: StepPlan, shape: LossShape, inputs: DdqnInputs, buffers: DdqnBuffers, *, apart: bool = False) -> None:
    """Appends the child to a plan; with ``apart`` and a budget dlogits is made by one of its own, ddqn.budget."""
    apart = apart and buffers.ce_grad is not None and buffers.dlogits is not None
    written = [b for b in writes(buffers) if not apart or b is not buffers.dlogits]
    with plan.child("ddqn", reads=reads(inputs), writes=written, private=[inputs.guard]) as child:
        record_loss(child, shape, inputs, buffers)
        if not apart:
            record_budget(child, shape, inputs, buffers)
    if apart:
        parts = [b for b in (buffers.ce_grad, buffers.mse_grad, buffers.dlogits) if b is not None]
        with plan.child("ddqn.budget", reads=[*parts[:2], buffers.stats, inputs.action, inputs.step], writes=parts[2:],
                        after="ddqn") as child:  # fmt: skip
            record_budget(child, shape, inputs, buffers)


__all__ = ["BranchError", "DdqnBuffers", "DdqnInputs", "LossShape", "add", "reads", "record", "record_budget", "record_loss",
           "writes"]  # fmt: skip
