#!/usr/bin/env python3
"""Three training steps, ungraphed and replayed, on hostsim and kernels built with a sanitizer of the compiler.

    python tools/sanitize_host.py address,undefined
    python tools/sanitize_host.py thread

Builds into build/native-<sanitizers> what changed, then runs tools/sanitize_steps.py there. Exit status 0: no finding, and
the digests of both ways agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import build

#: The runtime library that must be in the process before Python, which is not instrumented.
PRELOAD = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    # Python keeps memory until the process ends. The kernels' fibers have stacks that the sanitizer does not know.
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "exitcode=99:report_signal_unsafe=0",
}
PRELUDE = """
import sys
from pathlib import Path
import foxhunt_rt.driver.loader, foxhunt_rt.kernels.abi, foxhunt_rt.kernels.images
native = Path(sys.argv[1])
foxhunt_rt.kernels.abi.NATIVE = foxhunt_rt.kernels.images.NATIVE = native
foxhunt_rt.driver.loader.HOSTSIM = native / "libfoxhunt_hostsim.so"
"""
STEPS = "import sanitize_steps; sys.exit(sanitize_steps.main())"


def runtime_library(sanitizers: str) -> str:
    """Path of the compiler's runtime library for the first of the sanitizers."""
    name = PRELOAD[sanitizers.split(",")[0]]
    asked = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(asked, check=True, text=True, capture_output=True).stdout.strip()


def run(sanitizers: str, code: str = STEPS) -> subprocess.CompletedProcess[str]:
    """Runs Python code (by default the steps) on the sanitized build, which must be there."""
    native = build.BUILD.with_name("native-" + sanitizers.replace(",", "-")) / "native"
    env = {**os.environ, **OPTIONS, "FOXHUNT_DRIVER": "hostsim", "FOXHUNT_HOSTSIM": "workers=3",
           "LD_PRELOAD": runtime_library(sanitizers),
           "PYTHONPATH": os.pathsep.join([str(build.ROOT), str(build.ROOT / "tools")])}  # fmt: skip
    command = [sys.executable, "-c", PRELUDE + code, str(native)]
    if sanitizers == "thread":  # its shadow memory wants the addresses that a random layout may take
        command = ["setarch", "-R", *command]
    return subprocess.run(command, env=env, text=True, capture_output=True, check=False)


def main() -> int:
    sanitizers = sys.argv[1] if len(sys.argv) == 2 else ""
    if sanitizers not in ("address,undefined", "thread"):
        print("give address,undefined or thread", file=sys.stderr)
        return 2
    if build.main(["--stop", "--sanitize", sanitizers]):
        return 1
    done = run(sanitizers)
    print(done.stdout, done.stderr, sep="")
    good = done.returncode == 0 and json.loads(done.stdout)["equal"]
    return 0 if good and "runtime error" not in done.stderr and "WARNING: ThreadSanitizer" not in done.stderr else 1


if __name__ == "__main__":
    sys.exit(main())
