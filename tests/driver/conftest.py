"""Fixtures of the driver conformance suite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .raw_driver import RawDriver


@pytest.fixture(scope="session")
def session_driver() -> RawDriver:
    return RawDriver()


@pytest.fixture
def cu(session_driver: RawDriver) -> Iterator[RawDriver]:
    """The driver with the primary context current; captures and queued work are over when the test is."""
    session_driver.cuCtxSetCurrent(session_driver.context)
    yield session_driver
    session_driver.cuCtxSetCurrent(session_driver.context)
    session_driver.end_captures()
    session_driver.cuCtxSynchronize()


@pytest.fixture(scope="session")
def script_server() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything and loaded no driver; it forks for each script. SIGINT is as from a terminal: what a
    shell starts in the background inherits that it is ignored."""
    program = Path(__file__).with_name("script_server.py")
    server = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip
    yield server
    server.communicate()


@pytest.fixture
def script(script_server: subprocess.Popen[str]) -> Callable[..., str]:
    """Runs code in a process of its own, for what kills a context or needs hostsim options; returns its output."""

    def run(code: str, hostsim: str = "", **env: Any) -> str:
        answer = ask(script_server, code, False, hostsim, env)
        assert answer["status"] == 0, answer["output"]
        return str(answer["output"]).strip()

    return run


@dataclass(frozen=True)
class Ended:
    """How a program ended: the exit status, or minus the signal that killed it, and what it wrote."""

    status: int
    output: str
    errors: str


@pytest.fixture
def program(script_server: subprocess.Popen[str]) -> Callable[..., Ended]:
    """Runs code as a program whose interpreter ends like any other; returns how it ended."""

    def run(code: str, hostsim: str = "", **env: Any) -> Ended:
        answer = ask(script_server, code, True, hostsim, env)
        return Ended(answer["status"], answer["output"], answer["errors"])

    return run


def ask(server: subprocess.Popen[str], code: str, whole: bool, hostsim: str, env: dict[str, Any]) -> dict[str, Any]:
    assert server.stdin is not None and server.stdout is not None
    driver = os.environ.get("FOXHUNT_DRIVER", "hostsim")
    request = {"code": code, "whole": whole, "env": {"FOXHUNT_DRIVER": driver, "FOXHUNT_HOSTSIM": hostsim, **env}}
    print(json.dumps(request), file=server.stdin, flush=True)
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer
