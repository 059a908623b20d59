"""Reads the C headers that kernels and host share: layouts by cffi, annotations (``//@``) line by line.

The format is written down in docs/architecture.md. Every rule broken is an error that names the file and the line.
Imports nothing of the package but `expression`, and no NumPy: the build's layout check uses this file too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cffi

from foxhunt_rt.kernels.expression import Expression

#: Element types of annotations -> the C types a pointer to them may have.
ELEMENTS = {
    "f32": ("float",),
    "f64": ("double",),
    "f16": ("uint16_t", "void"),
    "bf16": ("uint16_t", "void"),
    "i32": ("int32_t",),
    "u32": ("uint32_t",),
    "i64": ("int64_t",),
    "u64": ("uint64_t",),
    "u8": ("uint8_t",),
}
SCALARS = ("int32_t", "uint32_t", "int64_t", "uint64_t", "float", "double")
_SMALL = ("int8_t", "uint8_t", "int16_t", "uint16_t")  # in shared structs only

_FIELD = re.compile(
    r"^\s*(?P<const>const\s+)?(?P<type>\w+)\s*(?P<star>\*?)\s*(?P<name>\w+)\s*(?:\[(?P<length>\w+)\])?\s*;(?P<rest>.*)$"
)
_POINTER = re.compile(
    r"^(?P<direction>in|out|inout)\s+(?P<element>\w+)\s*\[(?P<count>[^\]]*)\](?:\s+(?P<optional>optional|if_any)\b)?(?P<rest>.*)$"
)
_ALIAS = re.compile(r"^\s*typedef\s+(?P<of>\w+)\s+(?P<name>\w+)\s*;")
_DEFINE = re.compile(r"^\s*#\s*define\s+(?P<name>\w+)(?P<value>.*)$")
_PAD = re.compile(r"^pad\d+_$")


class HeaderError(Exception):
    """A header breaks the ABI's rules: ``file:line: what``, and how to mend it."""


@dataclass(frozen=True)
class Field:
    """One field of a struct.

    Attributes
    ----------
    name, ctype : str
        As in C; for a pointer `ctype` is the pointed-to type without const.
    offset, size : int
        Bytes.
    length : int
        Elements of an array field, else 0.
    is_pointer, is_pad : bool
    direction : str
        "in", "out" or "inout" for a pointer of an argument struct, else "".
    element : str
        Element type of a pointer (``f32`` ... or a struct's name), else "".
    count : Expression or None
        Elements the launch may touch; None when the header says ``[?]``, and for scalars.
    optional : bool
        Whether null is allowed.
    if_any : bool
        Whether null is allowed where `count` is 0, and there alone.
    comment : str
    """

    name: str
    ctype: str
    offset: int
    size: int
    length: int = 0
    is_pointer: bool = False
    is_pad: bool = False
    direction: str = ""
    element: str = ""
    count: Expression | None = None
    optional: bool = False
    if_any: bool = False
    comment: str = ""


@dataclass(frozen=True)
class StructInfo:
    """One struct: its size in bytes, its fields in order, and where it stands."""

    name: str
    size: int
    fields: tuple[Field, ...]
    file: str
    line: int
    by_name: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {f.name: f for f in self.fields})

    def __getitem__(self, name: str) -> Field:
        return self.by_name[name]


@dataclass(frozen=True)
class Headers:
    """Everything a folder of headers declares."""

    structs: dict[str, StructInfo]
    constants: dict[str, int]


@dataclass
class _RawStruct:
    name: str
    line: int
    fields: list[tuple[int, re.Match[str]]]


def read_headers(folder: Path, *more: Path) -> Headers:
    """Parse ``types.h`` and then the other headers of a folder, by name, and after them those of ``more`` folders.

    Raises
    ------
    HeaderError
        For the first rule that is broken.
    """
    files = sorted(folder.glob("*.h"), key=lambda path: (path.name != "types.h", path.name))
    if not files:
        raise HeaderError(f"{folder} holds no headers: build the native part with `python tools/build.py`")
    files += [path for extra in more for path in sorted(extra.glob("*.h"))]
    texts = {path: path.read_text() for path in files}
    constants: dict[str, int] = {}
    for path, text in texts.items():
        constants |= _constants(path.name, text)
    ffi = _declared(texts)
    raw_structs = {path: list(_raw_structs(path.name, text)) for path, text in texts.items()}
    layouts = _layouts(ffi, [raw.name for found in raw_structs.values() for raw in found])
    structs: dict[str, StructInfo] = {}
    for path, text in texts.items():
        for raw in raw_structs[path]:
            structs[raw.name] = _struct(ffi, layouts[raw.name], path.name, raw, structs, constants)
        for number, line in enumerate(_without_block_comments(text), 1):
            if alias := _ALIAS.match(line):
                structs[alias["name"]] = _alias(path.name, number, alias, structs)
    return Headers(structs, constants)


