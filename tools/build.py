#!/usr/bin/env python3
"""Build the native half of the package and install it into foxhunt_rt/_native.

    python tools/build.py                          hostsim, its kernel images, cubins for the local GPU
    FOXHUNT_CUDA_ARCHS=90 python tools/build.py    cubins for sm_90 whatever the machine has

A thin driver of CMakeLists.txt: it finds the tools, runs cmake and ninja in build/native, then copies what changed
into foxhunt_rt/_native by rename, so that a process that is reading an image never sees half of one. setup.py calls
`build()`. Runs without the package's dependencies; cffi alone is needed for the layout check.
"""

from __future__ import annotations

import argparse
import fcntl
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import toolkit

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "cuda_src"
NATIVE = ROOT / "foxhunt_rt" / "_native"
BUILD = ROOT / "build" / "native"

# Headers of hostsim that a kernel includes through lib/kernel.h.
_USER_HEADERS = ("cuda_on_host.h", "host_intrinsics.h", "host_math.h", "host_types.h", "kernel_abi.h")

# FX_KERNEL(name), FX_KERNEL_BOUNDS(name, threads) and FX_KERNEL_ANYBLOCK(name), at the start of a line.
_KERNEL = re.compile(r"^FX_KERNEL(?P<form>[A-Z_]*)\((?P<name>\w+)", re.MULTILINE)


class BuildError(RuntimeError):
    """The build failed. The message says what to mend."""


def archs_from_environment() -> list[str] | None:
    """FOXHUNT_CUDA_ARCHS as a list ("80;90", "80,90", "sm_90", "all", "" for none); None when it is unset."""
    text = os.environ.get("FOXHUNT_CUDA_ARCHS")
    if text is None:
        return None
    if text.strip() == "all":
        return list(toolkit.ALL_ARCHS)
    archs = [word.removeprefix("sm_").replace(".", "") for word in re.split(r"[;,\s]+", text) if word]
    for arch in archs:
        if not re.fullmatch(r"\d{2,3}[af]?", arch):
            raise BuildError(f"FOXHUNT_CUDA_ARCHS: {arch!r} is no architecture; write for example 80,90")
    return sorted(set(archs), key=lambda arch: int(arch.rstrip("af")))


def default_archs() -> list[str]:
    """Of a development build: the environment's, else the local GPU's, else none."""
    archs = archs_from_environment()
    return toolkit.local_archs() if archs is None else archs


def scan_kernels(sources: Path = SOURCES) -> dict[str, dict[str, str]]:
    """Kernel name -> image stem, argument struct, form ("anyblock" or "threads"), from the .cu files."""
    kernels: dict[str, dict[str, str]] = {}
    for path in sorted(sources.rglob("*.cu")):
        if "hostsim" in path.relative_to(sources).parts:
            continue
        for match in _KERNEL.finditer(path.read_text()):
            name = match["name"]
            if name in kernels:
                raise BuildError(f"kernel {name} is in {kernels[name]['image']}.cu and in {path.name}: rename one")
            form = "anyblock" if "ANYBLOCK" in match["form"] else "threads"
            kernels[name] = {"image": path.stem, "args": f"{name}_args", "form": form}
    return kernels


def _tool(name: str) -> str:
    """A program of this environment (also when it is not activated), else of PATH."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise BuildError(f"{name} is not installed: {sys.executable} -m pip install {name}")
    return found


def _run(command: Sequence[str], what: str) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise BuildError(f"{what} failed: the compiler's message stands above")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build at a time in a folder; a second waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_if_changed(path: Path, text: str) -> None:
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _copy_if_changed(source: Path, target: Path) -> None:
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        pass
    shutil.copyfile(source, file.name)
    os.chmod(file.name, 0o755 if source.suffix == ".so" else 0o644)
    os.replace(file.name, target)


def _configure(build_dir: Path, settings: dict[str, str]) -> None:
    """Run cmake when the settings changed (ninja runs it by itself when CMakeLists.txt or the list of files did)."""
    stamp = build_dir / "settings.json"
    text = json.dumps(settings, indent=1, sort_keys=True)
    if (build_dir / "build.ninja").is_file() and stamp.is_file() and stamp.read_text() == text:
        return
    stamp.unlink(missing_ok=True)
    settings = {"CMAKE_MAKE_PROGRAM": _tool("ninja"), **settings}
    command = [_tool("cmake"), "-G", "Ninja", "-S", str(ROOT), "-B", str(build_dir)]
    _run([*command, *(f"-D{key}={value}" for key, value in settings.items())], "cmake")
    stamp.write_text(text)


def _write_layout_check(build_dir: Path) -> Path:
    """The generated source of assertions on struct layouts; made again only when a header or its reader changed."""
    output = build_dir / "layout_check.cpp"
    inputs = [*(SOURCES / "abi").glob("*.h"), ROOT / "tools" / "layout_check.py"]
    inputs += [ROOT / "foxhunt_rt" / "kernels" / name for name in ("header.py", "expression.py")]
    folder_changed = (SOURCES / "abi").stat().st_mtime  # a header removed
    newest = max([folder_changed, *(path.stat().st_mtime for path in inputs)])
    stamp = build_dir / "layout_check.stamp"
    if not (output.is_file() and stamp.is_file() and stamp.stat().st_mtime > newest):
        program = ROOT / "tools" / "layout_check.py"
        _run([sys.executable, str(program), str(SOURCES / "abi"), str(output)], "the ABI check")
        stamp.touch()
    return output


def _wanted(build_dir: Path, archs: Sequence[str], ptx_archs: Sequence[str], baseline: bool) -> dict[str, Path]:
    """Path below _native -> what to copy there. Only files of the present sources: a deleted kernel's image goes."""
    stems = sorted({kernel["image"] for kernel in scan_kernels().values()})
    names = ["libfoxhunt_hostsim.so", "libfoxhunt_trace.so", "libfoxhunt_dlpack.so"]
    names += [f"host/{stem}.so" for stem in stems]
    names += [f"host-baseline/{stem}.so" for stem in stems if baseline]
    names += [f"sm_{arch}/{stem}.cubin" for arch in archs for stem in stems]
    names += [f"ptx_{arch}/{stem}.ptx" for arch in ptx_archs for stem in stems]
    wanted = {name: build_dir / "lib" / name for name in names}
    wanted |= {f"abi/{path.name}": path for path in sorted((SOURCES / "abi").glob("*.h"))}
    # for kernels of the users' own: foxhunt_rt/kernels/compile.py
    wanted |= {f"include/lib/{path.name}": path for path in sorted((SOURCES / "lib").glob("*.h"))}
    wanted |= {f"include/hostsim/{name}": SOURCES / "hostsim" / name for name in _USER_HEADERS}
    return {name: path for name, path in wanted.items() if path.is_file()}


def _install(native_dir: Path, wanted: dict[str, Path]) -> None:
    for name, source in wanted.items():
        _copy_if_changed(source, native_dir / name)
    _write_if_changed(native_dir / "kernels.json", json.dumps(scan_kernels(), indent=1, sort_keys=True) + "\n")
    for path in native_dir.rglob("*"):
        if path.is_file() and path.name != "kernels.json" and str(path.relative_to(native_dir)) not in wanted:
            path.unlink()


def build(
    native_dir: Path = NATIVE,
    archs: Sequence[str] = (),
    ptx_archs: Sequence[str] = (),
    *,
    build_dir: Path = BUILD,
    baseline: bool = False,
    host: bool = True,
    sanitize: str = "",
    keep_going: bool = False,
    jobs: int | None = None,
) -> None:
    """Build everything that changed and install it into `native_dir`.

    With `keep_going`, what does compile is installed before BuildError is raised for what does not.
    """
    scan_kernels()  # a kernel defined twice is reported before anything is compiled
    settings = {
        "FOXHUNT_CUDA_INCLUDE": str(toolkit.require_cuda_include()) if host else "",
        "FOXHUNT_CUDA_ARCHS": ";".join(archs),
        "FOXHUNT_PTX_ARCHS": ";".join(ptx_archs),
        "FOXHUNT_NVCC": str(toolkit.require_nvcc()) if archs or ptx_archs else "",
        "FOXHUNT_HOST": "ON" if host else "OFF",
        "FOXHUNT_HOST_BASELINE": "ON" if baseline else "OFF",
        "FOXHUNT_SANITIZE": sanitize,
    }
    failure: BuildError | None = None
    with _locked(build_dir):
        try:
            settings["FOXHUNT_LAYOUT_CHECK"] = str(_write_layout_check(build_dir))
        except BuildError as error:
            if not keep_going:
                raise
            failure = error
        _configure(build_dir, settings)
        ninja = [_tool("ninja"), "-C", str(build_dir), *(["-k", "0"] if keep_going else [])]
        ninja += ["-j", str(jobs)] if jobs else []
        try:
            _run([*ninja, "--quiet"], "the build")
        except BuildError as error:
            if not keep_going:
                raise
            failure = error
        _install(native_dir, _wanted(build_dir, archs, ptx_archs, baseline))
        if failure is not None:
            raise failure


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build hostsim, kernel images and cubins into foxhunt_rt/_native.")
    parser.add_argument("--baseline", action="store_true", help="also images for processors without AVX2 and FMA")
    parser.add_argument("--sanitize", default="", help="address,undefined or thread: into build/native-<name>/native")
    parser.add_argument("--stop", action="store_true", help="stop at the first file that does not compile")
    parser.add_argument("-j", "--jobs", type=int, default=None)
    options = parser.parse_args(argv)
    build_dir, native_dir = BUILD, NATIVE
    if options.sanitize:
        build_dir = BUILD.with_name("native-" + options.sanitize.replace(",", "-"))
        native_dir = build_dir / "native"
    try:
        archs = [] if options.sanitize else default_archs()
        build(
            native_dir,
            archs,
            build_dir=build_dir,
            baseline=options.baseline,
            sanitize=options.sanitize,
            keep_going=not options.stop,
            jobs=options.jobs,
        )
    except (BuildError, toolkit.ToolkitError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{native_dir}: {len(scan_kernels())} kernels, hostsim{''.join(f', sm_{arch}' for arch in archs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
