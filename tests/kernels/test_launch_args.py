"""Packing and checking of kernel arguments: each rule with an argument that breaks it."""

from __future__ import annotations

import ctypes
import math
import pickle
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.kernels import Abi, AbiError, ArgumentError, check_param_size, pack
from foxhunt_rt.kernels.abi import bf16

from .conftest import FakeBuffer

F32 = np.dtype(np.float32)


def arguments(abi: Abi, **changes: Any) -> dict[str, Any]:
    """Right arguments for scale_args with R=3, K=8, but for `changes`."""
    args: dict[str, Any] = {
        "x": FakeBuffer(0x1000, 96, F32, "x"),
        "bias": None,
        "y": FakeBuffer(0x2000, 48, F32, "y"),
        "step": FakeBuffer(0x3000, 16, abi.dtype("step_block"), "step"),
        "scratch": FakeBuffer(0x4000, 80, np.dtype(np.uint64), "scratch"),
        "seed": 2**64 - 1,
        "shift": -(2**63),
        "R": 3,
        "K": 8,
        "flags": 2**32 - 1,
        "factor": 0.1,
    }
    return args | changes


def test_bytes_are_the_struct(abi: Abi) -> None:
    packed = pack("scale", arguments(abi, bias=FakeBuffer(0x5000, 32, F32)), abi)
    expected = np.zeros(1, abi.dtype("scale_args"))
    expected[0] = (0x1000, 0x5000, 0x2000, 0x3000, 0x4000, 2**64 - 1, -(2**63), 3, 8, 2**32 - 1, 0.1)
    assert packed.buffer == expected.tobytes()
    assert packed.size == expected.nbytes
    assert ctypes.string_at(packed.address, packed.size) == packed.buffer
    assert ctypes.c_uint64.from_address(packed.params).value == packed.address


def test_uses_say_who_reads_and_writes_how_much(abi: Abi) -> None:
    packed = pack("scale", arguments(abi), abi)
    assert [(use.field, use.direction, use.ptr, use.nbytes) for use in packed.uses] == [
        ("x", "in", 0x1000, 96),
        ("y", "out", 0x2000, 48),
        ("step", "in", 0x3000, 16),
        ("scratch", "inout", 0x4000, 80),  # [?]: all of it
    ]
    assert packed.uses[0].buffer.label == "x"


