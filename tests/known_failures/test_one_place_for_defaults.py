"""Known failure K20: a default (quantiles 64) overrode the configuration (32) in two programs.

The number of a setting stands in config.py and nowhere else. Searched for: parameters and fields that bear a setting's name and
have a value, options of a command line with such a name and a default, and questions to the configuration that bring an answer
along (``getattr(config, "atoms", 51)``, ``config.get("atoms", 51)``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from foxhunt_rt.config import Config

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("foxhunt_rt/dqn", "foxhunt_rt/train", "foxhunt_rt/cli", "foxhunt_rt/telemetry", "tools/bench")
KEYS = [key for key, _, _, _ in Config().options()]
SETTINGS = {key.rsplit(".", 1)[1] for key in KEYS}
#: The learner knows no market: an agent's number of environments, say, is not that of the market's collector.
LEARNER_SETTINGS = {key.rsplit(".", 1)[1] for key in KEYS if not key.startswith("market.")}


def is_value(node: ast.expr | None) -> bool:
    """A number, text or tuple of them; None and booleans only say that something was left out or is switched."""
    if isinstance(node, ast.UnaryOp):
        return is_value(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        return bool(node.elts) and all(is_value(e) for e in node.elts)
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float, str))
        and not isinstance(node.value, bool)
    )


def named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """(name, value it falls back on) of what a node declares."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        args = node.args
        positional = [*args.posonlyargs, *args.args]
        yield from zip([a.arg for a in positional[len(positional) - len(args.defaults) :]], args.defaults, strict=True)
        yield from zip([a.arg for a in args.kwonlyargs], args.kw_defaults, strict=True)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if name == "add_argument":
            value = next((k.value for k in node.keywords if k.arg == "default"), None)
            for word in node.args:
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    yield word.value.lstrip("-").replace("-", "_"), value
        elif name == "getattr" and len(node.args) == 3 and isinstance(node.args[1], ast.Constant):
            yield str(node.args[1].value), node.args[2]
        elif name == "get" and len(node.args) == 2 and isinstance(first, str) and "config" in ast.unparse(node.func):
            yield first.rsplit(".", 1)[-1], node.args[1]


def own_defaults(text: str, settings: set[str] = SETTINGS) -> list[str]:
    """Settings that a program gives a value of its own, with the line."""
    return [f"line {getattr(node, 'lineno', 0)}: {name}" for node in ast.walk(ast.parse(text))
            for name, value in named_values(node) if name in settings and is_value(value)]  # fmt: skip


@pytest.mark.parametrize(
    "planted",
    [
        "def f(x, atoms=64): ...",
        "def f(*, lr: float = 1e-3): ...",
        "class C:\n    hidden: tuple[int, ...] = (64, 64)",
        "parser.add_argument('--atoms', type=int, default=64)",
        "getattr(config.network, 'atoms', 64)",
        "self.config.get('network.atoms', 64)",
    ],
)
def test_the_search_finds_each_way_to_hold_a_default(planted: str) -> None:
    assert len(own_defaults(planted)) == 1


@pytest.mark.parametrize(
    "right",
    ["def f(x, atoms, lr=None): ...", "parser.add_argument('--seed', type=int)", "getattr(config.network, 'atoms')"],
)
def test_what_holds_none_is_left_alone(right: str) -> None:
    assert own_defaults(right) == []


def test_no_program_holds_a_default_of_a_setting() -> None:
    found = {}
    for folder in PROGRAMS:
        settings = LEARNER_SETTINGS if folder.endswith("dqn") else SETTINGS
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            # The peers that the step is measured beside are programs of their own, without this package.
            if "peers" not in path.parts and (lines := own_defaults(text, settings)):
                found[str(path.relative_to(ROOT))] = lines
    assert found == {}, "take the value from the configuration"


def test_no_function_of_the_programs_falls_back_on_a_number() -> None:
    """Whatever its name: what trains and what talks to the user take numbers from the configuration."""
    found = []
    for folder in ("foxhunt_rt/train", "foxhunt_rt/cli"):
        for path in sorted((ROOT / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    for value in [*node.args.defaults, *node.args.kw_defaults]:
                        if is_value(value) and not isinstance(getattr(value, "value", None), str):
                            found.append(f"{path.name}: {node.name}")
    assert found == []
