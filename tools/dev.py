#!/usr/bin/env python3
"""From a fresh clone to a trained network, or to a tested tree, in one command. Standard library only.

    python3 tools/dev.py train          make .venv, install, fetch the sample bars, train on them
    python3 tools/dev.py train --short  the same on fewer bars, for CI
    python3 tools/dev.py test           make .venv, install, lint, build, run the tests
    python3 tools/dev.py test -k adam   what follows is handed to pytest

Needs Python 3.10 or newer with its venv module, and a C++20 compiler; no GPU and no CUDA toolkit. A second run reuses
.venv and builds what changed. Exit codes are those of what ran.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("FOXHUNT_VENV", ROOT / ".venv"))
PYTHON = VENV / "bin" / "python"
BUILD_REQUIREMENTS = ["setuptools>=77", "wheel", "cmake>=3.24", "ninja", "cffi>=1.16", "nvidia-ml-py>=12"]
SHORT = ["--set", "train.epochs=1"]  # of `train --short`


class Failure(Exception):
    """One line for a person, and an exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def environment() -> dict[str, str]:
    """Ours, with the programs of .venv first on PATH."""
    path = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(VENV)}
    env.pop("PYTHONHOME", None)
    return env


def run(command: Sequence[str | Path]) -> int:
    """Run a command in the root folder; returns its exit code."""
    return subprocess.run([str(word) for word in command], cwd=ROOT, env=environment(), check=False).returncode


def run_quietly(command: Sequence[str | Path]) -> tuple[int, str, float]:
    """Run a command in the root folder; its exit code, what it wrote, and the seconds it took."""
    started = time.monotonic()
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment(), check=False, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    return done.returncode, done.stdout, time.monotonic() - started


def require(command: Sequence[str | Path], what: str) -> None:
    code = run(command)
    if code != 0:
        raise Failure(f"{what} failed; its message stands above", code)


def check_machine() -> None:
    """What no pip can bring."""
    if sys.version_info < (3, 10):  # noqa: UP036
        raise Failure(
            f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}: run tools/dev.py with a newer one"
        )
    if not sys.platform.startswith("linux"):
        raise Failure(f"Linux is needed, this is {sys.platform}: the driver and hostsim are ELF libraries")
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
        raise Failure("no C++ compiler found: install one (Debian, Ubuntu: apt install g++)")


def make_venv() -> None:
    """Make .venv, or keep the one that works."""
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 10))"
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", probe], capture_output=True, check=False).returncode == 0:
        return
    say(f"making {VENV}")
    shutil.rmtree(VENV, ignore_errors=True)
    if subprocess.run([sys.executable, "-m", "venv", VENV], check=False).returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise Failure(
            "this Python cannot make environments: install its venv module (Debian, Ubuntu: apt install python3-venv)"
        )


