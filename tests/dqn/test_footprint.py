"""docs/footprint.md is what building each feature finds, and what is off adds nothing whatever its options say."""

from __future__ import annotations

import dataclasses
from typing import Any

import footprint_docs
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.features import FEATURES

pytestmark = pytest.mark.hostsim  # on a GPU measurement decides by which kernels some products are made

#: Changed by hand, where a bound of one option is another's value.
TOGETHER = {"adaptive_gamma": {"low": 0.7, "high": 0.95, "use_low": 0.3, "use_high": 0.8},
            "prune": {"sparsity": 0.4, "first_epoch": 2, "last_epoch": 5}, "horizons": {"lengths": (2, 7), "bound": 0.1},
            "plan": {"length": 21, "block_bars": 300, "rate": 0.02},
            "counterfactual": {"share": 0.5, "cycles": (1, 4)}}  # fmt: skip


def changed(section: Any) -> dict[str, Any]:
    """Every option of a section that is off, with another value than it has."""

    def other(field: dataclasses.Field[Any], value: Any) -> Any:
        if field.metadata["choices"]:
            return next(choice for choice in field.metadata["choices"] if choice != value)
        if isinstance(value, bool):
            return not value
        if isinstance(value, tuple):
            return tuple(0.9 * x if isinstance(x, float) else x + 1 for x in value) or (3,)
        at_most = field.metadata["high"]
        if isinstance(value, int):
            return value + 1 if at_most is None or value < at_most else value - 1
        return value * 0.9 if value else 0.5

    return {field.name: other(field, getattr(section, field.name)) for field in dataclasses.fields(section)
            if field.name != "enabled"}  # fmt: skip


def test_the_page_is_what_is_built() -> None:
    assert footprint_docs.PAGE.read_text(encoding="utf-8") == footprint_docs.page(), (
        "run python tools/footprint_docs.py"
    )


def test_every_switch_has_a_row() -> None:
    switches = {key for key, *_ in Config().options() if key.endswith(".enabled")}
    assert set(footprint_docs.SWITCHES) == switches | {"network.residual"}


def test_what_is_off_is_exactly_the_core() -> None:
    """Nodes, chain, bytes and modules, with every option of every feature changed but the one that switches it on."""
    smoke = Config.profile("smoke")
    values = {name: TOGETHER.get(name) or changed(getattr(smoke, name)) for name, _ in FEATURES}
    market = {name: TOGETHER.get(name) or changed(getattr(smoke.market, name)) for name in ("counterfactual", "mirror")}
    config = smoke.merged({**values, "market": market})
    assert len({key for (key, _, a, _), (_, _, b, _) in zip(smoke.options(), config.options()) if a != b}) > 60
    assert footprint_docs.footprint(config) == footprint_docs.switched_on()


def test_a_feature_that_adds_something_is_seen() -> None:
    core, vaccine = footprint_docs.switched_on(), footprint_docs.switched_on("vaccine.enabled")
    assert vaccine.nodes == core.nodes + 3 and vaccine.nbytes > core.nbytes and vaccine.modules > core.modules
