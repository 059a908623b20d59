"""The driver layer: the only importer of ``cuda.bindings``. Objects own what they create; a status becomes an exception."""

from foxhunt_rt.driver import captures, dlpack
from foxhunt_rt.driver.calls import call, counts
from foxhunt_rt.driver.context import Context, Device
from foxhunt_rt.driver.errors import (
    CaptureError,
    ContextDead,
    DeviceNotFound,
    DriverError,
    DriverNotFound,
    FoxhuntError,
    IllegalInCapture,
    LifetimeError,
    MissingEntryPoint,
    OtherRuntime,
    OutOfMemory,
)
from foxhunt_rt.driver.features import FEATURES, Feature, Features, UnsupportedDevice
from foxhunt_rt.driver.graphs import Graph, GraphExec, Node, capture
from foxhunt_rt.driver.libraries import find_library
from foxhunt_rt.driver.loader import gpu_count, hostsim, kind, load, shim
from foxhunt_rt.driver.memory import (
    Buffer,
    DeviceBuffer,
    MappedBuffer,
    copy_device,
    live_allocations,
    live_bytes,
    memset,
    memset_pattern,
)
from foxhunt_rt.driver.module import Function, Module
from foxhunt_rt.driver.stream import Event, Stream
from foxhunt_rt.driver.tracing import PLUMBING, DriverCalls

__all__ = [
    "FEATURES", "PLUMBING", "Buffer", "CaptureError", "Context", "ContextDead", "Device", "DeviceBuffer", "DeviceNotFound",
    "DriverCalls", "DriverError", "DriverNotFound", "Event", "Feature", "Features", "FoxhuntError", "Function", "Graph",
    "GraphExec", "IllegalInCapture", "LifetimeError", "MappedBuffer", "MissingEntryPoint", "Module", "Node", "OtherRuntime",
    "OutOfMemory", "Stream", "UnsupportedDevice", "call", "capture", "captures", "copy_device", "counts", "dlpack",
    "find_library", "gpu_count", "hostsim", "kind", "live_allocations", "live_bytes", "load", "memset", "memset_pattern", "shim",
]  # fmt: skip