@pytest.mark.parametrize("value", [None, 0x1000, np.uint64(0), "x", np.zeros(24, np.float32)])
def test_a_pointer_that_is_no_buffer_is_refused(abi: Abi, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(x\): .*give a (buffer|DeviceBuffer)"):
        pack("scale", arguments(abi, x=value), abi)


def test_a_null_pointer_is_refused_before_the_launch(abi: Abi) -> None:
    """K5: a null rng_step reached the kernel, which used it."""
    with pytest.raises(ArgumentError, match=r"^scale\(step\): None, but the kernel uses it: give a buffer"):
        pack("scale", arguments(abi, step=None), abi)
    with pytest.raises(ArgumentError, match=r"^scale\(x\): buffer x has a null address"):
        pack("scale", arguments(abi, x=FakeBuffer(0, 96, F32, "x")), abi)


def test_null_is_allowed_where_nothing_is_touched_and_there_alone(make_abi: Any) -> None:
    """K5: the third pass of a kernel must have its input, the first two need none."""
    text = (
        "typedef struct {\n    const float *x;  //@ in f32[passes/3*4] if_any   null: no third pass\n"
        "    int32_t passes;  //@ p\n    uint32_t pad0_;  //@ pad\n} k_args;\n"
    )
    abi = make_abi(k=text)
    assert pack("k", {"x": None, "passes": 2}, abi).uses == []
    assert pack("k", {"x": FakeBuffer(0x1000, 16, F32), "passes": 3}, abi).uses[0].nbytes == 16
    with pytest.raises(
        ArgumentError, match=r"^k\(x\): None, but the launch touches 4 elements \(\[passes/3\*4\]\): give a buffer"
    ):
        pack("k", {"x": None, "passes": 3}, abi)
    with pytest.raises(AbiError, match="if_any needs a count"):
        make_abi(k=text.replace("passes/3*4", "?"))


def test_an_optional_pointer_left_out_is_said_so(abi: Abi) -> None:
    """K6: what is skipped is an explicit None at one place, never an argument forgotten."""
    args = arguments(abi)
    assert pack("scale", args, abi).buffer[8:16] == bytes(8)
    del args["bias"]
    with pytest.raises(ArgumentError, match=r"^scale\(bias\): missing: give a buffer, or None to leave it out"):
        pack("scale", args, abi)


@pytest.mark.parametrize("name", ["x", "R", "factor"])
def test_missing_argument(abi: Abi, name: str) -> None:
    args = arguments(abi)
    del args[name]
    with pytest.raises(ArgumentError, match=rf"^scale\({name}\): missing: give a"):
        pack("scale", args, abi)


def test_unknown_argument_suggests_the_near_one(abi: Abi) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(facotr\): no such argument: did you mean factor\?"):
        pack("scale", arguments(abi, facotr=1.0), abi)
    with pytest.raises(ArgumentError, match=r"^scale\(zzz\): no such argument: its fields: x, bias, y"):
        pack("scale", arguments(abi, zzz=1.0), abi)


def test_padding_is_not_an_argument(make_abi: Any) -> None:
    abi = make_abi(
        k="typedef struct {\n    uint64_t n;  //@ n\n    int32_t m;  //@ m\n    uint32_t pad0_;  //@ pad\n} k_args;\n"
    )
    assert pack("k", {"n": 1, "m": 2}, abi).buffer == bytes([1] + [0] * 7 + [2] + [0] * 7)
    with pytest.raises(ArgumentError, match=r"^k\(pad0_\): no such argument"):
        pack("k", {"n": 1, "m": 2, "pad0_": 3}, abi)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("R", 2**31), ("R", -(2**31) - 1), ("flags", -1), ("flags", 2**32), ("seed", -1), ("seed", 2**64),
        ("shift", 2**63), ("shift", -(2**63) - 1), ("R", np.int64(2**40)),
    ],
)  # fmt: skip
def test_an_integer_out_of_range_is_refused(abi: Abi, name: str, value: int) -> None:
    """A kernel argument of the wrong width is right or raises, never wrong."""
    with pytest.raises(ArgumentError, match=rf"^scale\({name}\): -?\d+ does not fit u?int\d\d_t: give"):
        pack("scale", arguments(abi, **{name: value}), abi)


