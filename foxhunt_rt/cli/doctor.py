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
import subprocess
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
    """Whether to ask the driver itself."""
    parser.add_argument("--probe", action="store_true",
                        help="load the driver in a child process and list what each device does without")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Prints the findings."""
    findings = [*examine(), *(probe_driver() if args.probe else ())]
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
    from foxhunt_rt.driver.features import MACHINES

    version = platform.python_version()
    good = sys.version_info >= (3, 10)
    known = platform.system() == "Linux" and platform.machine() in MACHINES
    if not known:
        yield Finding("platform", "problem", f"{platform.system()} {platform.machine()} is not supported",
                      f"use Linux on {' or '.join(MACHINES)}")  # fmt: skip
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
    if not (NATIVE / "libfoxhunt_dlpack.so").is_file():
        yield Finding(
            "dlpack", "problem", "no buffer can be given to another library", "python tools/build.py (needs g++)"
        )


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
    from foxhunt_rt.kernels.images import Images
    from foxhunt_rt.telemetry.gpus import gpus, visible
    from foxhunt_rt.telemetry.nvml import session, text_of

    with session() as nvml:
        version = int(nvml.nvmlSystemGetCudaDriverVersion())
        yield Finding("driver", "ok", f"NVIDIA {text_of(nvml.nvmlSystemGetDriverVersion())}")
    yield from _features(version, chosen)
    images = Images(NATIVE)
    kernel = next(iter(images.kernels))
    found = gpus()
    seen = visible(found)
    for gpu in (d for g in found for d in (g, *g.instances)):
        what = str(gpu)
        if gpu.instances:
            yield Finding(
                "device", "note", f"{what}; split into {len(gpu.instances)} MIG instances", "use one of those"
            )
            continue
        if seen is not None and gpu not in seen:
            yield Finding(
                "device", "note", f"{what}; CUDA does not see it (CUDA_VISIBLE_DEVICES, or another MIG instance first)"
            )
            continue
        try:
            yield Finding("device", "ok", f"{what}; images {images.find(kernel, gpu.architecture).arch} fit")
        except Exception as error:
            level = "problem" if chosen == "cuda" else "note"
            yield Finding("device", level, f"{what}: {error}",
                          f"FOXHUNT_CUDA_ARCHS={gpu.architecture.removeprefix('sm_')} python tools/build.py")  # fmt: skip


def _features(version: int, chosen: str) -> Iterator[Finding]:
    """What the driver's version says it has. `--probe` asks the driver itself."""
    from foxhunt_rt.driver.features import FEATURES, OLDEST_DRIVER, version_text

    text = f"the driver is for CUDA {version_text(version)}"
    if version < OLDEST_DRIVER:
        level = "problem" if chosen == "cuda" else "note"
        yield Finding(
            "features", level, f"{text}, and {version_text(OLDEST_DRIVER)} is the oldest that works", "update it"
        )
        return
    missing = [f for f in FEATURES if version < f.since]
    for f in missing:
        yield Finding("features", "note", f"{text}: no {f.name}; instead: {f.fallback}", "update it, or leave it so")
    if not missing:
        yield Finding("features", "ok", f"{text}: {', '.join(f.name for f in FEATURES)}")


def probe_driver() -> Iterator[Finding]:
    """Loads the driver in a child process and says what each of its devices does without."""
    done = subprocess.run([sys.executable, "-c", PROBE], text=True, capture_output=True, check=False)
    if done.returncode:
        yield Finding("probe", "problem", (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
                      "check nvidia-smi, or set FOXHUNT_DRIVER=hostsim")  # fmt: skip
        return
    for device in json.loads(done.stdout):
        what = f"device {device['device']} ({device['uuid']}, {device['name']})"
        missing = {name: reason for name, reason in device["features"].items() if reason}
        detail = "; ".join(f"no {name}: {reason}" for name, reason in missing.items()) or "has every feature"
        yield Finding("probe", "note" if missing else "ok", f"{what}: {detail}")


PROBE = """
import json
from foxhunt_rt.driver import Context, Device, call, load
found = []
for i in range(int(call(load().cuDeviceGetCount))):
    context = Context(Device(i))
    found.append({**context.features.to_dict(), "uuid": context.device.uuid, "name": context.device.name})
    context.close()
print(json.dumps(found))
"""


def _tools() -> Iterator[Finding]:
    for tool, use in (("g++", "to build hostsim"), ("nvcc", "to build cubins"), ("dot", "to draw the step graph")):
        path = shutil.which(tool)
        yield Finding(tool, "ok" if path else "note", path or f"not on PATH; only needed {use}")


def _sample() -> Iterator[Finding]:
    from foxhunt_rt.cli.sample import cached

    path = cached()
    yield Finding("sample", "ok" if path else "note", str(path) if path else "the sample bars are not fetched yet",
                  "" if path else "foxhunt-rt sample (or train, which fetches them)")  # fmt: skip
