"""Modules, functions, launches, memory and streams: the parts of the driver that need no graph."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from .raw_driver import RawDriver, Status, add_scalar, copy_element, reverse_rows, sum_args

NULL_STREAM = 0


@pytest.mark.parametrize("n", [1, 31, 255, 256, 1000, 4096])
def test_a_struct_argument_is_passed_by_value(cu: RawDriver, n: int) -> None:
    x = cu.array(np.arange(n))
    f = cu.function("basic", "add_scalar")
    args = bytearray(add_scalar(x, 0.5, n))
    cu.launch(f, (n + 127) // 128, 128, bytes(args))
    args[:] = bytes(len(args))  # the launch has its own copy
    np.testing.assert_array_equal(cu.read(x, n), np.arange(n) + 0.5)


def test_param_info_gives_the_size_of_the_struct(cu: RawDriver) -> None:
    f = cu.function("basic", "add_scalar")
    assert tuple(cu.cuFuncGetParamInfo(f, 0)) == (0, 16)
    assert cu.status("cuFuncGetParamInfo", f, 1) == "INVALID_VALUE"


@pytest.mark.parametrize("n", [1, 32, 33, 1000])
@pytest.mark.parametrize("block", [32, 128, 1024])
def test_block_reduction(cu: RawDriver, n: int, block: int) -> None:
    values = np.arange(n)  # sums of small integers are exact in any order
    x, y = cu.array(values), cu.array([np.nan])
    cu.launch(cu.function("basic", "sum"), 1, block, sum_args(x, y, n))
    assert cu.read(y, 1)[0] == values.sum()


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 32), (5, 33), (64, 256), (2, 1024)])
def test_barriers_and_dynamic_shared_memory(cu: RawDriver, rows: int, cols: int) -> None:
    values = np.random.default_rng(1).standard_normal((rows, cols)).astype(np.float32)
    x, y = cu.array(values), cu.array(np.zeros_like(values))
    cu.launch(cu.function("basic", "reverse_rows"), rows, cols, reverse_rows(x, y, rows, cols), shared=4 * cols)
    np.testing.assert_array_equal(cu.read(y, rows * cols).reshape(rows, cols), values[:, ::-1])


@pytest.mark.parametrize(("block", "limit"), [(32, 0), (32, 32), (96, 40), (100, 100), (1024, 1)])
def test_barriers_that_vote(cu: RawDriver, block: int, limit: int) -> None:
    out = cu.array(np.full(9, -1), np.int32)
    cu.launch(cu.function("conformance", "block_votes"), 3, block, struct.pack("Qii", out, 3, limit))
    expected = [min(block, limit), int(limit > 0), int(limit >= block)]
    np.testing.assert_array_equal(cu.read(out, 9, np.int32), expected * 3)


@pytest.mark.parametrize("bits", [0, 0xFFFFFFFF, 0x80010003])
def test_warp_collectives(cu: RawDriver, bits: int) -> None:
    out = cu.array(np.full(160, -1), np.int32)
    cu.launch(cu.function("conformance", "warp_votes"), 1, 32, struct.pack("QII", out, bits, 0))
    ballot, up, down, segment, half = cu.read(out, 160, np.int32).reshape(5, 32)
    lanes = np.arange(32)
    np.testing.assert_array_equal(ballot.view(np.uint32), bits)
    np.testing.assert_array_equal(up, np.where(lanes == 0, 0, lanes - 1) * 10)
    np.testing.assert_array_equal(down, np.where(lanes == 31, 31, lanes + 1) * 10)
    np.testing.assert_array_equal(segment, (lanes // 8 * 8 + 3) * 10)
    np.testing.assert_array_equal(half, np.where(lanes < 16, bits & 0xFFFF, bits >> 16))


def test_warp_shuffles_reduce(cu: RawDriver) -> None:
    values = np.arange(64 * 7).reshape(-1, 32)
    x, y = cu.array(values), cu.array(np.zeros(14))
    cu.launch(cu.function("basic", "warp_sum"), 7, 64, sum_args(x, y, values.size))
    np.testing.assert_array_equal(cu.read(y, 14), values.sum(1))


def test_two_loads_of_an_image_have_separate_globals(cu: RawDriver) -> None:
    out = cu.array([0], np.int32)
    modules = [cu.module("conformance"), cu.module("conformance")]
    first, second = (cu.cuModuleGetFunction(m, b"bump_global") for m in modules)
    for function, expected in [(first, 1), (first, 2), (second, 1), (first, 3)]:
        cu.launch(function, 1, 1, struct.pack("Q", out))
        assert cu.read(out, 1, np.int32)[0] == expected
    (p, size), (q, _) = (cu.cuModuleGetGlobal(m, b"bump_count") for m in modules)
    assert int(p) != int(q) and size == 4
    assert [cu.read(int(a), 1, np.int32)[0] for a in (p, q)] == [3, 1]
    cu.cuModuleUnload(modules[0])
    cu.launch(second, 1, 1, struct.pack("Q", out))
    assert cu.read(out, 1, np.int32)[0] == 2


def test_a_missing_name_is_not_found(cu: RawDriver) -> None:
    m = cu.module("basic")
    assert cu.status("cuModuleGetFunction", m, b"no_such_kernel") == "NOT_FOUND"
    assert cu.status("cuModuleGetGlobal", m, b"no_such_variable") == "NOT_FOUND"


def test_dynamic_shared_memory_above_48_kb_is_opt_in(cu: RawDriver) -> None:
    f = cu.function("basic", "reverse_rows")
    attribute = cu.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    x, y = cu.array(np.arange(8)), cu.array(np.zeros(8))
    with pytest.raises(Status, match="INVALID_VALUE"):
        cu.launch(f, 1, 8, reverse_rows(x, y, 1, 8), shared=64 * 1024)
    cu.cuFuncSetAttribute(f, attribute, 64 * 1024)
    cu.launch(f, 1, 8, reverse_rows(x, y, 1, 8), shared=64 * 1024)
    np.testing.assert_array_equal(cu.read(y, 8), np.arange(8)[::-1])


@pytest.mark.parametrize(("grid", "block"), [(0, 32), (1, 0), (1, 1025)])
def test_launch_dimensions_are_checked(cu: RawDriver, grid: int, block: int) -> None:
    with pytest.raises(Status, match="INVALID_VALUE"):
        cu.launch(cu.function("basic", "empty"), grid, block, bytes(8))


def test_fills_of_each_width(cu: RawDriver) -> None:
    p = cu.array(np.zeros(16), np.uint8)
    cu.cuMemsetD32(p, 0x01020304, 2)
    cu.cuMemsetD16(p + 8, 0xABCD, 2)
    cu.cuMemsetD8(p + 12, 0x77, 3)
    expected = struct.pack("<IIHHBBBB", 0x01020304, 0x01020304, 0xABCD, 0xABCD, 0x77, 0x77, 0x77, 0)
    assert cu.read(p, 16, np.uint8).tobytes() == expected
    assert cu.status("cuMemsetD32", p + 1, 0, 1) == "INVALID_VALUE"  # not aligned to its width


def test_asynchronous_copies_in_stream_order(cu: RawDriver) -> None:
    s = cu.stream()
    host, mapped = cu.mapped(4)
    x, y = cu.array(np.zeros(4)), cu.array(np.zeros(4))
    source = np.arange(4, dtype=np.float32)
    cu.cuMemcpyHtoDAsync(x, source.ctypes.data, 16, s)
    source[:] = -1  # pageable memory is staged before the call returns
    cu.launch(cu.function("basic", "add_scalar"), 1, 32, add_scalar(x, 10.0, 4), s)
    cu.cuMemcpyDtoDAsync(y, x, 16, s)
    cu.cuMemcpyDtoHAsync(host.ctypes.data, y, 16, s)
    cu.cuStreamSynchronize(s)
    np.testing.assert_array_equal(host, np.arange(4) + 10)
    assert mapped


def test_mapped_memory_is_visible_after_a_synchronization(cu: RawDriver) -> None:
    host, p = cu.mapped(2, np.uint64)
    f = cu.function("conformance", "publish_word")
    for value in (7, 2**63 + 1):
        cu.launch(f, 1, 1, struct.pack("QQQ", p, p + 8, value))
        cu.cuCtxSynchronize()
        assert host.tolist() == [value, value]
    host[:] = 3
    y = cu.array([0, 0], np.uint64)
    cu.cuMemcpyDtoD(y, p, 16)
    assert cu.read(y, 2, np.uint64).tolist() == [3, 3]


def test_a_poll_sees_mapped_memory_without_a_synchronization(cu: RawDriver) -> None:
    host, p = cu.mapped(2, np.uint64)
    s = cu.stream()
    cu.launch(cu.function("conformance", "publish_word"), 1, 1, struct.pack("QQQ", p, p + 8, 5), s)
    while cu.status("cuStreamQuery", s) == "NOT_READY":
        pass
    assert host.tolist() == [5, 5]


def test_events_order_streams(cu: RawDriver) -> None:
    a, b = cu.stream(), cu.stream()
    f = cu.function("basic", "add_scalar")
    x = cu.array(np.zeros(1000))
    event = cu.cuEventCreate(0)
    for step in range(20):
        cu.launch(f, 8, 128, add_scalar(x, 1.0, 1000), a if step % 2 else b)
        cu.cuEventRecord(event, a if step % 2 else b)
        cu.cuStreamWaitEvent(b if step % 2 else a, event, 0)
    cu.cuStreamSynchronize(a)
    cu.cuStreamSynchronize(b)
    np.testing.assert_array_equal(cu.read(x, 1000), 20)


def test_event_times(cu: RawDriver) -> None:
    start, end = cu.cuEventCreate(0), cu.cuEventCreate(0)
    cu.cuEventRecord(start, NULL_STREAM)
    cu.launch(cu.function("basic", "empty"), 1, 32, bytes(8))
    cu.cuEventRecord(end, NULL_STREAM)
    cu.cuEventSynchronize(end)
    assert 0 <= cu.cuEventElapsedTime(start, end) < 10_000
    untimed = cu.cuEventCreate(cu.api.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
    cu.cuEventRecord(untimed, NULL_STREAM)
    assert cu.status("cuEventElapsedTime", start, untimed) == "INVALID_HANDLE"


def test_host_functions_run_in_stream_order(cu: RawDriver) -> None:
    import ctypes

    seen = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append(data))
    s = cu.stream()
    for k in (1, 2, 3):
        cu.cuLaunchHostFunc(s, cu.api.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), k)
    cu.cuStreamSynchronize(s)
    assert seen == [1, 2, 3]


def test_pointer_attributes_and_ranges(cu: RawDriver) -> None:
    p = int(cu.cuMemAlloc(1000))
    _, m = cu.mapped(10)
    attribute = cu.api.CUpointer_attribute
    kinds = cu.api.CUmemorytype
    assert cu.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) == kinds.CU_MEMORYTYPE_DEVICE.value
    assert cu.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, m) == kinds.CU_MEMORYTYPE_HOST.value
    assert int(cu.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 500)) == p
    base, size = cu.cuMemGetAddressRange(p + 999)
    assert (int(base), size) == (p, 1000)
    assert p % 256 == 0
    assert cu.status("cuPointerGetAttribute", attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000) == "INVALID_VALUE"


def test_memory_is_freed_once(cu: RawDriver) -> None:
    p = cu.cuMemAlloc(16)
    cu.cuMemFree(p)
    assert cu.status("cuMemFree", p) == "INVALID_VALUE"
    assert cu.status("cuMemAlloc", 0) == "INVALID_VALUE"
    assert cu.status("cuMemAlloc", 1 << 50) == "OUT_OF_MEMORY"


def test_stream_ordered_allocation(cu: RawDriver) -> None:
    s = cu.stream()
    p = cu.cuMemAllocAsync(4000, s)
    cu.cuMemsetD32Async(p, 0x40400000, 1000, s)
    q = cu.array(np.zeros(1000))
    cu.cuMemcpyDtoDAsync(q, p, 4000, s)
    cu.cuMemFreeAsync(p, s)
    cu.cuStreamSynchronize(s)
    np.testing.assert_array_equal(cu.read(q, 1000), 3.0)


def test_the_current_context_is_per_thread(cu: RawDriver) -> None:
    found = []

    def other() -> None:
        found.append(cu.status("cuMemAlloc", 16))
        cu.cuCtxSetCurrent(cu.context)
        found.append(cu.status("cuMemAlloc", 16))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == ["INVALID_CONTEXT", "CUDA_SUCCESS"]


def test_an_illegal_address_is_sticky(script: Callable[..., str]) -> None:
    assert (
        script(
            """
