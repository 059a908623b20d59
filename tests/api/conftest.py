"""What the cases of legality_cases.py run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foxhunt_rt import kernels
from foxhunt_rt.graph import Runtime
from foxhunt_rt.kernels import images

from .legality_cases import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, driver: str) -> Iterator[World]:
    before = list(images._added), list(kernels.abi._added)
    with Runtime() as rt:
        yield World(rt, tmp_path_factory.mktemp("world")).ready()
    images._added[:], kernels.abi._added[:] = before
    kernels.abi.default.cache_clear()
