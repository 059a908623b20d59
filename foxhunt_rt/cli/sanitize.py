"""Run a command under compute-sanitizer, and name child, kernel, argument and allocation of what it finds.

On hostsim the same command runs in its strict modes instead: red zones and poisoned memory, and for racecheck another order of
blocks and threads. Write the command behind `--`, for example

    foxhunt-rt sanitize --tool memcheck -- foxhunt-rt verify --steps 3

Exit code 0 when nothing was found and the command ended with 0, else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxhunt_rt.cli.errors import ExitCode, UsageError

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: hostsim's modes by tool. It looks for barriers that some threads do not reach in every mode.
MODES = {"memcheck": "deferred=1,redzones=1", "racecheck": "redzones=1,seed=1", "initcheck": "redzones=1,poison=1",
         "synccheck": "redzones=1"}  # fmt: skip
#: Where toolkits keep it beside PATH.
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


class SanitizerMissing(Exception):
    """compute-sanitizer is not installed."""


@dataclass(frozen=True)
class Finding:
    """One error, or several of the same kind at the same place.

    Attributes
    ----------
    what : str
        The sanitizer's own words.
    kernel : str
    times : int
        How often it was reported.
    thread : str or None
        Of the first.
    children : list of str
        ``plan/child`` whose launch of the kernel got the allocation; all that launch the kernel where none did.
    argument, index : str or None
        ``"y"``, ``"70 of 64 of gradient7"``.
    allocation : str or None
        Label.
    """

    what: str
    kernel: str
    times: int
    thread: str | None
    children: list[str]
    argument: str | None
    index: str | None
    allocation: str | None

    def __str__(self) -> str:
        where = " or ".join(self.children) or "no child of ours"
        parts = [f"child {where}", f"kernel {self.kernel}"]
        parts += [f"argument {self.argument}, index {self.index}"] if self.argument else []
        parts += [f"allocation {self.allocation}"] if self.allocation else []
        parts += [self.thread] if self.thread else []
        return f"{self.what}: {', '.join(parts)}" + (f" ({self.times} times)" if self.times > 1 else "")


@dataclass(frozen=True)
class Report:
    """One error as it is reported. The allocation is known by ``start``, or by ``label`` with the ``offset`` into it."""

    what: str
    kernel: str
    thread: str | None = None
    address: int | None = None
    start: int | None = None
    label: str | None = None
    size: int | None = None
    offset: int | None = None


_HEADS = ("Invalid ", "Misaligned ", "Uninitialized ", "Barrier error", "Race reported", "Error: Race", "Warning: Race",
          "Error: Potential", "Malloc/Free error", "Stack overflow", "Program hit CUDA_ERROR_ILLEGAL")  # fmt: skip
_KERNEL = re.compile(r"\bat (?:0x[0-9a-fA-F]+ in (?:\S+?:\d+:)?|(?=[A-Za-z_]))(?:void )?(?P<name>[A-Za-z_]\w*)")
_THREAD = re.compile(r"by thread \((?P<thread>[\d,]+)\) in block \((?P<block>[\d,]+)\)")
_ADDRESS = re.compile(r"\b(?:Address|Access (?:at|to)) (?P<address>0x[0-9a-fA-F]+)")
_RACE = re.compile(
    r"Race reported between (?P<one>\w+) access at .*? and (?P<other>\w+) access at .*?\[(?P<hazards>\d+) hazards?\]"
)
_NEAREST = re.compile(
    r"bytes (?:after|before) the nearest allocation at (?P<start>0x[0-9a-fA-F]+) +of size (?P<size>[\d,]+)"
)
_WHERE = r"kernel (?P<kernel>\w+)(?:, block \((?P<block>[\d,]+)\)(?:, thread \((?P<thread>[\d,]+)\))?)?: "
_ILLEGAL = (r"illegal address (?P<address>0x[0-9a-f]+): [^;\n]*?"
            r"(?:\(\d+ bytes\)(?:, which has been freed)?|in no allocation|a null pointer)")  # fmt: skip
_WROTE = r"wrote (?P<by>\d+) bytes (?P<side>behind|before) (?P<label>[^;\n]+?) \((?P<size>\d+) bytes\)"
_BARRIER = r"divergent barrier: of \d+ threads [^;\n]+?have exited"
_MASK = r"lane \d+ calls a warp function with mask \w+, which does not name it"
_HOSTSIM = re.compile(f"{_WHERE}(?P<what>{_ILLEGAL}|{_WROTE}|{_BARRIER}|{_MASK}|integer division by zero or overflow)")


def parse_sanitizer(text: str) -> list[Report]:
    """Reads the log of compute-sanitizer, of any of its four tools."""
    found: list[Report] = []
    paragraph: list[str] = []

    def end() -> None:
        if paragraph:
            body = " ".join(paragraph)
            kernel, thread, address, nearest = (p.search(body) for p in (_KERNEL, _THREAD, _ADDRESS, _NEAREST))
            what = re.sub(r" (?:access )?at .*", "", paragraph[0].removeprefix("Error: ")).rstrip(". ")
            race = _RACE.search(body)
            if race:
                between = f"{race['one']} and {race['other']} access of shared memory"
                what = f"Race reported between {between}, {race['hazards']} hazards"
            found.append(Report(what, kernel["name"] if kernel else "?",
                                f"block ({thread['block']}), thread ({thread['thread']})" if thread else None,
                                int(address["address"], 16) if address else None,
                                int(nearest["start"], 16) if nearest else None,
                                size=int(nearest["size"].replace(",", "")) if nearest else None))  # fmt: skip
        paragraph.clear()

    for raw in text.splitlines():
        if not raw.startswith("========="):
            continue
        line = raw.removeprefix("=========").strip()
        if line.startswith(_HEADS):
            end()
            paragraph.append(line)
        elif not line or "SUMMARY" in line or line.startswith("COMPUTE-SANITIZER"):
            end()
        elif paragraph and not line.startswith(("Saved host", "Host Frame", "in /")):
            paragraph.append(line)
    end()
    return found


def parse_hostsim(text: str) -> list[Report]:
    """Finds hostsim's reports in what a command wrote."""
    found = []
    for m in _HOSTSIM.finditer(text):
        where = f"block ({m['block']}), thread ({m['thread']})" if m["thread"] else None
        offset = None
        if m["by"]:
            offset = int(m["size"]) + int(m["by"]) if m["side"] == "behind" else -int(m["by"])
        found.append(Report(m["what"], m["kernel"], where, int(m["address"], 16) if m["address"] else None, None, m["label"],
                            int(m["size"]) if m["size"] else None, offset))  # fmt: skip
    return list(dict.fromkeys(found))


