"""What the configuration is made of: options with a description and a range, sections that check them, and the ways values come
in: nested mappings, text of the command line.

Knows no option of its own: those stand in config.py.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from foxhunt_rt._names import choose


class ConfigError(ValueError):
    """A configuration value or key that cannot be used; the message is one line and says what to write instead."""


def option(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field with its description and range: `low <= x <= high`, `above < x < below`; of tuples, every element."""
    metadata = {"doc": doc, "low": low, "high": high, "above": above, "below": below, "choices": choices}
    if dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=type(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def _cached_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def hints(cls: Any) -> dict[str, Any]:
    return _cached_hints(cls)


def type_name(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return f"list of {type_name(typing.get_args(kind)[0])}"
    return {int: "integer", float: "number", bool: "true or false", str: "text"}.get(kind, str(kind))


def _typed(key: str, kind: Any, value: Any) -> Any:
    """`value` as the declared type; only conversions that lose nothing (integer to number, list to tuple)."""
    if typing.get_origin(kind) is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(_typed(key, typing.get_args(kind)[0], item) for item in value)
    elif kind is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ConfigError(f"{key} = {value} is not finite; give a number")
            return float(value)
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif isinstance(value, kind):
        return value
    raise ConfigError(f"{key} = {value!r} has the wrong type; give a value of type {type_name(kind)}")


def _in_range(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if metadata["choices"] is not None and item not in metadata["choices"]:
            raise ConfigError(f"{key} = {item!r} is unknown; choose one of {', '.join(metadata['choices'])}")
        for bound, refuse, text in (
            (metadata["low"], operator.lt, "at least"),
            (metadata["high"], operator.gt, "at most"),
            (metadata["above"], operator.le, "above"),
            (metadata["below"], operator.ge, "below"),
        ):
            if bound is not None and refuse(item, bound):
                raise ConfigError(f"{key} = {item} is out of range; give a value {text} {bound:g}")


class Section:
    """One table of options: a frozen dataclass whose fields are made by `option`. Types and ranges of every field are checked
    when an instance is made."""

    section = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            key = f"{self.section}.{field.name}"
            value = getattr(self, field.name)
            kind = hints(type(self))[field.name]
            if dataclasses.is_dataclass(kind):
                if not isinstance(value, kind):  # type: ignore[arg-type]
                    raise ConfigError(f"{key} must be a table of options")
                continue
            value = _typed(key, kind, value)
            _in_range(key, value, field.metadata)
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Rules over several fields of the section."""

    @property
    def on(self) -> bool:
        """Whether it switches something on."""
        return bool(getattr(self, "enabled", False))


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"unknown {what}; {choose(name, known)}"


def merged(node: Any, values: Mapping[str, Any], prefix: str) -> Any:
    names = [field.name for field in dataclasses.fields(node)]
    changes: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in names:
            raise ConfigError(unknown(f"key {key}", name, names))
        current = getattr(node, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{key} is a table; write its keys as {key}.key=value")
            value = merged(current, value, f"{key}.")
        changes[name] = value
    return dataclasses.replace(node, **changes)


def kind_of(node: Any, path: list[str]) -> Any:
    """Declared type of the option at `path`."""
    for depth, name in enumerate(path):
        if not dataclasses.is_dataclass(node):
            raise ConfigError(
                f"{'.'.join(path)} goes below {'.'.join(path[:depth])}, which is a value; leave the rest out"
            )
        names = [field.name for field in dataclasses.fields(node)]
        if name not in names:
            raise ConfigError(unknown(f"key {'.'.join(path[: depth + 1])}", name, names))
        kind = hints(type(node))[name]
        node = getattr(node, name)
    if dataclasses.is_dataclass(node):
        raise ConfigError(f"{'.'.join(path)} is a table; write its keys as {'.'.join(path)}.key=value")
    return kind


def parse(key: str, kind: Any, text: str) -> Any:
    """The value that `text`, from the command line, stands for."""
    if typing.get_origin(kind) is tuple:
        inner = text.strip("[]() ")
        return tuple(parse(key, typing.get_args(kind)[0], part.strip()) for part in inner.split(",") if part.strip())
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return int(text.replace("_", ""), 0)
        if kind is float:
            return float(text)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{key} = {text!r} cannot be read; give a value of type {type_name(kind)}") from error
    return text.strip("\"'")


def listed(node: Any, prefix: str) -> Iterator[tuple[str, str, Any, str]]:
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            yield from listed(value, f"{prefix}{field.name}.")
        else:
            kind = hints(type(node))[field.name]
            yield f"{prefix}{field.name}", type_name(kind), value, field.metadata["doc"]
