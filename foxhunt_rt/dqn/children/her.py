"""per_sample.her: rows of the batch once more, with a goal that their episode achieved later (docs/step/her.md).

per_sample.her, behind per_sample: `her_relabel`, a block a row, and `replay_windows` where the network looks back.
per_sample.her_metrics, beside all that follows: `column_means`.
"""

from __future__ import annotations

import numpy as np

from foxhunt_rt.config import ConfigError, HerConfig
from foxhunt_rt.dqn.extension import Extension, StepView
from foxhunt_rt.driver import DeviceBuffer
from foxhunt_rt.kernels import abi
from foxhunt_rt.replay import GoalSlot, Replay, ReplayError
from foxhunt_rt.replay.hindsight import record_relabel, relabel_reads


class Her(Extension):
    """Hindsight experience replay (Andrychowicz 2017), strategy "future".

    Attributes
    ----------
    slot : GoalSlot
        Columns of the goal, and of what was achieved.
    donor : DeviceBuffer
        i32 (H,): row of the ring whose transition achieved the goal; -1 where nothing was drawn.
    rows : DeviceBuffer
        f32 (H, 3): transitions from the row to its donor, return with the new goal, whether the window's end meets it.
    """

    name = "her"
    metrics = ("her_offset", "her_return", "her_reached")
    slot: GoalSlot
    donor: DeviceBuffer
    rows: DeviceBuffer

    def __init__(self, config: HerConfig) -> None:
        self.config, self.appends = config, config.rows

    def record(self, step: StepView) -> None:
        rt, appended = step.runtime, step.appended(self.name)
        self.slot = slot = _slot(self.config, step.replay)
        self.donor = rt.zeros(appended.size, np.int32, "her.donor")
        self.rows = rt.zeros((appended.size, abi.constant("HER_COLUMNS")), np.float32, "her.rows")
        reads = [*relabel_reads(step.replay, slot, step.drawn), step.step]
        if appended.window is not None:
            reads += step.replay.sample_reads
        with step.child("per_sample.her", after="per_sample", reads=reads,
                        writes=[*appended.sampled, self.donor, self.rows]) as child:  # fmt: skip
            try:
                record_relabel(child, step.replay, slot, step.drawn, appended, step.step, self.donor, self.rows,
                               reward=self.config.reward, tolerance=self.config.tolerance)  # fmt: skip
            except ReplayError as error:
                raise ConfigError(f"her: {error}") from None
            if appended.window is not None:
                step.replay.record_windows(child, appended, slot)
        means = step.metrics_of(self)
        with step.child("per_sample.her_metrics", after="per_sample.her", reads=[self.rows], writes=[means]) as child:
            child.launch("column_means", grid=(1,), block=(128,), args=dict(
                rows=self.rows, means=means, R=appended.size, C=self.rows.shape[1], means_of=means.size))  # fmt: skip


def _slot(config: HerConfig, replay: Replay) -> GoalSlot:
    """The replay's own, which the market sets, or that of the options."""
    if replay.goal is not None:
        if config.goal_column >= 0 or config.achieved_column >= 0:
            raise ConfigError("her.goal_column and her.achieved_column are the market's own here; leave them out")
        return replay.goal
    if config.goal_column < 0 or config.achieved_column < 0:
        raise ConfigError("her needs states with a goal and what was achieved in them; set her.goal_column and "
                          "her.achieved_column, or her.enabled=false")  # fmt: skip
    return GoalSlot(config.achieved_column, config.goal_column, config.goal_width)


__all__ = ["Her"]
