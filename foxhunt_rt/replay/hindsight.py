"""Goals in stored states, and rows that are relabelled with a goal that was achieved later (HER, Andrychowicz 2017).

The kernel is in cuda_src/replay/her.cu, the reasons in docs/step/her.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foxhunt_rt.driver import Buffer, DeviceBuffer
from foxhunt_rt.graph import Child
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay.batch import Batch
from foxhunt_rt.replay.errors import ReplayError

if TYPE_CHECKING:
    from foxhunt_rt.replay.ring import Replay

__all__ = ["GoalSlot", "check_goal", "record_relabel", "relabel_reads"]

_BLOCK = (32,)
_REWARDS = {"return": "HER_RETURN", "reach": "HER_REACH"}


@dataclass(frozen=True)
class GoalSlot:
    """Where a state holds what was achieved so far, and the goal.

    Attributes
    ----------
    achieved, goal : int
        First column of each.
    width : int
        Columns of each.
    unit : Buffer, float64 (1,), optional
        Raw reward that the achieved column counts as 1. None: 1.
    """

    achieved: int
    goal: int
    width: int
    unit: Buffer | None = None


def check_goal(replay: Replay, slot: GoalSlot) -> None:
    """Raises ReplayError unless the ring's states have such columns; in market mode, among the portfolio values."""
    first = replay.state_dim - replay.portfolio_dim if replay.mode == "market" else 0
    for name, at in (("achieved", slot.achieved), ("goal", slot.goal)):
        if slot.width < 1 or at < first or at + slot.width > replay.state_dim:
            raise ReplayError(f"{name} columns {at} to {at + slot.width} are not among {first} to {replay.state_dim}, which the "
                              "ring stores of a state; name columns that are")  # fmt: skip
    if abs(slot.achieved - slot.goal) < slot.width:
        raise ReplayError(f"achieved columns from {slot.achieved} and goal columns from {slot.goal} overlap over {slot.width}; "
                          "give each its own")  # fmt: skip


def relabel_reads(replay: Replay, slot: GoalSlot, drawn: Batch) -> list[Buffer]:
    """What `record_relabel` reads, but for the step block: a child declares these."""
    stored = (
        replay.ring,
        replay.rows,
        replay.state,
        replay.final_state,
        replay.final_owner,
        replay.portfolio,
        replay.conviction,
        slot.unit,
    )
    batch = (drawn.state, drawn.next_state, drawn.discount, drawn.priority, drawn.action, drawn.index)
    return [*(b for b in stored if b is not None), *batch]


def record_relabel(child: Child, replay: Replay, slot: GoalSlot, drawn: Batch, relabelled: Batch, step: Buffer,
                   donor: DeviceBuffer, report: DeviceBuffer, *, reward: str, tolerance: float) -> None:  # fmt: skip
    """Records the relabelling of rows of ``drawn``: one launch.

    Parameters
    ----------
    child : Child
        Declares `relabel_reads` and ``step`` as reads, ``relabelled.sampled``, ``donor`` and ``report`` as writes.
    drawn, relabelled : Batch
        B rows as `Replay.record_sample` left them; H rows to write.
    step : Buffer of step_block
        Read: seed, rng_step, gamma, reward_scale.
    donor : DeviceBuffer, int32 (H,)
        Becomes the row of the ring whose transition achieved the new goal.
    report : DeviceBuffer, float32 (H, HER_COLUMNS)
        Becomes distance to the donor, new return, whether the goal is met at the window's end.
    reward : {"return", "reach"}
        "return": the stored reward, but that what takes the achieved return above the goal earns nothing; one column.
        "reach": 0 where the goal is met, else -1.
    tolerance : float
        "reach": distance within which it is met.
    """
    check_goal(replay, slot)
    if reward == "return" and slot.width != 1:
        raise ReplayError(f"a return has one column, the goal {slot.width}; give one, or take reward='reach'")
    child.launch("her_relabel", (relabelled.size,), _BLOCK, {
        "ring": replay.ring, "rows": replay.rows, "state": replay.state, "final_state": replay.final_state,
        "final_owner": replay.final_owner, "portfolio": replay.portfolio, "conviction": replay.conviction,
        "unit": slot.unit, "step": step, "drawn_state": drawn.state, "drawn_next_state": drawn.next_state,
        "drawn_discount": drawn.discount,
        "drawn_priority": drawn.priority, "drawn_action": drawn.action, "drawn_index": drawn.index,
        "batch_state": relabelled.state, "batch_next_state": relabelled.next_state, "batch_action": relabelled.action,
        "batch_return": relabelled.ret, "batch_discount": relabelled.discount, "batch_index": relabelled.index,
        "batch_priority": relabelled.priority, "donor": donor, "report": report, "H": relabelled.size, "B": drawn.size,
        "capacity": replay.capacity, "finals": replay.final_observations, "S": replay.state_dim,
        "Sp": replay.padded_state_dim, "P": replay.portfolio_dim, "n_step": replay.n_step, "goal": slot.goal,
        "achieved": slot.achieved, "width": slot.width, "reward": abi.constant(_REWARDS[reward]),
        "tolerance": tolerance})  # fmt: skip
