"""Runs the blocks of one page in the folder it is started in: python run_page.py PAGE [NEED ...].

Ends with 1 at the first that is wrong.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import blocks


def run(block: blocks.Block, page: Path, names: dict[str, Any]) -> str:
    """What the block prints."""
    if block.language == "sh":
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", block.code], capture_output=True, text=True, check=False
        )
        if done.returncode and not block.code.rstrip().endswith("|| true"):
            raise RuntimeError(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if block.code.rstrip().endswith("|| true") else "")
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def main() -> int:
    page, have = Path(sys.argv[1]).resolve(), sys.argv[2:]
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks.read(page):
        where = f"{page.name}:{block.line}"
        if block.path is not None:
            path = Path(block.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.language == "python" and block.need is not None and block.need not in have:
            compile(block.code, where, "exec")
        elif block.language in ("python", "sh") and (block.need is None or block.need in have):
            try:
                printed = run(block, page, names)
            except BaseException:
                print(f"{where} fails\n{block.code}\n{traceback.format_exc()}")
                return 1
            if block.expected is not None and not blocks.agrees(block.expected, printed):
                print(f"{where} prints something else\n--- shown\n{block.expected}\n--- printed\n{printed}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