cu = RawDriver()
x = cu.array([1, 2, 3])
f = cu.function("conformance", "copy_element")
s = cu.stream()
cu.launch(f, 1, 32, copy_element(0, x, 0, 0), s)  # reads a null pointer; the launch itself succeeds
print(cu.status("cuStreamSynchronize", s))
print(cu.status("cuMemAlloc", 16), cu.status("cuCtxSynchronize"), cu.status("cuStreamCreate", 0))
"""
        )
        == "ILLEGAL_ADDRESS\nILLEGAL_ADDRESS ILLEGAL_ADDRESS ILLEGAL_ADDRESS"
    )


def test_an_error_in_a_graph_is_sticky(script: Callable[..., str]) -> None:
    assert (
        script(
            """
cu = RawDriver()
x = cu.array([1, 2, 3])
f = cu.function("conformance", "copy_element")
s = cu.stream()
with cu.capture(s) as graph:
    cu.launch(f, 1, 32, copy_element(0, x, 0, 0), s)
cu.cuGraphLaunch(cu.instantiate(graph[0]), s)
print(cu.status("cuStreamSynchronize", s), cu.status("cuMemAlloc", 16))
"""
        )
        == "ILLEGAL_ADDRESS ILLEGAL_ADDRESS"
    )


def test_an_element_can_be_copied(cu: RawDriver) -> None:
    x, y = cu.array([1, 2, 3]), cu.array([0, 0])
    cu.launch(cu.function("conformance", "copy_element"), 2, 64, copy_element(x, y, 2, 1, 0.25))
    assert cu.read(y, 2).tolist() == [0, 3.25]
