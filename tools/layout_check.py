#!/usr/bin/env python3
"""Write C++ that asserts every struct of cuda_src/abi to be laid out as cffi (and so Python) sees it.

    python tools/layout_check.py ABI_FOLDER OUTPUT.cpp

The build compiles the output with the host compiler and with nvcc: where the three disagree, the build fails. Needs
cffi, and neither NumPy nor cuda-python, so that it runs in an isolated build.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _import_header_module() -> types.ModuleType:
    """foxhunt_rt.kernels.header without foxhunt_rt.kernels, whose other modules need NumPy."""
    for name in ("foxhunt_rt", "foxhunt_rt.kernels"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / name.replace(".", "/"))]
        sys.modules[name] = package
    from foxhunt_rt.kernels import header

    return header


def generate(folder: Path) -> str:
    """The source: the headers in the order of the parser, then an assertion for each size and offset."""
    header = _import_header_module()
    structs = header.read_headers(folder).structs.values()
    files = ["types.h", *sorted(path.name for path in folder.glob("*.h") if path.name != "types.h")]
    lines = ["// Made by tools/layout_check.py.", "#include <stddef.h>", "#include <stdint.h>"]
    lines += [f'#include "abi/{name}"' for name in files if (folder / name).is_file()]
    for info in structs:
        where = f"{info.file}:{info.line}: {info.name}"
        lines.append(f'static_assert(sizeof({info.name}) == {info.size}, "{where}: size");')
        for field in info.fields:
            lines.append(
                f'static_assert(offsetof({info.name}, {field.name}) == {field.offset}, "{where}.{field.name}: offset");'
            )
            size = f"sizeof((({info.name} *)0)->{field.name})"
            lines.append(f'static_assert({size} == {field.size}, "{where}.{field.name}: size");')
    return "\n".join(lines) + "\n"


def main() -> int:
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        text = generate(folder)
    except Exception as error:
        if type(error).__name__ != "HeaderError":
            raise
        print(f"error: {folder}/{error}", file=sys.stderr)
        return 1
    if not output.is_file() or output.read_text() != text:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