def _fail(file: str, line: int, message: str) -> HeaderError:
    return HeaderError(f"{file}:{line}: {message}")


def _declared(texts: dict[Path, str]) -> cffi.FFI:
    """All files in one call: each call parses the names of what was declared before it again, and every process that starts
    waits for this. A file at a time where that fails, to say which it is."""
    plain = {path: re.sub(r"^\s*#\s*pragma\s+once\s*$", "", text, flags=re.MULTILINE) for path, text in texts.items()}
    ffi = cffi.FFI()
    try:
        ffi.cdef("\n".join(plain.values()))
    except Exception:  # cffi raises CDefError, pycparser its own
        ffi = cffi.FFI()
        for path, text in plain.items():
            _declare(ffi, path.name, text)
    return ffi


def _declare(ffi: cffi.FFI, file: str, text: str) -> None:
    try:
        ffi.cdef(text)
    except Exception as error:  # of either kind, with text of several lines
        message = str(error).splitlines()[0]
        where = re.search(r":(\d+):", str(error))
        place = f"{file}:{where[1]}" if where else file
        raise HeaderError(f"{place}: cffi cannot read this: {message}") from None


def _layouts(ffi: cffi.FFI, names: Sequence[str]) -> dict[str, Any]:
    """cffi's view of the structs, in one call for the same reason: as what the parameters of a function point to."""
    if not names:
        return {}
    pointers = ffi.typeof(f"void (*)({', '.join(f'{name} *' for name in names)})").args
    return {name: pointer.item for name, pointer in zip(names, pointers)}


def _constants(file: str, text: str) -> dict[str, int]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _DEFINE.match(line)
        if match is None:
            continue
        value = re.sub(r"//.*|/\*.*?\*/", "", match["value"]).strip()
        try:
            found[match["name"]] = int(value, 0)
        except ValueError:
            raise _fail(file, number, f"#define {match['name']}: only plain integers, not {value!r}") from None
    return found


def _without_block_comments(text: str) -> list[str]:
    """The lines with ``/* ... */`` taken out, except where one ends the line of a field: that is the field's comment."""
    text = re.sub(r"(;[^\n]*?)/\*([^\n]*?)\*/[ \t]*(?=\n)", lambda m: f"{m[1]}//{m[2].rstrip()}", text)
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL).splitlines()


def _raw_structs(file: str, text: str) -> Iterator[_RawStruct]:
    """The structs of a file as matched lines; layout is cffi's business."""
    current: _RawStruct | None = None
    for number, line in enumerate(_without_block_comments(text), 1):
        code = line.strip()
        if current is None:
            if re.match(r"typedef\s+struct\b", code):
                if not code.endswith("{"):
                    raise _fail(file, number, "write `typedef struct {` on a line of its own")
                current = _RawStruct("", number, [])
            continue
        closing = re.match(r"}\s*(\w+)\s*;", code)
        if closing:
            current.name = closing[1]
            yield current
            current = None
        elif code and not code.startswith("//"):
            match = _FIELD.match(line)
            if match is None:
                raise _fail(file, number, f"not a field: {code!r}; one field a line, `type name; //@ annotation`")
            current.fields.append((number, match))


def _struct(ffi: cffi.FFI, layout: Any, file: str, raw: _RawStruct, structs: dict[str, StructInfo],
            constants: dict[str, int]) -> StructInfo:  # fmt: skip
    cffi_fields = layout.fields or []
    if [name for name, _ in cffi_fields] != [match["name"] for _, match in raw.fields]:
        raise _fail(file, raw.line, f"{raw.name}: one field a line, so that each can be annotated")
    is_args = raw.name.endswith("_args")
    integers = {
        match["name"]
        for _, match in raw.fields
        if not match["star"] and match["type"] in SCALARS[:4] and not match["length"]
    }
    fields = []
    end = 0
    for (number, match), (name, cfield) in zip(raw.fields, cffi_fields):
        size = ffi.sizeof(cfield.type)
        if cfield.offset != end:
            raise _fail(file, number, f"{cfield.offset - end} bytes of hidden padding before {name}: write them out "
                                      "as pad0_, or order the fields by size")  # fmt: skip
        end = cfield.offset + size
        made = _field(file, number, match, structs, constants, is_args, integers)
        length = cfield.type.length if cfield.type.kind == "array" else 0
        fields.append(Field(name, match["type"], cfield.offset, size, length, **made))
    if end != ffi.sizeof(layout):
        raise _fail(file, raw.line, f"{raw.name}: {ffi.sizeof(layout) - end} bytes of hidden padding at the end: write "
                                    "them out as pad0_")  # fmt: skip
    return StructInfo(raw.name, ffi.sizeof(layout), tuple(fields), file, raw.line)


