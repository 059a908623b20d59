"""The graph layer: Runtime, isolation ledger, children, the parent that one launch replays, verification."""

from foxhunt_rt.graph.child import Child, DeclarationError
from foxhunt_rt.graph.child_times import ChildTimes
from foxhunt_rt.graph.conditional import Flag
from foxhunt_rt.graph.explain import Finding, explain
from foxhunt_rt.graph.flatten import FlatComparison, Flattened
from foxhunt_rt.graph.golden import Departure, Golden, GoldenError, Recorder, Replayer
from foxhunt_rt.graph.isolation import Isolation, IsolationError, Ledger
from foxhunt_rt.graph.memory_plan import MemoryExceeded, MemoryPlan, PlanningRuntime, require_memory
from foxhunt_rt.graph.modules import ModulePool
from foxhunt_rt.graph.plan import StepPlan
from foxhunt_rt.graph.profile import ChildTime, LaunchTime, Profile
from foxhunt_rt.graph.runtime import Runtime, UngraphedUser
from foxhunt_rt.graph.state import Difference, State
from foxhunt_rt.graph.step import StepGraph
from foxhunt_rt.graph.timing import StepTime, StepTimer
from foxhunt_rt.graph.updates import BakedValueError, Const, Slot, UpdateRefused
from foxhunt_rt.graph.verify import ModeResult, Verification
from foxhunt_rt.graph.watchdog import Hang, Watchdog

__all__ = [
    "BakedValueError", "Child", "ChildTime", "ChildTimes", "Const", "DeclarationError", "Departure", "Difference",
    "Finding", "Flag", "FlatComparison", "Flattened", "Golden", "GoldenError", "Hang", "Isolation", "IsolationError",
    "LaunchTime", "Ledger", "MemoryExceeded", "MemoryPlan", "ModeResult", "ModulePool", "PlanningRuntime", "Profile",
    "Recorder", "Replayer", "Runtime", "Slot", "State", "StepGraph", "StepPlan", "StepTime", "StepTimer",
    "UngraphedUser", "UpdateRefused", "Verification", "Watchdog", "explain", "require_memory",
]  # fmt: skip
