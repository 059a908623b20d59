"""Parses the command line, runs one command, and turns every exception into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from foxhunt_rt import __version__
from foxhunt_rt._names import choose
from foxhunt_rt.cli.errors import ExitCode, Terminated, UsageError, exit_code, one_line

#: When the command began, for the wall time it reports.
BEGAN = time.perf_counter()

#: Command -> what `--help` says of it; the module has the command's name.
COMMANDS = {
    "train": "walk-forward training on bars, from a file, the sample, or a simulated market",
    "sample": "fetch the sample bars: 62,500 bars of real ES trades",
    "doctor": "what is installed, what fits this machine, and what to do about what does not",
    "graph": "the step graph: children, kernels, modules, nodes, longest chain",
    "plan": "how much memory training will take, by label, before anything is allocated",
    "profile": "where the time of a step goes, by child and by launch, and the known causes of a slow one",
    "probe": "measure this device: what sharing functions costs (isolation), each kind of work (floors), what it does (quirks)",
    "sanitize": "run a command under compute-sanitizer; name child, kernel, argument and allocation of what it finds",
    "verify": "check that a replayed step equals the same launches one by one, bit for bit",
}


class _Parser(argparse.ArgumentParser):
    """Raises one-line errors instead of printing usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(prog="foxhunt-rt", description="A DQN trainer whose whole training step is one CUDA graph launch.",
                     epilog="Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 data, 4 this machine lacks "
                            "something, 5 guard fault, 130 Ctrl-C, 143 SIGTERM. More in docs/cli.md.")  # fmt: skip
    parser.add_argument("--version", action="version", version=f"foxhunt-rt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, help_line in COMMANDS.items():
        module = importlib.import_module(f"foxhunt_rt.cli.{name}")
        command = commands.add_parser(name, help=help_line, description=module.__doc__, allow_abbrev=False,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="the last line of stdout is one JSON object")
        command.add_argument("-v", "--verbose", action="store_true", help="errors with their traceback")
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `foxhunt-rt`; returns the exit code. Errors go to stderr as one line, with `-v` after their traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    verbose, as_json = bool({"-v", "--verbose"} & set(argv)), "--json" in argv
    try:
        with _terminated():
            return _dispatch(argv)
    except BrokenPipeError:  # the reader of a pipe left, as `head` does: no message, but not everything was done either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.FAILURE)
    except (Exception, KeyboardInterrupt) as error:
        if verbose:
            traceback.print_exc()
        code, line = exit_code(error), one_line(error)
        print(f"foxhunt-rt: {line}", file=sys.stderr)
        if as_json:
            print(json.dumps({"status": "error", "exit_code": int(code), "error": line}), flush=True)
        return int(code)


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM raises as Ctrl-C does, so that files are closed and one line is said. A handler that is there already stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated("terminated; nothing was written")

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _dispatch(argv: list[str]) -> int:
    parser = build_parser()
    word = next((a for a in argv if not a.startswith("-")), None)
    if argv and argv[0] == word and word not in COMMANDS:
        raise UsageError(f"no command {word!r}; {choose(word, COMMANDS)}")
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return int(ExitCode.OK)
    code = int(args.run(args))
    sys.stdout.flush()
    return code
