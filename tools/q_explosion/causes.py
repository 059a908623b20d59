# ruff: noqa: E501
"""What may have made the earlier system report Q-values of -1e30 (known failure K11): each candidate as a change to this tree, to
the settings, or to a number on the device while training runs. measure.py trains with each; docs/q-explosion.md tells.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "known_failures"))
from plants import PLANTS


@dataclass(frozen=True)
class Cause:
    """A candidate.

    Attributes
    ----------
    name : str
    about : str
        One line.
    edits : tuple of (file, text, replacement)
        Put into a copy of the tree; none: settings alone.
    settings : tuple of str
        Laid over the smoke profile.
    nan : tuple of int, optional
        (fold, step of the fold): before it one bias of the network's last layer becomes NaN.
    expect : str
        Who must notice: a check of the guard (``"probabilities"``), an alarm (``"alarm_edge_mass"``), ``"alone"``: the first step
        of fold 2 differs from that of fold 2 run alone; ``"oracle"``: a test that compares with another computation; ``""``: nobody,
        there is nothing wrong.
    """

    name: str
    about: str
    expect: str
    edits: tuple[tuple[str, str, str], ...] = ()
    settings: tuple[str, ...] = ()
    nan: tuple[int, int] | None = None


def _plant(old: str) -> tuple[tuple[str, str, str], ...]:
    """The edits of a plant of the known failures."""
    (found,) = [p for p in PLANTS if p.row == "K11" and p.old == old]
    return found.edits


_ROW, _ROWS = "cuda_src/loss/c51_row_host.h", "cuda_src/loss/combine_stats.h"
_SENTINEL = (
    (_ROWS, "return column == STAT_Q_MIN ? INFINITY : column == STAT_Q_MAX ? -INFINITY : 0.0f;",
     "return column == STAT_Q_MIN ? 1e30f : column == STAT_Q_MAX ? -1e30f : 0.0f;"),
    (_ROWS, "return column == STAT_Q_MIN ? op_min()(x, y) : column == STAT_Q_MAX ? op_max()(x, y) : x + y;",
     "return column == STAT_Q_MIN ? (y < x ? y : x) : column == STAT_Q_MAX ? (y > x ? y : x) : x + y;"),
    (_ROWS, "op_min()(sums[STAT_Q_MIN], row[STAT_Q_MIN]);",
     "row[STAT_Q_MIN] < sums[STAT_Q_MIN] ? row[STAT_Q_MIN] : sums[STAT_Q_MIN];"),
    (_ROWS, "op_max()(sums[STAT_Q_MAX], row[STAT_Q_MAX]);",
     "row[STAT_Q_MAX] > sums[STAT_Q_MAX] ? row[STAT_Q_MAX] : sums[STAT_Q_MAX];"),
    (_ROW, "float low = INFINITY, high = -INFINITY;", "float low = 1e30f, high = -1e30f;"),
    (_ROW, "low = op_min()(low, s[B_Q]), high = op_max()(high, s[B_Q]);",
     "low = s[B_Q] < low ? s[B_Q] : low, high = s[B_Q] > high ? s[B_Q] : high;"),
)  # fmt: skip
_ENDED_ROWS = (("cuda_src/loss/c51_row_host.h", "out[STAT_Q_MIN] = low;\n        out[STAT_Q_MAX] = high;",
                "out[STAT_Q_MIN] = terminal ? low : 1e30f;\n        out[STAT_Q_MAX] = terminal ? high : -1e30f;"),)  # fmt: skip
#: The clip by a norm that is not finite, as most trainers have it: NaN goes into every parameter.
_ADAM_GOES_ON = (("cuda_src/optim/adam.cu", "    if (!usable) return;\n", ""),)

CAUSES = (
    Cause("none", "this tree", ""),
    Cause("bf16 log-probabilities", "log p rounded to bf16 before the cross-entropy and its gradient", "probabilities",
          _plant("log-probabilities in bf16")),
    Cause("support too narrow", "a support of a twentieth of the returns: targets lie on the edge atoms", "alarm_edge_mass",
          settings=("train.support_margin=0.05",)),
    Cause("support of 240", "the old system's support, +-240, for normalized returns of deviation 1", "alarm_atom_use",
          settings=("train.support=config", "loss.v_min=-240", "loss.v_max=240")),
    Cause("mass beyond the support dropped", "no clamp in the projection, and a support of a twentieth of the returns", "mass",
          _plant("mass beyond the support is dropped instead of clamped"), ("train.support_margin=0.05",)),
    Cause("budget before the blend", "the gradient budget bounds each part by its norm before the blend", "oracle",
          _plant("the gradient budget does not know the blend")),
    Cause("sentinel, sound numbers", "maxima seeded with -1e30 that leave NaN out; nothing is NaN", "oracle", _SENTINEL),
    Cause("NaN", "a NaN in one bias in fold 2, epoch 2; Adam goes on", "non_finite", _ADAM_GOES_ON, nan=(2, 500)),
    Cause("sentinel over NaN", "the same, with maxima seeded with -1e30 that leave NaN out", "non_finite",
          (*_SENTINEL, *_ADAM_GOES_ON), nan=(2, 500)),
    Cause("statistics over no rows", "maxima, seeded with -1e30, over the rows of the batch that end an episode", "q_range",
          (*_SENTINEL, *_ENDED_ROWS)),
    Cause("network kept over a fold", "parameters, target and moments of the fold before", "alone",
          (("foxhunt_rt/dqn/learner.py", "        self.adam.load(self.layout.pack(self.layout.init(seed)))\n",
            "        if not self.extensions and not getattr(self, 'began', False):\n"
            "            self.adam.load(self.layout.pack(self.layout.init(seed)))\n        self.began = hasattr(self, 'graph')\n"),)),
    Cause("replay kept over a fold", "rows of the fold before, whose features were normalized otherwise", "alone",
          (("foxhunt_rt/dqn/learner.py", "        if clear_replay:\n            self.replay.clear()\n",
            "        if clear_replay and not hasattr(self, 'graph'):\n            self.replay.clear()\n"),)),
)  # fmt: skip
