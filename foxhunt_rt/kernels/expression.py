"""Element counts of the ABI's annotations: integer expressions over a struct's scalar fields, such as ``R*Np + 2*(K/32)``.

Python's own parser reads them and a walk over the tree evaluates them; nothing but ``+ - * / ( )``, names and integers
is let through, and ``/`` rounds down. Imports nothing of the package: the build uses this file too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


@dataclass(frozen=True)
class Expression:
    """A checked expression.

    Attributes
    ----------
    text : str
        As written.
    names : frozenset of str
        The names it needs.
    """

    text: str
    names: frozenset[str] = field(init=False)
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except SyntaxError:
            raise ValueError(f"{self.text!r} is no expression") from None
        object.__setattr__(self, "names", frozenset(_check(tree, self.text)))
        object.__setattr__(self, "_tree", tree)

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return type(self), (self.text,)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value with these names. Raises KeyError for a missing name, ZeroDivisionError for a division by 0."""
        return _evaluate(self._tree, values)


def _check(node: ast.expr, text: str) -> set[str]:
    """The names below `node`; ValueError for anything that is not allowed."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        return _check(node.left, text) | _check(node.right, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _check(node.operand, text)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    raise ValueError(f"{text!r} holds something other than names, integers and + - * / ( )")


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, values), _evaluate(node.right, values)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        return left // right
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, values)
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return node.value
    assert isinstance(node, ast.Name)
    return values[node.id]