@pytest.mark.parametrize("value", [3.0, np.float32(3), "3", None, np.zeros(2, np.int32)])
def test_a_float_is_no_integer(abi: Abi, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(R\): .* is no integer: give an int for int32_t"):
        pack("scale", arguments(abi, R=value), abi)


@pytest.mark.parametrize("value", [np.int8(3), np.uint64(3), np.int64(3), np.array(3)])
def test_numpy_integers_of_any_width_are_right(abi: Abi, value: Any) -> None:
    assert pack("scale", arguments(abi, R=value), abi).buffer == pack("scale", arguments(abi), abi).buffer


@pytest.mark.parametrize("value", ["1", None, 1j, True, 1e39, -1e39])
def test_what_is_no_float_is_refused(abi: Abi, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(factor\): .*(is no number|does not fit float)"):
        pack("scale", arguments(abi, factor=value), abi)


@pytest.mark.parametrize("value", [1, np.float64(0.5), np.float32(0.5), math.inf, math.nan, np.int32(2)])
def test_floats_take_numbers(abi: Abi, value: Any) -> None:
    packed = pack("scale", arguments(abi, factor=value), abi)
    assert packed.buffer[68:72] == np.float32(value).tobytes()


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint8])
def test_element_type_must_agree(abi: Abi, dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(x\): buffer b holds \w+, the kernel takes float32: give one of"):
        pack("scale", arguments(abi, x=FakeBuffer(0x1000, 960, np.dtype(dtype), "b")), abi)


def test_struct_elements_must_agree(abi: Abi) -> None:
    other = np.dtype([("seed", np.uint64), ("lr", np.float32), ("other", np.uint32)])
    with pytest.raises(ArgumentError, match=r"the kernel takes step_block"):
        pack("scale", arguments(abi, step=FakeBuffer(0x3000, 16, other)), abi)
    with pytest.raises(ArgumentError, match=r"buffer b holds step_block, the kernel takes float32"):
        pack("scale", arguments(abi, x=FakeBuffer(0x1000, 960, abi.dtype("step_block"), "b")), abi)


def test_bfloat16_is_taken_by_bits_or_by_name(make_abi: Any) -> None:
    abi = make_abi(k="typedef struct {\n    const uint16_t *x;  //@ in bf16[n]\n    uint64_t n;  //@ n\n} k_args;\n")
    assert pack("k", {"x": FakeBuffer(0x1000, 8, bf16), "n": 4}, abi).uses[0].nbytes == 8
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert pack("k", {"x": FakeBuffer(0x1000, 8, np.dtype(ml_dtypes.bfloat16)), "n": 4}, abi).uses[0].nbytes == 8
    with pytest.raises(ArgumentError, match="the kernel takes bf16"):
        pack("k", {"x": FakeBuffer(0x1000, 8, np.dtype(np.float16)), "n": 4}, abi)


def test_a_freed_buffer_is_refused(abi: Abi) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(x\): buffer gone was freed: give a live one"):
        pack("scale", arguments(abi, x=FakeBuffer(0x1000, 96, F32, "gone", alive=False)), abi)


def test_a_misaligned_buffer_is_refused(abi: Abi) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(x\): buffer odd is not aligned to 4 bytes"):
        pack("scale", arguments(abi, x=FakeBuffer(0x1002, 96, F32, "odd")), abi)


def test_a_short_buffer_is_refused(abi: Abi) -> None:
    with pytest.raises(
        ArgumentError, match=r"^scale\(x\): buffer x has 96 bytes, the launch touches 128 \(\[R\*K\] of f32\)"
    ):
        pack("scale", arguments(abi, R=4), abi)
    with pytest.raises(ArgumentError, match=r"^scale\(y\): buffer y has 44 bytes, the launch touches 48 "):
        pack("scale", arguments(abi, y=FakeBuffer(0x2000, 44, F32, "y")), abi)


def test_a_product_beyond_32_bits_is_not_wrapped(abi: Abi) -> None:
    with pytest.raises(ArgumentError, match=r"touches 17,179,869,184 "):
        pack("scale", arguments(abi, R=2**16, K=2**16), abi)


def test_negative_and_undefined_counts_are_refused(abi: Abi, make_abi: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^scale\(x\): \[R\*K\] is -8 elements"):
        pack("scale", arguments(abi, R=-1), abi)
    other = make_abi(k="typedef struct {\n    float *x;  //@ out f32[8/n]\n    int64_t n;  //@ n\n} k_args;\n")
    with pytest.raises(ArgumentError, match=r"^k\(x\): \[8/n\] divides by zero"):
        pack("k", {"x": FakeBuffer(0x1000, 32, F32), "n": 0}, other)


def test_arrays_in_arguments(make_abi: Any) -> None:
    abi = make_abi(k="typedef struct {\n    int32_t sizes[4];  //@ branches\n    uint64_t n;  //@ n\n} k_args;\n")
    assert pack("k", {"sizes": [1, 2, 3, 4], "n": 0}, abi).buffer[:16] == np.arange(1, 5, dtype=np.int32).tobytes()
    with pytest.raises(ArgumentError, match=r"^k\(sizes\): give a sequence of 4 numbers"):
        pack("k", {"sizes": [1, 2, 3], "n": 0}, abi)


def test_the_size_the_driver_reports_is_compared(abi: Abi) -> None:
    check_param_size("scale", 72, abi)
    with pytest.raises(
        AbiError, match=r"^scale: the loaded image takes 80 bytes of arguments, the header says 72: rebuild"
    ):
        check_param_size("scale", 80, abi)


def test_errors_survive_pickling(abi: Abi) -> None:
    with pytest.raises(ArgumentError) as info:
        pack("scale", arguments(abi, R=2**31), abi)
    copy = pickle.loads(pickle.dumps(info.value))
    assert (str(copy), copy.kernel, copy.field) == (str(info.value), "scale", "R")
    assert "\n" not in str(copy)
