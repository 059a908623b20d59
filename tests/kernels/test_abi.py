"""Layouts, annotations and constants from C headers; every rule of the format has a header that breaks it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foxhunt_rt.kernels import Abi, AbiError

MakeAbi = Callable[..., Abi]


def test_struct_layout_is_that_of_ctypes(abi: Abi) -> None:
    class Expected(ctypes.Structure):
        _fields_ = (
            ("x", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("y", ctypes.c_void_p), ("step", ctypes.c_void_p),
            ("scratch", ctypes.c_void_p), ("seed", ctypes.c_uint64), ("shift", ctypes.c_int64), ("R", ctypes.c_int32),
            ("K", ctypes.c_int32), ("flags", ctypes.c_uint32), ("factor", ctypes.c_float),
        )  # fmt: skip

    dtype = abi.dtype("scale_args")
    assert dtype.itemsize == ctypes.sizeof(Expected) == abi.struct("scale_args").size
    assert dtype.names == tuple(name for name, *_ in Expected._fields_)
    for name, *_ in Expected._fields_:
        assert dtype.fields is not None
        assert dtype.fields[name][1] == getattr(Expected, name).offset


def test_annotations(abi: Abi) -> None:
    info = abi.struct("scale_args")
    x, bias, y, step, scratch = info.fields[:5]
    assert (x.direction, x.element, x.optional, x.comment) == ("in", "f32", False, "(R, K)")
    assert x.count is not None
    assert x.count.text == "R*K"
    assert (bias.optional, bias.comment) == (True, "null: no bias")
    assert (y.direction, y.comment) == ("out", "")
    assert (step.element, abi.element_dtype(step)) == ("step_block", abi.dtype("step_block"))
    assert (scratch.direction, scratch.count) == ("inout", None)
    assert info["R"].comment == "rows"
    assert (info.file, info.line) == ("scale.h", 1)


def test_a_second_name_is_for_the_arguments_of_another_kernel(make_abi: MakeAbi) -> None:
    struct = "typedef struct {\n float *x; //@ out f32[n]\n int32_t n;\n uint32_t pad0_; //@ pad\n} one_args;\n"
    abi = make_abi(k=struct + "typedef one_args other_args; /* the same */\n")
    one, other = abi.struct("one_args"), abi.struct("other_args")
    assert (other.name, other.line, other.fields) == ("other_args", 6, one.fields) and other["x"] == one["x"]
    assert abi.dtype("other_args") == abi.dtype("one_args")
    for alias in ("typedef one_args other;", "typedef uint32_t other_args;"):
        with pytest.raises(AbiError, match=r"k.h:6: typedef .* only an argument struct declared above"):
            make_abi(k=struct + alias + "\n")


def test_shared_structs_with_arrays_and_nesting(make_abi: MakeAbi) -> None:
    abi = make_abi(
        "#define SLOTS 3\ntypedef struct {\n uint16_t a;\n uint8_t b[2];\n} small;\n"
        "typedef struct {\n small s[SLOTS];\n float f; /* four */\n} outer;\n"
    )
    expected = np.dtype([("s", [("a", "<u2"), ("b", "u1", (2,))], (3,)), ("f", "<f4")])
    assert abi.dtype("outer") == expected
    assert abi.struct("outer")["f"].comment == "four"


def test_constants(make_abi: MakeAbi) -> None:
    abi = make_abi("#define A 1\n#define B 0x10 /* sixteen */\n#define C 3 // three\n")
    assert (abi.constant("A"), abi.constant("B"), abi.constant("C")) == (1, 16, 3)
    with pytest.raises(AbiError, match="no constant AA in the ABI headers: did you mean A"):
        abi.constant("AA")


def test_unknown_struct_suggests_the_near_one(abi: Abi) -> None:
    with pytest.raises(AbiError, match=r"no struct scal_args in the ABI headers: did you mean scale_args\?"):
        abi.struct("scal_args")


def test_a_constant_may_stand_in_a_count(make_abi: MakeAbi) -> None:
    abi = make_abi(k="typedef struct {\n    const float *x; //@ in f32[SLOTS]\n} k_args;\n")
    count = abi.struct("k_args")["x"].count
    assert count is not None
    assert count.evaluate(abi.constants) == 4


ONE = "typedef struct {{\n    {}\n    int32_t n;  //@ n\n    int32_t m;  //@ m\n}} k_args;\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("const float *x;", r"k.h:2: x: a pointer needs an annotation"),
        ("const float *x;  //@ f32[n]", r"k.h:2: x: a pointer needs an annotation"),
        ("const float *x;  //@ in f32", r"k.h:2: x: a pointer needs an annotation"),
        ("const float *x;  //@ in f32[n*]", r"k.h:2: x: 'n\*' is no expression"),
        ("const float *x;  //@ in f32[n%2]", r"k.h:2: x: 'n%2' holds something other"),
        ("const float *x;  //@ in f32[q]", r"k.h:2: x: \[q\] names q, no integer field"),
        ("const float *x;  //@ in f33[n]", r"k.h:2: x: element type f33 is unknown"),
        ("const float *x;  //@ in f64[n]", r"k.h:2: x: declared float \* but annotated f64"),
        ("float *x;  //@ in f32[n]", r"k.h:2: x: `in` goes with const"),
        ("const float *x;  //@ out f32[n]", r"k.h:2: x: `in` goes with const"),
        ("const float *x;  //@ in f32[n] opt", r"k.h:2: x: 'opt' after the annotation"),
        ("const float *x[2];  //@ in f32[n]", r"k.h:2: x: arrays of pointers"),
        ("const float **x;  //@ in f32[n]", r"k.h:2: not a field"),
        ("uint16_t x;  //@ small\n    uint16_t y;\n    uint32_t z;", r"k.h:2: x: type uint16_t is not allowed here"),
        ("int32_t a, b;  //@ two", r"k.h:2: not a field"),
        ("uint32_t pad0_;\n    uint32_t z; //@ z", r"k.h:2: pad0_: padding is named pad0_ and annotated //@ pad"),
        ("uint32_t gap;  //@ pad\n    uint32_t z; //@ z", r"k.h:2: gap: padding is named pad0_"),
        ("float f;  //@ f\n    const float *x;  //@ in f32[n]", r"k.h:3: 4 bytes of hidden padding before x"),
        ("const float *x;  //@ in f32[n]\n    int32_t k;  //@ k", r"k.h:1: k_args: 4 bytes of hidden padding at the end"),
        ("const float4 *x;  //@ in f32[n]", r"k.h:2: cffi cannot read this"),
    ],
)  # fmt: skip
def test_a_broken_rule_names_file_and_line(make_abi: MakeAbi, line: str, message: str) -> None:
    with pytest.raises(AbiError, match=message):
        make_abi(k=ONE.format(line))


def test_the_same_struct_without_the_flaw_is_read(make_abi: MakeAbi) -> None:
    abi = make_abi(k=ONE.format("const float *x;  //@ in f32[n]"))
    assert abi.struct("k_args").size == 16


def test_pointers_stand_in_argument_structs_only(make_abi: MakeAbi) -> None:
    with pytest.raises(AbiError, match=r"types.h:2: p: only argument structs"):
        make_abi("typedef struct {\n    float *p;\n} block;\n")


def test_computed_define_is_refused(make_abi: MakeAbi) -> None:
    with pytest.raises(AbiError, match=r"types.h:2: #define B: only plain integers"):
        make_abi("#define A 1\n#define B (A + 1)\n")


def test_an_empty_folder_says_how_to_build(tmp_path: Path) -> None:
    with pytest.raises(AbiError, match=r"build the native part with `python tools/build.py`"):
        Abi(tmp_path / "nothing")


def test_the_projects_headers_have_the_layout_gcc_gives_them(tmp_path: Path) -> None:
    """Independent of the build: a program compiled by g++ prints what the dtypes must be."""
    folder = Path(__file__).resolve().parents[2] / "cuda_src" / "abi"
    abi = Abi(folder)
    names = sorted(path.name for path in folder.glob("*.h") if path.name != "types.h")
    lines = ["#include <cstdint>", "#include <cstddef>", "#include <cstdio>", '#include "types.h"']
    lines += [f'#include "{name}"' for name in names]
    lines.append("int main() {")
    for struct in abi.structs.values():
        lines.append(f'std::printf("{struct.name} {struct.name} %zu\\n", sizeof({struct.name}));')
        for field in struct.fields:
            lines.append(f'std::printf("{struct.name} .{field.name} %zu\\n", offsetof({struct.name}, {field.name}));')
    source, program = tmp_path / "print.cpp", tmp_path / "print"
    source.write_text("\n".join([*lines, "}"]))
    subprocess.run(["g++", "-std=c++20", f"-I{folder}", "-o", program, source], check=True)
    text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    seen = 0
    for line in text.splitlines():
        struct_name, what, value = line.split()
        dtype = abi.dtype(struct_name)
        assert dtype.fields is not None
        found = dtype.fields[what[1:]][1] if what.startswith(".") else dtype.itemsize
        assert found == int(value), line
        seen += 1
    assert seen == sum(1 + len(struct.fields) for struct in abi.structs.values())
    assert seen > 100
