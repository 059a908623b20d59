"""Runs scripts of this suite, each in a fork of this process: starting Python anew takes a second each.

Reads one JSON object a line, {"code", "env", "whole"}; answers {"status", "output", "errors"}. The driver is loaded in the forks
alone. A script sees the raw driver and leaves by os._exit; a "whole" one is a program: it is the module __main__, and the
interpreter ends as it does for any other.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
import cuda.bindings.driver  # noqa: F401  (imported once for all forks; loads no driver)
import raw_driver

import foxhunt_rt.dqn
import foxhunt_rt.interop

TIME_LIMIT_S = 60


def linger() -> None:
    """Gives daemon threads time to run between the package's own exit function and the end of the interpreter."""
    time.sleep(float(os.environ.get("LINGER_S", "0")))


atexit.unregister(foxhunt_rt.driver.context._at_exit)
atexit.register(linger)  # these run last first
atexit.register(foxhunt_rt.driver.context._at_exit)


def enter(env: dict[str, str], output: int, errors: int) -> None:
    signal.alarm(TIME_LIMIT_S)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.environ.update(env)


def run(code: str) -> None:
    status = 0
    try:
        exec(code, dict(vars(raw_driver)))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def program(code: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(code, "<script>", "exec"), vars(module))


def serve() -> str | None:
    """Answers requests; returns in a fork that is a program, with its code."""
    for line in sys.stdin:
        request = json.loads(line)
        whole = request.get("whole", False)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            pid = os.fork()
            if pid == 0:
                enter(request["env"], output.fileno(), (errors if whole else output).fileno())
                if whole:
                    return str(request["code"])
                run(request["code"])
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode())
        print(json.dumps({"status": status, "output": texts[0], "errors": texts[1]}), flush=True)
    return None


code = serve()
if code is not None:
    program(code)
