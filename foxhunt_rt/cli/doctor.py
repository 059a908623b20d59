"""What is installed, which driver, device and images fit, and what to do about what does not.

Asks package metadata, files and NVML only: it loads no driver and imports nothing that may be broken.
Exit code 0 when training can run on this machine, 4 when it cannot.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from foxhunt_rt.cli.errors import ExitCode

NATIVE = Path(__file__).resolve().parents[1] / "_native"
REQUIRED = ("cuda-bindings", "numpy", "nvidia-ml-py", "cffi")
TRAIN = ("pyarrow", "rich", "safetensors", "tomli-w")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report. `mend` is empty when there is nothing to do."""

    check: str
    level: str  # ok, note, problem
    detail: str
    mend: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace) -> int:
    """Prints the findings."""
    findings = list(examine())
    usable = not any(f.level == "problem" for f in findings)
    mark = {"ok": "ok  ", "note": "note", "problem": "FAIL"}
    for f in findings:
        print(f"{mark[f.level]}  {f.check:<12} {f.detail}" + (f"\n      {'':<12} -> {f.mend}" if f.mend else ""))
    print("This machine can train." if usable else "This machine cannot train yet: see the lines marked FAIL.")
    if args.json:
        status = "ok" if usable else "problem"
        print(json.dumps({"status": status, "findings": [dataclasses.asdict(f) for f in findings]}))
    return int(ExitCode.OK if usable else ExitCode.MACHINE)


def examine() -> Iterator[Finding]:
    """All findings; a check that fails itself is a finding too."""
    checks: list[Callable[[], Iterator[Finding]]] = [_python, _packages, _native, _devices, _tools, _sample]
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # the doctor must not fall ill
            yield Finding(check.__name__.strip("_"), "problem", f"{type(error).__name__}: {error}",
                          "reinstall with pip install 'foxhunt-rt[train]'")  # fmt: skip


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    good = sys.version_info >= (3, 10)
    yield Finding("python", "ok" if good else "problem", f"{version}, {platform.system()} {platform.machine()}",
                  "" if good else "use Python 3.10 or newer")  # fmt: skip
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("processor", "ok", f"{cores} cores")


def _version(package: str) -> str | None:
    import importlib.metadata  # slow to load, and only wanted here

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    from foxhunt_rt import __version__

    yield Finding("foxhunt-rt", "ok", f"{__version__} in {NATIVE.parent}")
    for names, command in ((REQUIRED, "pip install foxhunt-rt"), (TRAIN, "pip install 'foxhunt-rt[train]'")):
        found = {name: _version(name) for name in names}
        missing = [name for name, version in found.items() if version is None]
        have = ", ".join(f"{name} {version}" for name, version in found.items() if version)
        if missing:
            yield Finding("packages", "problem", f"missing: {', '.join(missing)}", command)
        else:
            yield Finding("packages", "ok", have)


def _native() -> Iterator[Finding]:
    index = NATIVE / "kernels.json"
    if not index.is_file():
        yield Finding("kernels", "problem", "the native parts are not built", "python tools/build.py, or pip install .")
        return
    kernels = json.loads(index.read_text())
    stems = {entry["image"] for entry in kernels.values()}
    folders = sorted(p.name for p in NATIVE.iterdir() if p.is_dir() and any(p.glob("*.so")) | any(p.glob("*.cubin")))
    for name in folders:
        held = {p.stem for p in (NATIVE / name).iterdir()}
        lost = sorted(stems - held)
        if lost:
            yield Finding("kernels", "problem", f"{name} lacks {', '.join(lost)}", "python tools/build.py")
        else:
            yield Finding("kernels", "ok", f"{len(kernels)} kernels in {len(stems)} images for {name}")
    hostsim = (NATIVE / "libfoxhunt_hostsim.so").is_file()
    yield Finding("hostsim", "ok" if hostsim else "problem",
                  "the software driver is built" if hostsim else "the software driver is not built",
                  "" if hostsim else "python tools/build.py (needs g++)")  # fmt: skip


def _devices() -> Iterator[Finding]:
    from foxhunt_rt.driver.loader import gpu_count

    want = os.environ.get("FOXHUNT_DRIVER", "auto")
    count = gpu_count()
    chosen = want if want != "auto" else ("cuda" if count else "hostsim")
    yield Finding("driver", "ok" if want in ("auto", "cuda", "hostsim") else "problem",
                  f"{chosen} (FOXHUNT_DRIVER={want})", "" if want in ("auto", "cuda", "hostsim") else
                  "set FOXHUNT_DRIVER to auto, cuda or hostsim")  # fmt: skip
    if not count:
        level = "problem" if chosen == "cuda" else "note"
        mend = "install NVIDIA's driver and check nvidia-smi, or set FOXHUNT_DRIVER=hostsim" if chosen == "cuda" else ""
        yield Finding("device", level, "no NVIDIA GPU: kernels run on the CPU through hostsim", mend)
        return
    import pynvml

    from foxhunt_rt.kernels.images import Images

    pynvml.nvmlInit()
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        yield Finding("driver", "ok", f"NVIDIA {version}")
        images = Images(NATIVE)
        kernel = next(iter(images.kernels))
        for i in range(count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
            arch = f"sm_{major}{minor}"
            what = f"{i}: {pynvml.nvmlDeviceGetName(handle)}, {arch}, {memory:.0f} GiB"
            try:
                yield Finding("device", "ok", f"{what}, images {images.find(kernel, arch).arch} fit")
            except Exception as error:
                level = "problem" if chosen == "cuda" else "note"
                yield Finding(
                    "device", level, f"{what}: {error}", f"FOXHUNT_CUDA_ARCHS={major}{minor} python tools/build.py"
                )
    finally:
        pynvml.nvmlShutdown()


def _tools() -> Iterator[Finding]:
    for tool, use in (("g++", "to build hostsim"), ("nvcc", "to build cubins"), ("dot", "to draw the step graph")):
        path = shutil.which(tool)
        yield Finding(tool, "ok" if path else "note", path or f"not on PATH; only needed {use}")


def _sample() -> Iterator[Finding]:
    from foxhunt_rt.cli.sample import cached

    path = cached()
    yield Finding("sample", "ok" if path else "note", str(path) if path else "the sample bars are not fetched yet",
                  "" if path else "foxhunt-rt sample (or train, which fetches them)")  # fmt: skip
