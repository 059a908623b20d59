"""The element-count expressions of the ABI's annotations."""

from __future__ import annotations

import pickle

import pytest

from foxhunt_rt.kernels.expression import Expression


@pytest.mark.parametrize(
    ("text", "value"),
    [("n", 7), ("R*Np", 48), ("n/2", 3), ("2*(R+1)-n/4", 7), ("-R + 4", 1), ("R - -R", 6), ("1", 1)],
)
def test_value(text: str, value: int) -> None:
    assert Expression(text).evaluate({"n": 7, "R": 3, "Np": 16}) == value


def test_division_rounds_down_below_zero() -> None:
    assert Expression("(0-7)/2").evaluate({}) == -4


def test_large_values_are_exact() -> None:
    assert Expression("a*b").evaluate({"a": 2**40, "b": 2**40 + 1}) == 2**80 + 2**40


@pytest.mark.parametrize(
    "text", ["n**2", "n%2", "f(n)", "n.real", "n[0]", "1.5", "True", "'n'", "n if n else 1", "n==1", "n//2", "~n", "+n"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="something other than names, integers"):
        Expression(text)


@pytest.mark.parametrize("text", ["", "n+", "(n", "n;m", "import os"])
def test_broken_syntax_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no expression"):
        Expression(text)


def test_names_and_pickle() -> None:
    expression = Expression("R*Np + 1")
    assert expression.names == {"R", "Np"}
    assert pickle.loads(pickle.dumps(expression)) == expression
