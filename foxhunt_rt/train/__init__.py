"""Walk-forward training: joins the learner (`dqn`) and its world (`market`)."""

from foxhunt_rt.train.dataset import DataSet
from foxhunt_rt.train.progress import Observer, Progress
from foxhunt_rt.train.walkforward import TrainingInterrupted, WalkForward
from foxhunt_rt.train.world import World

__all__ = ["DataSet", "Observer", "Progress", "TrainingInterrupted", "WalkForward", "World"]
