"""Device-resident prioritized replay. Reusable alone: it knows the runtime, and nothing of what learns from it."""

from foxhunt_rt.replay.actions import ActionError, decode_actions, encode_actions
from foxhunt_rt.replay.batch import Batch, padded_state_dim
from foxhunt_rt.replay.errors import ReplayError
from foxhunt_rt.replay.hindsight import GoalSlot
from foxhunt_rt.replay.ring import Replay, ReplayState
from foxhunt_rt.replay.staging import Staging
from foxhunt_rt.replay.windows import History, Windows

__all__ = ["ActionError", "Batch", "GoalSlot", "History", "Replay", "ReplayError", "ReplayState", "Staging", "Windows",
           "decode_actions", "encode_actions", "padded_state_dim"]  # fmt: skip
