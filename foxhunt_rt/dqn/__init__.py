"""The distributional DQN: its training step as children of one graph, the learner, the policy, and `Agent`, which joins them."""

from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.dqn.agent import Agent, Metrics
from foxhunt_rt.dqn.checkpoint import CheckpointError
from foxhunt_rt.dqn.extension import Extension, ExtensionError, StepView
from foxhunt_rt.dqn.layout import NetworkLayout, ParameterGroup, Tensor
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.dqn.policy import Policy, PolicyError
from foxhunt_rt.dqn.snapshot import PolicySnapshot

__all__ = [
    "Agent",
    "CheckpointError",
    "Config",
    "ConfigError",
    "Extension",
    "ExtensionError",
    "Learner",
    "Metrics",
    "NetworkLayout",
    "ParameterGroup",
    "Policy",
    "PolicyError",
    "PolicySnapshot",
    "StepView",
    "Tensor",
]
