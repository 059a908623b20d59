"""The code of a page of documentation, in order.

| block | is |
| --- | --- |
| ```` ```python ```` | run, in one process a page, in order |
| ```` ```python step.py ```` | written to that file |
| ```` ```c++ own.cu ```` | written to that file |
| ```` ```sh ```` | run by bash in the page's folder |
| ```` ```text ```` right behind one that is run | what it prints; ``...`` stands for anything |
| ``<!-- python ... -->`` | run, not shown: what an example takes for granted |

A word behind the language leaves a block out where its need is not there: ``gpu`` (a GPU, or a library that needs one),
``network`` or ``takes-long``. Python is compiled all the same. A picture of a command's options is indented, not fenced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NEEDS = ("gpu", "network", "takes-long")
LANGUAGES = ("python", "sh", "c++", "c", "text", "toml", "json")
_FENCE = re.compile(
    r"^(?P<pad> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=pad)```$|^<!-- python\n(?P<hidden>.*?)^-->$", re.S | re.M
)


@dataclass(frozen=True)
class Block:
    """``line`` is that of its first line of code; ``path`` where it is to be written; ``expected`` what it prints."""

    line: int
    language: str
    code: str
    path: str | None = None
    need: str | None = None
    expected: str | None = None


def read(page: Path) -> list[Block]:
    """The blocks of a page.

    Raises
    ------
    ValueError
        A fence without a language that is known.
    """
    text = page.read_text()
    found: list[Block] = []
    last_end = -1
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        if match["hidden"] is not None:
            found.append(Block(line, "python", match["hidden"]))
            last_end = match.end()
            continue
        words = match["info"].split()
        if not words or words[0] not in LANGUAGES:
            raise ValueError(
                f"{page.name}:{line - 1}: a fence of {words[:1] or 'no language'}: use {', '.join(LANGUAGES)}"
            )
        pad = len(match["pad"])
        code = "".join(row[pad:] if row.strip() else row for row in match["body"].splitlines(keepends=True))
        rest = words[1:]
        need = next((w for w in rest if w in NEEDS), None)
        path = next((w for w in rest if w not in NEEDS), None)
        follows = not text[last_end : match.start()].strip() if last_end >= 0 else False
        if (
            words[0] == "text"
            and follows
            and found
            and found[-1].language in ("python", "sh")
            and found[-1].path is None
        ):
            b = found[-1]
            found[-1] = Block(b.line, b.language, b.code, b.path, b.need, code)
        else:
            found.append(Block(line, words[0], code, path, need))
        last_end = match.end()
    return found


def indented_python(page: Path) -> list[int]:
    """Lines at which an indented block is Python that does something, which nobody would run."""
    import ast

    found, block, start = [], [], 0
    in_fence = False
    shown = re.sub(r"^<!-- python\n.*?^-->$", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.S | re.M)
    for number, row in enumerate([*shown.splitlines(), ""], 1):
        if row.lstrip().startswith("```"):
            in_fence = not in_fence
        if not in_fence and (row.startswith("    ") or (block and not row.strip())):
            start = start if block else number
            block.append(row[4:])
            continue
        if block:
            try:
                tree = ast.parse("\n".join(block))
            except SyntaxError:
                tree = ast.parse("")
            if any(isinstance(node, (ast.Import, ast.ImportFrom, ast.Call, ast.With)) for node in ast.walk(tree)):
                found.append(start)
            block = []
    return found


def agrees(expected: str, printed: str) -> bool:
    """Whether an output is the one shown, ``...`` standing for anything, spaces at line ends not counting."""

    def plain(text: str) -> str:
        return "\n".join(row.rstrip() for row in text.strip().splitlines())

    pattern = ".*?".join(map(re.escape, plain(expected).split("...")))
    return re.fullmatch(pattern, plain(printed), re.S) is not None
