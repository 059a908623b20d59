"""Walk-forward training: joins the learner (`dqn`) and its world (`market`)."""

from foxhunt_rt.train.progress import Observer, Progress
from foxhunt_rt.train.walkforward import TrainingInterrupted, WalkForward
from foxhunt_rt.train.world import Market, World

__all__ = ["Market", "Observer", "Progress", "TrainingInterrupted", "WalkForward", "World"]