def _alias(file: str, line: int, match: re.Match[str], structs: dict[str, StructInfo]) -> StructInfo:
    """``typedef a_args b_args;``: kernel b takes the arguments of kernel a."""
    of, name = match["of"], match["name"]
    if of not in structs or not (of.endswith("_args") and name.endswith("_args")):
        raise _fail(file, line, f"typedef {of} {name}: only an argument struct declared above may have a second name, another "
                                "kernel's <kernel>_args")  # fmt: skip
    return replace(structs[of], name=name, line=line)


def _field(
    file: str,
    number: int,
    match: re.Match[str],
    structs: dict[str, StructInfo],
    constants: dict[str, int],
    is_args: bool,
    integers: set[str],
) -> dict[str, Any]:
    """What the annotation says about one field, as keyword arguments of `Field`."""
    name, ctype, rest = match["name"], match["type"], match["rest"].strip()
    annotation = rest[3:].strip() if rest.startswith("//@") else None
    if not match["star"]:
        known = SCALARS if is_args else (*SCALARS, *_SMALL, *structs)
        if ctype not in known:
            raise _fail(file, number, f"{name}: type {ctype} is not allowed here; use one of {', '.join(SCALARS)}")
        is_pad = bool(_PAD.match(name))
        if (annotation == "pad") != is_pad and is_args:
            raise _fail(file, number, f"{name}: padding is named pad0_ and annotated //@ pad, both or neither")
        comment = annotation if annotation is not None else rest.removeprefix("//").strip()
        return {"is_pad": is_pad, "comment": comment}
    if not is_args:
        raise _fail(file, number, f"{name}: only argument structs (named <kernel>_args) hold pointers")
    if match["length"]:
        raise _fail(file, number, f"{name}: arrays of pointers are not supported: one field a pointer")
    form = "`//@ in|out|inout type[count] [optional|if_any]   comment`"
    parsed = _POINTER.match(annotation) if annotation is not None else None
    if parsed is None:
        raise _fail(file, number, f"{name}: a pointer needs an annotation {form}")
    slip = parsed["rest"].strip()  # optinal, opt: one space, so not a comment
    if parsed["rest"].startswith(" ") and re.match(r" ?(?:opt|if_)", parsed["rest"]):
        raise _fail(file, number, f"{name}: {slip!r} after the annotation: write `optional` or `if_any`, or two spaces "
                                  "before a comment")  # fmt: skip
    if parsed["optional"] == "if_any" and parsed["count"].strip() == "?":
        raise _fail(file, number, f"{name}: if_any needs a count that may be 0; write it, or `optional`")
    _check_pointer(file, number, match, parsed, structs)
    return {
        "is_pointer": True,
        "direction": parsed["direction"],
        "element": parsed["element"],
        "count": _count(file, number, name, parsed["count"], integers, constants),
        "optional": parsed["optional"] == "optional",
        "if_any": parsed["optional"] == "if_any",
        "comment": parsed["rest"].strip(),
    }


def _check_pointer(
    file: str, number: int, match: re.Match[str], parsed: re.Match[str], structs: dict[str, StructInfo]
) -> None:
    """The annotation and the C declaration say the same."""
    name, ctype, element = match["name"], match["type"], parsed["element"]
    if element not in ELEMENTS and element not in structs:
        raise _fail(
            file, number, f"{name}: element type {element} is unknown; use {' '.join(ELEMENTS)} or a struct of types.h"
        )
    if ctype not in ELEMENTS.get(element, (element,)):
        raise _fail(file, number, f"{name}: declared {ctype} * but annotated {element}: make them agree")
    if bool(match["const"]) != (parsed["direction"] == "in"):
        raise _fail(file, number, f"{name}: `in` goes with const, `out` and `inout` without: make them agree")


def _count(
    file: str, number: int, name: str, text: str, integers: set[str], constants: dict[str, int]
) -> Expression | None:
    if text.strip() == "?":
        return None
    try:
        expression = Expression(text.strip())
    except ValueError as error:
        raise _fail(file, number, f"{name}: {error}") from None
    unknown = sorted(expression.names - integers - constants.keys())
    if unknown:
        raise _fail(file, number, f"{name}: [{text}] names {', '.join(unknown)}, no integer field of this struct")
    return expression
