"""Memory across libraries without copies: DLPack and the CUDA array interface, in both directions, owners kept alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import abi
from foxhunt_rt.driver import CaptureError, LifetimeError, Stream, capture, dlpack
from foxhunt_rt.graph import DeclarationError, Runtime, StepGraph
from foxhunt_rt.interop import ForeignMemoryError, from_cuda_array_interface, from_dlpack, wrap

N = 100


def adder(runtime: Runtime, built: list[StepGraph], x: Any, value: float = 1.0) -> StepGraph:
    plan = runtime.plan("adder")
    with plan.child("add", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (2,), (64,), dict(x=x, value=value, n=x.size))
    built.append(plan.build(ungraphed=False))
    return built[-1]


class Device:
    """A producer of the CUDA array interface, as CuPy or Numba would be one."""

    def __init__(self, buffer: Any, **changes: Any) -> None:
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, **changes}
        self.keep = buffer


# ---------------------------------------------------------------------- ours for others


@pytest.mark.hostsim
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.int64, np.float16, np.bool_])
def test_numpy_sees_the_same_memory(runtime: Runtime, dtype: Any) -> None:
    host = np.arange(24).reshape(2, 3, 4).astype(dtype)
    buffer = runtime.array(host, "x")
    array = np.from_dlpack(buffer)
    assert array.dtype == dtype and array.shape == (2, 3, 4)
    np.testing.assert_array_equal(array, host)
    buffer.copy_from(np.ones((2, 3, 4), dtype))
    again = np.from_dlpack(buffer[1:])
    assert (array == dtype(1)).all() and again.shape == (1, 3, 4)
    assert array.ctypes.data == buffer.ptr and again.ctypes.data == buffer[1:].ptr


@pytest.mark.hostsim
def test_an_export_waits_for_what_is_queued(runtime: Runtime, built: list[StepGraph]) -> None:
    x = runtime.zeros(N, np.float32, "x")
    step = adder(runtime, built, x)
    for _ in range(5):
        step.launch()
    assert np.from_dlpack(x)[0] == 5


@pytest.mark.hostsim
def test_jax_sees_the_same_memory(runtime: Runtime) -> None:
    jax = pytest.importorskip("jax")
    buffer = runtime.array(np.arange(N, dtype=np.float32), "x")
    assert float(jax.numpy.from_dlpack(buffer).sum()) == N * (N - 1) / 2


def test_an_export_keeps_the_memory(runtime: Runtime) -> None:
    buffer = runtime.array(np.arange(N, dtype=np.float32), "x")
    capsule = buffer.__dlpack__(max_version=(1, 0))
    with pytest.raises(LifetimeError, match="used by 1 DLPack consumer"):
        buffer.free()
    del capsule  # not consumed: its destructor lets go
    buffer.free()
    buffer = runtime.array(np.arange(N, dtype=np.float32), "y")
    allocation = weakref.ref(buffer.allocation)
    capsule = buffer.__dlpack__()
    del buffer
    gc.collect()
    assert allocation() is not None
    taken = dlpack.consume(capsule, "y")
    del capsule
    gc.collect()
    assert allocation() is not None
    taken.release()
    gc.collect()
    assert allocation() is None


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 3)])
def test_a_capsule_round_trip(runtime: Runtime, version: Any) -> None:
    host = np.arange(30, dtype=np.int32).reshape(5, 6)
    buffer = runtime.array(host, "x")
    taken = dlpack.consume(buffer.__dlpack__(max_version=version), "x")
    assert (taken.ptr, taken.shape, taken.dtype) == (buffer.ptr, (5, 6), np.dtype(np.int32))
    assert taken.device == buffer.__dlpack_device__() and not taken.read_only
    taken.release()
    assert buffer.allocation.exports == 0


def test_what_an_export_refuses(runtime: Runtime) -> None:
    buffer = runtime.zeros(4, np.float32, "x")
    block = runtime.zeros(1, abi.dtype("step_block"), "block")
    with pytest.raises(BufferError, match="no type for"):
        block.__dlpack__()
    with pytest.raises(BufferError, match="makes no copy"):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="stays on its device"):
        buffer.__dlpack__(dl_device=(10, 0))
    with Stream(runtime.context) as stream, capture(stream):
        pass
    buffer.free()
    with pytest.raises(LifetimeError, match="x was freed"):
        buffer.__dlpack__()
    with pytest.raises(LifetimeError, match="x was freed"):
        _ = buffer.__cuda_array_interface__


def test_an_export_inside_a_capture_is_refused(runtime: Runtime) -> None:
    buffer = runtime.zeros(4, np.float32, "x")
    with pytest.raises(CaptureError, match="__dlpack__ is not legal inside a capture"), capture(runtime.stream):
        buffer.__dlpack__()


def test_the_cuda_array_interface_of_ours(runtime: Runtime) -> None:
    buffer = runtime.zeros((3, 4), np.float32, "x")
    assert buffer.__cuda_array_interface__ == {
        "shape": (3, 4), "typestr": "<f4", "data": (buffer.ptr, False), "strides": None, "version": 3,
        "stream": int(runtime.stream.handle)}  # fmt: skip
    block = runtime.mapped(2, abi.dtype("guard_block"), "guard")
    assert block.__cuda_array_interface__["descr"] == [("key", "<u8")]
    view = buffer[1:2]
    assert view.__cuda_array_interface__["data"][0] == buffer.ptr + 16


# ---------------------------------------------------------------------- theirs for us


def test_kernels_write_numpy_memory(runtime: Runtime, built: list[StepGraph]) -> None:
    host = np.zeros(N, np.float32)
    buffer = wrap(runtime, host, "host")
    step = adder(runtime, built, buffer)
    step.launch()
    step.launch()
    runtime.synchronize()
    assert (host == 2).all() and (buffer.host == 2).all()
    buffer.copy_from(np.full(N, 7, np.float32))
    assert (host == 7).all()


def test_a_wrapped_owner_lives_as_long_as_the_graph(runtime: Runtime, built: list[StepGraph]) -> None:
    class Owner(np.ndarray):
        pass

    host = np.zeros(N, np.float32).view(Owner)
    gone: list[bool] = []
    weakref.finalize(host, gone.append, True)
    buffer = wrap(runtime, host, "host")
    step = adder(runtime, built, buffer)
    del host, buffer
    gc.collect()
    assert not gone
    step.launch()
    runtime.synchronize()
    step.close()
    built.clear()
    del step
    gc.collect()
    assert gone == [True]


def test_a_graph_pins_what_it_wraps(runtime: Runtime, built: list[StepGraph]) -> None:
    buffer = wrap(runtime, np.zeros(N, np.float32), "host")
    step = adder(runtime, built, buffer)
    with pytest.raises(LifetimeError, match="used by 1 built graph"):
        buffer.free()
    step.close()
    buffer.free()
    with pytest.raises(LifetimeError, match="freed"):
        buffer.to_numpy()


def test_read_only_memory_is_read_and_never_written(runtime: Runtime, built: list[StepGraph]) -> None:
    host = np.arange(N, dtype=np.float32)
    host.flags.writeable = False
    buffer = wrap(runtime, host, "frozen")
    total = runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("reads")
    with plan.child("sum", reads=[buffer], writes=[total]) as c:
        c.launch("sum", (1,), (64,), dict(x=buffer, sum=total, n=N))
    built.append(plan.build())
    built[0].launch()
    assert total.to_numpy()[0] == N * (N - 1) / 2
    with pytest.raises(DeclarationError, match="frozen, which its owner gave out read-only"):
        plan.child("bad", reads=[], writes=[buffer])


@pytest.mark.hostsim
def test_jax_arrays_are_read_in_place(runtime: Runtime) -> None:
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(N, dtype=np.float32) * 2
    buffer = from_dlpack(runtime, array, "jax")
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(N) * 2)
    assert buffer.ptr == array.unsafe_buffer_pointer()
    with pytest.raises(DeclarationError, match="read-only"):
        runtime.plan("bad").child("bad", reads=[], writes=[buffer])


def test_our_own_buffers_come_back(runtime: Runtime) -> None:
    buffer = runtime.array(np.arange(N, dtype=np.float32), "x")
    assert wrap(runtime, buffer, "x") is buffer
    twin = from_dlpack(runtime, buffer, "twin")
    assert twin.ptr == buffer.ptr and twin.shape == buffer.shape
    np.testing.assert_array_equal(twin.to_numpy(), np.arange(N))
    with pytest.raises(LifetimeError, match="DLPack consumer"):
        buffer.free()
    twin.free()
    buffer.free()


def test_the_cuda_array_interface_of_others(runtime: Runtime, built: list[StepGraph]) -> None:
    source = runtime.zeros((4, 25), np.float32, "source")
    theirs = Stream(runtime.context)
    buffer = wrap(runtime, Device(source, stream=int(theirs.handle)), "theirs")
    assert (buffer.ptr, buffer.shape, buffer.dtype) == (source.ptr, (4, 25), np.float32)
    adder(runtime, built, buffer).launch()
    assert source.to_numpy().sum() == 100
    block = runtime.zeros(1, abi.dtype("guard_block"), "guard")
    assert wrap(runtime, Device(block), "struct").dtype == abi.dtype("guard_block")
    ordered = wrap(runtime, Device(source, strides=(100, 4)), "strided")
    assert ordered.shape == (4, 25)
    for stream in (None, 1, 2):
        wrap(runtime, Device(source, stream=stream), "any stream")


def test_a_producers_stream_is_waited_for(runtime: Runtime) -> None:
    """Work queued in the producer's stream before the exchange is seen by ours behind it."""
    theirs = Stream(runtime.context)
    x = runtime.zeros(N, np.float32, "x")
    runtime.synchronize()
    with runtime.context.current():
        runtime.context.call(runtime.context.cu.cuMemsetD32Async, x.ptr, 0x3F800000, N, theirs.handle)
    buffer = from_cuda_array_interface(runtime, Device(x, stream=int(theirs.handle)), "theirs")
    assert (buffer.to_numpy() == 1).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 1}, "version 1 is not supported"),
        ({"mask": object()}, "masked arrays"),
        ({"strides": (4, 400)}, "not dense row-major"),
        ({"shape": (0, 25)}, "holds nothing"),
        ({"data": (0x10, False)}, "no memory of the driver"),
        ({"stream": 0}, "stream 0"),
    ],
)
def test_what_is_refused(runtime: Runtime, changes: dict[str, Any], text: str) -> None:
    source = runtime.zeros((4, 25), np.float32, "source")
    with pytest.raises(ForeignMemoryError, match=text):
        wrap(runtime, Device(source, **changes), "x")


def test_host_arrays_that_are_refused(runtime: Runtime) -> None:
    for array, text in (
        (np.zeros((4, 6), np.float32)[:, ::2], "not dense row-major"),
        (np.zeros((4, 6), np.float32).T, "not dense row-major"),
        (np.zeros((0, 6), np.float32), "holds nothing"),
        (np.zeros(4, np.complex64), "has no dtype here"),
        (object(), "neither __dlpack__ nor"),
    ):
        with pytest.raises(ForeignMemoryError, match=text):
            wrap(runtime, array, "x")

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 99

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("the device is looked at first")

    with pytest.raises(ForeignMemoryError, match="lies on CUDA device 99"):
        wrap(runtime, Elsewhere(), "x")


def test_a_capsule_is_consumed_once(runtime: Runtime) -> None:
    class Used:
        capsule = np.zeros(4, np.float32).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    first = wrap(runtime, Used(), "first")
    with pytest.raises(ForeignMemoryError, match="consumed once"):
        wrap(runtime, Used(), "second")
    first.free()


class Movable(Device):
    """A producer that says where its data is now, as PyTorch's tensors do."""

    def data_ptr(self) -> int:
        address: int = self.__cuda_array_interface__["data"][0]
        return address


def test_a_buffer_whose_owner_moved_its_data_is_refused_before_the_launch(
    runtime: Runtime, built: list[StepGraph]
) -> None:
    first, second = runtime.zeros(N, np.float32, "first"), runtime.zeros(N, np.float32, "second")
    owner = Movable(first)
    x = wrap(runtime, owner, "x")
    plan = runtime.plan("moved")
    with plan.child("add", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (2,), (64,), dict(x=x, value=1.0, n=N))
    step = plan.build()
    built.append(step)
    step.launch()
    owner.__cuda_array_interface__ = second.__cuda_array_interface__  # what resize_ does
    for launch in (step.launch, step.run_ungraphed, step.run_children):
        with pytest.raises(LifetimeError, match=f"x: its owner has moved it from {first.ptr:#x} to {second.ptr:#x}"):
            launch()
    with runtime.context.current(), pytest.raises(LifetimeError, match="rebuild the step"):
        step.launch()
    assert (first.to_numpy() == 1).all() and not second.to_numpy().any(), "nothing was launched"
    owner.__cuda_array_interface__ = first.__cuda_array_interface__
    step.launch()
    assert (first.to_numpy() == 2).all()


def test_our_own_memory_cannot_be_re_pointed_under_a_graph(runtime: Runtime, built: list[StepGraph]) -> None:
    """Pins instead of generations: what a graph names is neither freed nor given to anybody else."""
    x = runtime.zeros(N, np.float32, "x")
    step = adder(runtime, built, x)
    with pytest.raises(LifetimeError, match="x is used by 1 built graph"):
        x.free()
    step.launch()
    assert (x.to_numpy() == 1).all()


@pytest.mark.gpu
def test_a_tensor_that_is_resized_is_refused_before_the_launch(runtime: Runtime, built: list[StepGraph]) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(N, device="cuda")
    step = adder(runtime, built, wrap(runtime, tensor, "x"))
    step.launch()
    runtime.synchronize()
    assert float(tensor.sum()) == N
    tensor.resize_(1 << 22)
    with pytest.raises(LifetimeError, match="x: its owner has moved it"):
        step.launch()
