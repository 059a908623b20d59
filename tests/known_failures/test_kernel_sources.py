"""What no kernel source may hold: floating-point atomics (known failure K9) and printf (K12).

Atomics in code that hostsim compiles are integers by its own static_assert. What only nvcc sees is searched here; and where
nvcc is at hand, a slow test searches the PTX of every kernel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "cuda_src"
ATOMIC = re.compile(r"\batomic\w+\s*\(|\b__nv_atomic\w*|\bcuda::(?:std::)?atomic|\"\s*(?:atom|red)\.")
PRINTS = re.compile(
    r"\b(?:printf|fprintf|vprintf|puts)\s*\(|std::cout|std::cerr|#\s*include\s*<(?:cstdio|stdio\.h|iostream)>"
)
PTX_FLOAT_ATOMIC = re.compile(r"^\s*(?:@%?\w+\s+)?(?:atom|red)\.\S*\.(?:f16|f16x2|bf16|bf16x2|f32|f64)\b", re.MULTILINE)


def kernel_sources() -> dict[Path, str]:
    """Text of every file that becomes part of a kernel, without comments."""
    return {path: re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.DOTALL)
            for path in sorted([*SOURCES.rglob("*.cu"), *SOURCES.rglob("*.h")])
            if "hostsim" not in path.relative_to(SOURCES).parts}  # fmt: skip


def targets(text: str, target: str) -> Iterator[tuple[int, str]]:
    """(line number, line) of what is left of a file under ``#ifdef FX_GPU`` and ``#ifdef FX_HOST``, target "GPU" or "HOST"."""
    known = {"FX_GPU": target == "GPU", "__CUDACC__": target == "GPU", "FX_HOST": target == "HOST"}
    kept: list[bool] = []
    for number, line in enumerate(text.splitlines(), 1):
        directive = re.match(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b\s*(\w*)", line)
        if directive is None:
            if all(kept):
                yield number, line
        elif directive[1] in ("ifdef", "ifndef"):
            kept.append(known[directive[2]] == (directive[1] == "ifdef") if directive[2] in known else True)
        elif directive[1] == "if":
            kept.append(True)
        elif directive[1] == "else":
            kept[-1] = not kept[-1]
        elif directive[1] == "endif":
            kept.pop()


def included(text: dict[Path, str], target: str) -> set[Path]:
    """Files that the compilation of any kernel for a target reads."""
    found, todo = set(), [path for path in text if path.suffix == ".cu"]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        for _, line in targets(text[path], target):
            if (name := re.match(r'\s*#\s*include\s+"([^"]+)"', line)) and (other := SOURCES / name[1]) in text:
                todo.append(other)
    return found


def unseen_atomics(text: dict[Path, str]) -> list[str]:
    """Atomics that nvcc compiles and hostsim, whose atomics take integers alone, does not."""
    on_host = included(text, "HOST")
    found = []
    for path in sorted(included(text, "GPU")):
        host = {n for n, _ in targets(text[path], "HOST")} if path in on_host else set()
        found += [f"{path.relative_to(SOURCES)}:{n}: {line.strip()}" for n, line in targets(text[path], "GPU")
                  if n not in host and ATOMIC.search(line)]  # fmt: skip
    return found


def test_no_atomic_escapes_the_compiler_that_takes_integers_alone() -> None:
    """K9: replays differed from run to run, by an atomicAdd of floats inside the graph."""
    text = kernel_sources()
    assert any(ATOMIC.search(t) for t in text.values()), "the search finds the integer atomics"
    assert unseen_atomics(text) == []
    path = SOURCES / "optim" / "grad_reduce.cu"
    planted = text | {path: text[path] + "\n#ifdef FX_GPU\nvoid f(float *x) { atomicAdd(x, 1.0f); }\n#endif\n"}
    assert len(unseen_atomics(planted)) == 1
    assert (
        len(unseen_atomics(text | {path: text[path] + '\n#ifdef FX_GPU\nasm("red.add.f32 [%0], %1;");\n#endif\n'})) == 1
    )


@pytest.mark.hostsim
@pytest.mark.parametrize(
    ("value", "compiles"), [("int", True), ("unsigned long long", True), ("float", False), ("double", False)]
)
def test_hostsim_compiles_integer_atomics_alone(tmp_path: Path, value: str, compiles: bool) -> None:
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "atomic.cpp"
    source.write_text('#include "lib/kernel.h"\nvoid add(' + value + " *x) { atomicAdd(x, (" + value + ")1); }\n")
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", f"-I{SOURCES}", str(source)], text=True,
                          capture_output=True, timeout=60)  # fmt: skip
    assert (done.returncode == 0) == compiles, done.stderr
    assert compiles or "integer atomics only" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_ptx_holds_a_floating_point_atomic(tmp_path: Path) -> None:
    """What nvcc makes of every kernel, templates and macros resolved."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    planted = tmp_path / "planted.cu"
    planted.write_text("__global__ void k(float *x) { atomicAdd(x, 1.0f); }\n")
    found = {}
    for path in [planted, *sorted(SOURCES.rglob("*.cu"))]:
        ptx = tmp_path / "out.ptx"
        subprocess.run([nvcc, "-std=c++17", "-arch=compute_80", "-ptx", f"-I{SOURCES}", "-o", str(ptx), str(path)],
                       check=True, capture_output=True, timeout=120)  # fmt: skip
        if lines := PTX_FLOAT_ATOMIC.findall(ptx.read_text()):
            found[path.name] = lines
    assert list(found) == ["planted.cu"], found


def test_no_kernel_prints() -> None:
    """K12: printf in a captured kernel never appeared. What a kernel has to say goes to the guard block."""
    found = [
        f"{path.relative_to(SOURCES)}: {m[0]}" for path, text in kernel_sources().items() if (m := PRINTS.search(text))
    ]
    assert found == []
    assert PRINTS.search('printf("q %f", q);') and not PRINTS.search("fingerprint(x)")