def locate(reports: Iterable[Report], launches: Sequence[dict[str, Any]]) -> list[Finding]:
    """Maps reports to children, arguments and labels by the launch map, and joins those of one kind at one place."""
    joined: dict[tuple[Any, ...], Finding] = {}
    for report in reports:
        own = [entry for entry in launches if entry["kernel"] == report.kernel]
        hits: list[tuple[int, str, str, str, str]] = []  # distance, child, argument, index, label
        for entry in own:
            for name, use in entry["args"].items():
                same = True
                if report.start is not None:
                    same = report.start == use["start"]
                elif report.label is not None:
                    same = (report.label, report.size) == (use["label"], use["size"])
                address = report.address
                if address is None and report.offset is not None and same:
                    address = use["start"] + report.offset
                if not same or address is None:
                    continue
                away = max(use["ptr"] - address, address - (use["ptr"] + use["nbytes"]) + 1, 0)
                index = f"{(address - use['ptr']) // use['item']} of {use['nbytes'] // use['item']} of {use['buffer']}"
                hits.append((away, entry["user"], name, index, use["label"]))
        best = min((h[0] for h in hits), default=None)
        if best is not None and report.start is None and report.label is None and best > 1 << 24:
            hits, best = [], None  # an address near nothing that the kernel was given
        near = [h for h in hits if h[0] == best]
        children = list(dict.fromkeys([h[1] for h in near] or [entry["user"] for entry in own]))
        argument = " or ".join(dict.fromkeys(h[2] for h in near)) or None
        label = near[0][4] if near else report.label
        what = "illegal address" if report.what.startswith("illegal address") else report.what
        key = (what, report.kernel, tuple(children), argument, label)
        before = joined.get(key)
        joined[key] = dataclasses.replace(before, times=before.times + 1) if before else Finding(
            what, report.kernel, 1, report.thread, children, argument, near[0][3] if near else None, label)  # fmt: skip
    return list(joined.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The tool, and the command behind ``--``."""
    parser.add_argument("--tool", choices=TOOLS, default="memcheck", help="what to look for (default: %(default)s)")
    parser.add_argument(
        "--save", metavar="FOLDER", help="keep the report as it was written, and which launch got what memory"
    )
    parser.add_argument("command_line", nargs="*", metavar="CMD", help="behind --: the command and its arguments")


def run(args: argparse.Namespace) -> int:
    """Runs, reads, maps, prints."""
    if not args.command_line:
        raise UsageError("no command to run: write it behind --, for example foxhunt-rt sanitize -- foxhunt-rt verify")
    with tempfile.TemporaryDirectory() as folder:
        map_file, log = Path(folder, "launches.jsonl"), Path(folder, "report.txt")
        driver = driver_kind()
        environment = {**os.environ, "FOXHUNT_DRIVER": driver, "FOXHUNT_LAUNCH_MAP": str(map_file)}
        command = resolved(args.command_line)
        if driver == "cuda":
            tool = [sanitizer(), "--tool", args.tool, "--log-file", str(log), "--target-processes", "all",
                    "--report-api-errors", "no"]  # fmt: skip
            code = subprocess.run([*tool, *command], env=environment, check=False).returncode
            text = log.read_text(errors="replace") if log.exists() else ""
            reports = parse_sanitizer(text)
        else:
            modes = ",".join(filter(None, [os.environ.get("FOXHUNT_HOSTSIM", ""), MODES[args.tool]]))
            code, text = watched(command, {**environment, "FOXHUNT_HOSTSIM": modes})
            reports = parse_hostsim(text)
        known = map_file.read_text() if map_file.exists() else ""
        if args.save:
            Path(args.save).mkdir(parents=True, exist_ok=True)
            Path(args.save, "report.txt").write_text(text)
            Path(args.save, "launches.jsonl").write_text(known)
        launches = [json.loads(line) for line in known.splitlines()]
    findings = locate(reports, launches)
    for finding in findings:
        print(f"! {finding}")
    failed = bool(findings) or code != 0
    print(
        f"{args.tool} on {driver}: {len(findings)} findings, the command ended with {code}, {len(launches)} launches known"
    )
    if args.json:
        print(json.dumps({"status": "found" if findings else "failed" if failed else "ok", "driver": driver, "tool": args.tool,
                          "exit_code": code, "findings": [dataclasses.asdict(f) for f in findings]}))  # fmt: skip
    return int(ExitCode.FAILURE if failed else ExitCode.OK)


def driver_kind() -> str:
    """What the command would load, without loading it here."""
    from foxhunt_rt.driver import gpu_count

    want = os.environ.get("FOXHUNT_DRIVER", "auto")
    return want if want in ("cuda", "hostsim") else "cuda" if gpu_count() else "hostsim"


def resolved(command: Sequence[str]) -> list[str]:
    """The command, with our own name replaced by this interpreter and package."""
    if command[0] == "foxhunt-rt":
        return [sys.executable, "-m", "foxhunt_rt", *command[1:]]
    if shutil.which(command[0]) is None:
        raise UsageError(f"no command {command[0]!r} on PATH")
    return list(command)


def sanitizer() -> str:
    """compute-sanitizer's path."""
    roots = [str(Path(root, "bin")) for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if root]
    found = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join([*roots, *PLACES])
    )
    if found is None:
        raise SanitizerMissing(
            "compute-sanitizer is not installed: it comes with the CUDA toolkit; or set FOXHUNT_DRIVER=hostsim"
        )
    return found


def watched(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Runs a command, passes on what it writes to stderr, and returns that with its exit code."""
    lines: list[str] = []
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            lines.append(line)
    return process.returncode, "".join(lines)
