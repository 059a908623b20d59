"""cuda.bindings.driver for the conformance suite: calls by name, checked, and nothing else of the package.

The suite runs unchanged on hostsim and on NVIDIA's driver; what it asserts is what the package relies on.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

NATIVE = Path(__file__).resolve().parents[2] / "foxhunt_rt" / "_native"


class Status(Exception):
    """A driver call that did not answer CUDA_SUCCESS."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name


class RawDriver:
    """``cu.cuMemAlloc(4)`` is the checked call; ``cu.status("cuMemAlloc", 4)`` is the name of its status."""

    def __init__(self) -> None:
        self.hostsim: ctypes.CDLL | None = None
        if os.environ.get("FOXHUNT_DRIVER", "hostsim") != "cuda":
            sim = ctypes.CDLL(str(NATIVE / "libfoxhunt_hostsim.so"), mode=ctypes.RTLD_GLOBAL)
            sim.fxHostsimConfigure.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
            sim.fxHostsimLastReport.restype = ctypes.c_char_p
            sim.fxHostsimLabel.argtypes = [ctypes.c_ulonglong, ctypes.c_char_p]
            sim.fxHostsimCounter.argtypes = [ctypes.c_char_p]
            sim.fxHostsimCounter.restype = ctypes.c_ulonglong
            self.hostsim = sim
        from cuda.bindings import driver

        self.api = driver
        self.began: list[Any] = []  # streams whose capture a failing test may leave open
        self.cuInit(0)
        self.device = self.cuDeviceGet(0)
        self.context = self.cuDevicePrimaryCtxRetain(self.device)
        self.cuCtxSetCurrent(self.context)

    def _call(self, name: str, *args: Any) -> tuple[str, Any]:
        code, *values = getattr(self.api, name)(*args)
        return code.name, values[0] if len(values) == 1 else tuple(values)

    def status(self, name: str, *args: Any) -> str:
        return self._call(name, *args)[0].removeprefix("CUDA_ERROR_")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def checked(*args: Any) -> Any:
            status, value = self._call(name, *args)
            if status != "CUDA_SUCCESS":
                raise Status(name, status.removeprefix("CUDA_ERROR_") + (f" ({self.report()})" if self.hostsim else ""))
            return value

        return checked

    def report(self) -> str:
        """hostsim's last finding."""
        assert self.hostsim is not None
        return str(self.hostsim.fxHostsimLastReport().decode())

    # ------------------------------------------------------------ modules and launches
    def image(self, stem: str) -> bytes:
        if self.hostsim is not None:
            return (NATIVE / "host" / f"{stem}.so").read_bytes()
        attribute = self.api.CUdevice_attribute
        major = self.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self.device)
        minor = self.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self.device)
        return (NATIVE / f"sm_{major}{minor}" / f"{stem}.cubin").read_bytes()

    def module(self, stem: str) -> Any:
        return self.cuModuleLoadData(self.image(stem))

    def function(self, stem: str, name: str) -> Any:
        return self.cuModuleGetFunction(self.module(stem), name.encode())

    def launch(self, function: Any, grid: int, block: int, args: bytes, stream: Any = 0, shared: int = 0) -> None:
        buffer, params = _kernel_params(args)
        self.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, ctypes.addressof(params), 0)
        del buffer

    def kernel_node_params(self, function: Any, grid: int, block: int, args: bytes, shared: int = 0) -> tuple[Any, Any]:
        """The node parameters and what must stay alive while they are used."""
        buffer, params = _kernel_params(args)
        p = self.api.CUDA_KERNEL_NODE_PARAMS()
        p.func = function
        p.gridDimX, p.gridDimY, p.gridDimZ = grid, 1, 1
        p.blockDimX, p.blockDimY, p.blockDimZ = block, 1, 1
        p.sharedMemBytes = shared
        p.kernelParams = ctypes.addressof(params)
        return p, (buffer, params)

    def add_kernel(
        self, graph: Any, before: list[Any], function: Any, grid: int, block: int, args: bytes, shared: int = 0
    ) -> Any:
        p, alive = self.kernel_node_params(function, grid, block, args, shared)
        node = self.cuGraphAddKernelNode(graph, before, len(before), p)
        del alive
        return node

    def end_captures(self) -> None:
        for stream in self.began:
            self.api.cuStreamEndCapture(stream)
        self.began.clear()

    # ------------------------------------------------------------ memory
    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> int:
        """A device copy; its address."""
        a = np.ascontiguousarray(values, dtype)
        p = self.cuMemAlloc(max(a.nbytes, 1))
        self.cuMemcpyHtoD(p, a.ctypes.data, a.nbytes)
        return int(p)

    def read(self, p: int, count: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A host copy, after all work of the context."""
        self.cuCtxSynchronize()
        a = np.empty(count, dtype)
        self.cuMemcpyDtoH(a.ctypes.data, p, a.nbytes)
        return a

    def mapped(self, count: int, dtype: npt.DTypeLike = np.float32) -> tuple[npt.NDArray[Any], int]:
        """A host view and the device address of zeroed, mapped memory."""
        nbytes = count * np.dtype(dtype).itemsize
        host = int(self.cuMemHostAlloc(nbytes, self.api.CU_MEMHOSTALLOC_DEVICEMAP))
        view: npt.NDArray[Any] = np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(host)), dtype)
        view[:] = 0
        return view, int(self.cuMemHostGetDevicePointer(host, 0))

    # ------------------------------------------------------------ streams, captures, graphs
    def stream(self) -> Any:
        return self.cuStreamCreate(self.api.CUstream_flags.CU_STREAM_NON_BLOCKING.value)

    def mode(self, name: str) -> Any:
        return getattr(self.api.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")

    def begin(self, stream: Any, mode: str = "THREAD_LOCAL") -> None:
        self.began.append(stream)
        self.cuStreamBeginCapture(stream, self.mode(mode))

    @contextmanager
    def capture(self, stream: Any, mode: str = "THREAD_LOCAL") -> Iterator[list[Any]]:
        """Yields a list that holds the graph when the block is left."""
        graph: list[Any] = []
        self.begin(stream, mode)
        yield graph
        graph.append(self.cuStreamEndCapture(stream))

    def instantiate(self, graph: Any) -> Any:
        return self.cuGraphInstantiate(graph, 0)

    def nodes(self, graph: Any) -> list[Any]:
        count = self.cuGraphGetNodes(graph, 0)[1]
        return list(self.cuGraphGetNodes(graph, count)[0])[:count] if count else []

    def node_type(self, node: Any) -> str:
        return str(self.api.CUgraphNodeType(self.cuGraphNodeGetType(node)).name).removeprefix("CU_GRAPH_NODE_TYPE_")

    def edge_count(self, graph: Any) -> int:
        return int(self.cuGraphGetEdges(graph, 0)[-1])

    def conditional(self, graph: Any, before: list[Any], kind: str, handle: Any) -> tuple[Any, Any]:
        """An IF or WHILE node; the node and its body graph."""
        api = self.api
        p = api.CUgraphNodeParams()
        p.type = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        p.conditional.handle = handle
        p.conditional.type = getattr(api.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
        p.conditional.size = 1
        p.conditional.ctx = self.context
        node = self.cuGraphAddNode(graph, before, None, len(before), p)
        return node, p.conditional.phGraph_out[0]


def _kernel_params(args: bytes) -> tuple[Any, Any]:
    buffer = ctypes.create_string_buffer(args, len(args))
    return buffer, (ctypes.c_void_p * 1)(ctypes.addressof(buffer))


# The argument structs of cuda_src/abi/testing.h that the suite uses, as bytes.
def add_scalar(x: int, value: float, n: int) -> bytes:
    return struct.pack("QfI", x, value, n)


def sum_args(x: int, out: int, n: int) -> bytes:
    return struct.pack("QQiI", x, out, n, 0)


def reverse_rows(x: int, y: int, rows: int, cols: int) -> bytes:
    return struct.pack("QQii", x, y, rows, cols)


def countdown(counter: int, handle: Any) -> bytes:
    return struct.pack("QQ", counter, int(handle))


def set_condition(handle: Any, value: int) -> bytes:
    return struct.pack("QII", int(handle), value, 0)


def copy_element(x: int, y: int, from_: int, to: int, value: float = 0.0) -> bytes:
    return struct.pack("QQqqfI", x, y, from_, to, value, 0)
