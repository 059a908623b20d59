"""Runs scripts of the conformance suite, each in a fork of this process: starting Python anew takes a second each.

Reads one JSON object a line, {"code", "env"}; answers {"status", "output"}. The driver is loaded in the forks alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import cuda.bindings.driver  # noqa: F401  (imported once for all forks; loads no driver)
import raw_driver

TIME_LIMIT_S = 60


def run(code: str, env: dict[str, str], output: int) -> None:
    signal.alarm(TIME_LIMIT_S)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(env)
    status = 0
    try:
        exec(code, dict(vars(raw_driver)))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


for line in sys.stdin:
    request = json.loads(line)
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            run(request["code"], request["env"], file.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        file.seek(0)
        output = file.read().decode()
    print(json.dumps({"status": status, "output": output}), flush=True)
