"""DeviceBuffer and MappedBuffer: contents, views, widths, lifetimes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from foxhunt_rt.driver import (
    CaptureError,
    FoxhuntError,
    LifetimeError,
    OutOfMemory,
    capture,
    counts,
    memset,
    memset_pattern,
)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 1, 2), (1001,)])
def test_round_trip(runtime, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    assert np.array_equal(runtime.array(array, "x").to_numpy(), array)


def test_alignment(runtime):
    for n in (1, 3, 1000):
        assert runtime.empty(n, np.uint8, "x").ptr % 256 == 0


def test_copy_refuses_another_dtype_or_shape_and_copies_nothing(runtime):
    x = runtime.array(np.ones(4, np.float32), "x")
    for wrong in (np.zeros(4), np.zeros(5, np.float32), np.zeros((2, 2), np.float32)):
        with pytest.raises(FoxhuntError, match="nothing was copied"):
            x.copy_from(wrong)
    assert x.to_numpy().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "n", "value", "call"),
    [
        (np.float32, 1000, 0, "cuMemsetD32Async"),
        (np.float32, 3, 1.5, "cuMemsetD32Async"),
        (np.float64, 5, 0, "cuMemsetD32Async"),
        (np.uint8, 64, 7, "cuMemsetD32Async"),
        (np.uint8, 6, 7, "cuMemsetD16Async"),
        (np.uint8, 3, 7, "cuMemsetD8Async"),
        (np.int16, 3, -2, "cuMemsetD16Async"),
        (np.int16, 4, -2, "cuMemsetD32Async"),
        (np.int64, 2, -1, "cuMemsetD32Async"),
    ],
)
def test_fill_uses_the_widest_memset(runtime, dtype, n, value, call):
    """Known failure K18: byte-wide memsets where 32-bit ones fit."""
    x = runtime.empty(n, dtype, "x")
    before = counts[call]
    x.fill(value)
    assert counts[call] == before + 1
    assert np.array_equal(x.to_numpy(), np.full(n, value, dtype))


def test_fill_refuses_what_no_pattern_makes(runtime):
    x = runtime.zeros(4, np.float64, "x")
    with pytest.raises(FoxhuntError, match="no repeated 32-bit pattern"):
        x.fill(0.1)
    with pytest.raises(FoxhuntError, match="only 0 fills it"):
        memset_pattern(runtime.zeros(2, np.dtype([("a", np.int32)]), "s"), 1)


def test_views_share_memory(runtime):
    x = runtime.zeros((4, 8), np.float32, "x")
    x[1:3].fill(2)
    assert x.to_numpy().sum() == 2 * 16
    assert x[1:3].shape == (2, 8) and x[1:3].ptr == x.ptr + 32
    assert x.view((32,), np.int32).to_numpy()[8] == np.float32(2).view(np.int32)
    with pytest.raises(FoxhuntError, match="is not 128 bytes long"):
        x.view((5,))
    with pytest.raises(TypeError, match="slice of step 1"):
        x[::2]


def test_device_to_device_copy(runtime):
    x, y = runtime.array(np.arange(5, dtype=np.int32), "x"), runtime.zeros(5, np.int32, "y")
    y.copy_from_device(x)
    assert y.to_numpy().tolist() == [0, 1, 2, 3, 4]


def test_mapped_memory_is_seen_by_kernel_and_host(runtime):
    m = runtime.mapped(100, np.float32, "m")
    assert not m.host.any()
    m.host[:] = 1
    runtime.ungraphed("test").launch("add_scalar", (1,), (128,), dict(x=m, value=2.0, n=100))
    assert m.to_numpy().tolist() == [3.0] * 100


def test_use_after_free_is_an_error(runtime):
    x = runtime.zeros(4, np.float32, "x")
    view = x[:2]
    x.free()
    x.free()
    for use in (x.to_numpy, view.to_numpy, lambda: x.fill(0)):
        with pytest.raises(LifetimeError, match="was freed"):
            use()


def test_a_view_keeps_the_memory(runtime):
    view = runtime.array(np.arange(4, dtype=np.float32), "x")[2:]
    gc.collect()
    assert view.to_numpy().tolist() == [2.0, 3.0]


@pytest.mark.parametrize("shape", [0, (3, 0), (0,)])
def test_empty_buffers_are_refused(runtime, shape):
    with pytest.raises(FoxhuntError, match="holds nothing"):
        runtime.zeros(shape, np.float32, "x")


def test_out_of_memory_says_who_holds_what(runtime):
    keep = runtime.zeros(1 << 20, np.float32, "the largest")
    with pytest.raises(OutOfMemory, match=r"too much: .* bytes.*free.*largest.*the largest 4,194,304"):
        runtime.empty(1 << 50, np.uint8, "too much")
    assert keep.alive


def test_no_allocation_and_no_wait_inside_a_capture(runtime):
    x = runtime.zeros(4, np.float32, "x")
    with capture(runtime.stream) as recording:
        with pytest.raises(CaptureError, match="allocate before"):
            runtime.empty(4, np.float32, "y")
        with pytest.raises(CaptureError, match="not legal inside a capture"):
            x.to_numpy()
        with pytest.raises(CaptureError, match="end the capture first"):
            runtime.synchronize()
        memset(runtime.context, x, 5, runtime.stream)
    assert [n.kind for n in recording.graph.nodes()] == ["memset"]
    assert x.to_numpy().tolist() == [0, 0, 0, 0]
    executable = recording.graph.instantiate(runtime.stream)
    with runtime.context.current():
        executable.launch(runtime.stream)
    assert x.to_numpy().tolist() == [5, 5, 5, 5]
    executable.close()


def test_a_buffer_without_axes_is_copied_in_and_out(runtime):
    """NumPy's ascontiguousarray gives a scalar an axis: a wrapped scalar of another library could not be put back."""
    x = runtime.zeros(1, np.float32, "x").view(())
    x.copy_from(np.float32(2.5))
    assert x.to_numpy().shape == ()
    assert float(x.to_numpy()) == 2.5


def test_frees_are_counted_as_allocations_are(runtime):
    before = counts["cuMemAlloc"], counts["cuMemFree"]
    runtime.zeros(4, np.float32, "x").free()
    assert (counts["cuMemAlloc"], counts["cuMemFree"]) == (before[0] + 1, before[1] + 1)