def pip(*arguments: str) -> None:
    """Not compiled to bytecode: most of what JAX brings is never imported."""
    command = [PYTHON, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", *arguments]
    require(command, f"pip install {' '.join(arguments)}")


@contextmanager
def native_build_begun() -> Iterator[None]:
    """The native build runs beside what happens inside: the install's own build waits for it, finds little left to do, and says
    what does not compile, so that nothing of this one is shown."""
    command = [str(PYTHON), "tools/build.py", "--stop"]
    build = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        yield
    finally:
        build.wait()


def install(extras: Sequence[str], compiler: bool) -> None:
    """Install the package in place with these extras, unless that was done for the same pyproject.toml already.

    No build isolation: the few build requirements go into .venv once, and a rebuild is a matter of seconds.
    """
    stamp = VENV / "foxhunt-installed"
    sources = [ROOT / name for name in ("pyproject.toml", "setup.py", "tools/dev.py", "tools/toolkit.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    done = stamp.read_text().split() if stamp.is_file() else []
    wanted = {*extras, *(["compiler"] if compiler else [])}
    if done[:1] == [digest] and wanted <= set(done[1:]):
        say("building what changed")
        require([PYTHON, "tools/build.py", "--stop"], "the native build")
        return
    stamp.unlink(missing_ok=True)
    started = time.monotonic()
    say(f"installing foxhunt-rt[{','.join(extras)}] into {VENV}")
    pip(*BUILD_REQUIREMENTS)
    command = [PYTHON, "tools/toolkit.py", "missing", *(["--compiler"] if compiler else [])]
    wheels = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if wheels.returncode != 0:
        raise Failure(wheels.stderr.strip() or "tools/toolkit.py failed", wheels.returncode)
    if wheels.stdout.split():
        pip(*wheels.stdout.split())
    with native_build_begun():  # pip downloads meanwhile
        pip("--no-build-isolation", "--editable", f".[{','.join(extras)}]")
    stamp.write_text(" ".join([digest, *sorted(wanted | (set(done[1:]) if done[:1] == [digest] else set()))]))
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)


def train(options: argparse.Namespace, rest: list[str]) -> int:
    """The main job: walk-forward training on the sample bars."""
    install(["train"], compiler=False)
    program = VENV / "bin" / "foxhunt-rt"
    say("foxhunt-rt sample")
    code = run([program, "sample"])
    if code != 0:
        return code
    arguments = [*(SHORT if options.short else []), *rest]
    say(f"foxhunt-rt train {' '.join(arguments)}".rstrip())
    return run([program, "train", *arguments])


def cuda_sources() -> list[str]:
    """What clang-format looks at: cuda_src but for the ABI headers, whose annotations stand in columns."""
    files = (path for path in (ROOT / "cuda_src").rglob("*") if path.suffix in (".cu", ".h", ".cpp"))
    return sorted(str(path.relative_to(ROOT)) for path in files if path.parent.name != "abi")


def test(options: argparse.Namespace, rest: list[str]) -> int:
    """Linters, the compiler's resource report, then pytest; every step runs, and the last failure's code is returned.

    What does not show its progress runs two at a time.
    """
    install(["train", "test", "dev"], compiler=True)
    binaries = VENV / "bin"
    steps: list[tuple[str, list[str | Path]]] = [
        ("ruff check", [binaries / "ruff", "check"]),
        ("ruff format --check", [binaries / "ruff", "format", "--check"]),
        ("mypy", [binaries / "mypy"]),
        ("lint-imports", [binaries / "lint-imports"]),
        ("clang-format", [binaries / "clang-format", "--dry-run", "--Werror", *cuda_sources()]),
        ("resource report", [PYTHON, "tools/resource_report.py"]),
    ]
    # worksteal: each worker begins with half of the tests in a row, so that what a module's tests share is made once
    pytest: list[str | Path] = [PYTHON, "-m", "pytest", "-m", "not slow and not gpu", "-n", "2", "--dist", "worksteal"]
    failed: list[tuple[str, int]] = []

    def ended(name: str, code: int) -> None:
        if code != 0:
            failed.append((name, code))
            print(f"{name}: failed with exit code {code}", flush=True)

    with ThreadPoolExecutor(2) as pool:
        for (name, _), (code, text, seconds) in zip(steps, pool.map(run_quietly, [c for _, c in steps]), strict=True):
            say(f"{name} ({seconds:.0f} s)")
            print(text, end="", flush=True)
            ended(name, code)
    say("pytest")
    ended("pytest", run([*pytest, *rest]))
    if failed:
        raise Failure("failed: " + ", ".join(name for name, _ in failed), failed[-1][1])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train_parser = commands.add_parser("train", help="install, fetch the sample bars, train on them")
    train_parser.add_argument("--short", action="store_true", help="a shortened run, for CI")
    train_parser.set_defaults(action=train)
    commands.add_parser("test", help="install, lint, build, test").set_defaults(action=test)
    options, rest = parser.parse_known_args()
    try:
        check_machine()
        make_venv()
        return int(options.action(options, rest))
    except Failure as failure:
        print(f"\nerror: {failure}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
