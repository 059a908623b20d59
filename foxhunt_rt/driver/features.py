"""What a driver and a device must have, and what they may lack: every feature is probed, and each has a fallback.

A feature is there when the driver is new enough, hands out its entry points (cuGetProcAddress), and, where that says too little,
a trial succeeds. `Features` is the result; ``FOXHUNT_WITHOUT=conditional_nodes`` takes one away from a driver that has it, to
compare both ways. docs/support.md is the table for people; a test holds it to this one.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foxhunt_rt._names import choose
from foxhunt_rt.driver.errors import DriverError, FoxhuntError

if TYPE_CHECKING:
    from foxhunt_rt.driver.context import Context, Device

#: INFO: one line a process for each feature that a device does without.
LOGGER = logging.getLogger("foxhunt_rt.features")

#: The oldest CUDA version of a driver that can be used at all: launches and updates take the CUDA 12.0 forms of kernel nodes.
OLDEST_DRIVER = 12000
#: The oldest compute capability that nvcc 13 compiles for.
OLDEST_CAPABILITY = (7, 5)
#: Machines whose processors hostsim has a context switch for (cuda_src/hostsim/switch.cpp).
MACHINES = ("x86_64", "aarch64")
#: Device attributes without which nothing here works: mapped records, and one address for a pointer on host and device.
NEEDED_ATTRIBUTES = ("CAN_MAP_HOST_MEMORY", "UNIFIED_ADDRESSING")


class UnsupportedDevice(FoxhuntError):
    """A device or driver lacks something that has no fallback."""


@dataclass(frozen=True)
class Feature:
    """Something that a driver may lack.

    Attributes
    ----------
    name : str
    since : int
        CUDA version of the first driver that has it, 12030 for 12.3.
    entry_points : tuple of (str, int)
        What cuGetProcAddress is asked for: base name, and CUDA version of the form that is used.
    use, fallback : str
        What it serves, and what is done without it.
    """

    name: str
    since: int
    entry_points: tuple[tuple[str, int], ...]
    use: str
    fallback: str


FEATURES = (
    Feature("conditional_nodes", 12030, (("cuGraphConditionalHandleCreate", 12030), ("cuGraphAddNode", 12030)),
            "gated children, several steps a launch",
            "the host reads the flags: a plain and a due executable, K launches for K steps"),
    Feature("function_loading", 12040, (("cuFuncLoad", 12040),), "no lazy load in a capture or between replays",
            "cuModuleGetFunction, which loads the function before CUDA 12.4"),
    Feature("parameter_sizes", 12040, (("cuFuncGetParamInfo", 12040),),
            "the driver's size of an argument struct is compared with the header's",
            "the header's size is believed"),
    Feature("edge_data", 12030, (("cuGraphGetEdges", 12030),), "edges of a graph, for names and the longest chain",
            "the form without edge data"),
    Feature("event_timing", 12080, (("cuEventElapsedTime", 12080),), "times between events",
            "the form before CUDA 12.8, which is less exact"),
)  # fmt: skip

NAMES = tuple(f.name for f in FEATURES)
_trials: dict[int, str] = {}  # by device: why conditional nodes do not work, empty when they do
_logged: set[tuple[int, str, str]] = set()


def version_text(version: int) -> str:
    """``"12.3"`` for 12030."""
    return f"{version // 1000}.{version % 1000 // 10}"


class Features:
    """What the driver has for one device. Made by a `Context`; the trial behind ``conditional_nodes`` runs when it is first asked
    for, once a device.

    Parameters
    ----------
    context : Context
    without : iterable of str
        Features to do without though they may be there. ``FOXHUNT_WITHOUT`` adds to them.
    """

    def __init__(self, context: Context, without: Iterable[str] = ()) -> None:
        environment = [n.strip() for n in os.environ.get("FOXHUNT_WITHOUT", "").split(",") if n.strip()]
        without = {*without, *environment}
        unknown = without.difference(NAMES)
        if unknown:
            name = min(unknown)
            raise FoxhuntError(f"no feature {name}; {choose(name, NAMES)}")
        self._context = weakref.ref(context)
        self.device = context.device.ordinal
        self.driver_version = context.device.driver_version
        self._reasons: dict[str, str] = {}
        for feature in FEATURES:
            reason = "switched off" if feature.name in without else _absent(context.cu, feature, self.driver_version)
            if reason or feature.name != "conditional_nodes":
                self._settle(feature, reason)

    def has(self, name: str) -> bool:
        """Whether a feature is there.

        In a capture: legal, once somebody asked for conditional nodes. Synchronizes: no. Allocates: may, a graph for a moment the
        first time.
        """
        return not self.reason(name)

    def reason(self, name: str) -> str:
        """Why a feature is missing; empty when it is there.

        In a capture: legal, once somebody asked for conditional nodes. Synchronizes: no. Allocates: may, a graph for a moment the
        first time.
        """
        if name not in self._reasons:
            feature = next((f for f in FEATURES if f.name == name), None)
            if feature is None:
                raise FoxhuntError(f"no feature {name}; {choose(name, NAMES)}")
            context = self._context()
            assert context is not None
            if self.device not in _trials:
                _trials[self.device] = _try_conditional_nodes(context)
            self._settle(feature, _trials[self.device])
        return self._reasons[name]

    def _settle(self, feature: Feature, reason: str) -> None:
        self._reasons[feature.name] = reason
        key = self.device, feature.name, reason
        if reason and key not in _logged:
            _logged.add(key)
            LOGGER.info("device %d, driver for CUDA %s: no %s (%s); instead: %s", self.device,
                        version_text(self.driver_version), feature.name, reason, feature.fallback)  # fmt: skip

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of what is not there.

        In a capture: legal, once somebody asked for conditional nodes. Synchronizes: no. Allocates: may, a graph for a moment the
        first time.
        """
        return tuple(name for name in NAMES if self.reason(name))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the driver's version, and each feature with the reason why it is missing, or None.

        In a capture: legal, once somebody asked for conditional nodes. Synchronizes: no. Allocates: may, a graph for a moment the
        first time.
        """
        return {"device": self.device, "driver_version": self.driver_version,
                "features": {name: self.reason(name) or None for name in NAMES}}  # fmt: skip


def check_device(device: Device) -> None:
    """Refuses a driver or device that nothing can be done with.

    Raises
    ------
    UnsupportedDevice
    """
    version = device.driver_version
    if version < OLDEST_DRIVER:
        raise UnsupportedDevice(f"the driver is for CUDA {version_text(version)}, and {version_text(OLDEST_DRIVER)} is the "
                                "oldest that works: update it, or set FOXHUNT_DRIVER=hostsim")  # fmt: skip
    capability = device.attribute("COMPUTE_CAPABILITY_MAJOR"), device.attribute("COMPUTE_CAPABILITY_MINOR")
    if capability < OLDEST_CAPABILITY:
        have, oldest = (".".join(map(str, pair)) for pair in (capability, OLDEST_CAPABILITY))
        raise UnsupportedDevice(f"device {device.ordinal} ({device.name}) has compute capability {have}, and {oldest} is the "
                                "oldest that works: use another device, or set FOXHUNT_DRIVER=hostsim")  # fmt: skip
    for name in NEEDED_ATTRIBUTES:
        if not device.attribute(name):
            raise UnsupportedDevice(f"device {device.ordinal} ({device.name}) lacks {name}: use another device, or set "
                                    "FOXHUNT_DRIVER=hostsim")  # fmt: skip


def _absent(cu: Any, feature: Feature, version: int) -> str:
    if version < feature.since:
        return f"it came with CUDA {version_text(feature.since)}"
    for name, form in feature.entry_points:
        status, pointer = cu.cuGetProcAddress(name.encode(), form, 0)[:2]
        if status or not pointer:
            return f"the driver has no {name}"
    return ""


def _try_conditional_nodes(context: Context) -> str:
    """Instantiates an IF node inside a WHILE node: some platforms have the entry points and refuse the nodes."""
    from foxhunt_rt.driver.graphs import Graph

    graph = Graph(context)
    try:
        _, body = graph.add_conditional("WHILE", graph.conditional_handle(), [])
        _, inner = body.add_conditional("IF", body.conditional_handle(), [])
        context.call(context.cu.cuGraphAddEmptyNode, inner.handle, [], 0)
        with context.current():
            executable = context.call(context.cu.cuGraphInstantiate, graph.handle, 0)
        context.call(context.cu.cuGraphExecDestroy, executable)
    except DriverError as error:
        if error.name != "CUDA_ERROR_NOT_SUPPORTED":
            raise
        return f"{error.call} answers {error.name}"
    finally:
        graph.close()
    return ""


__all__ = [
    "FEATURES", "MACHINES", "OLDEST_CAPABILITY", "OLDEST_DRIVER", "Feature", "Features", "UnsupportedDevice", "check_device",
    "version_text",
]  # fmt: skip
