"""Headers and buffers made up for the test at hand: nothing here needs a driver or a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.kernels import Abi

TYPES = """\
/* Shared. */
#define SLOTS 4
typedef struct {
    uint64_t seed;
    float lr;   /* learning rate */
    uint32_t due;
} step_block;
"""

SCALE = """\
typedef struct {
    const float *x;          //@ in f32[R*K]          (R, K)
    const float *bias;       //@ in f32[K] optional   null: no bias
    float *y;                //@ out f32[R*(K/2)]
    const step_block *step;  //@ in step_block[1]
    uint64_t *scratch;       //@ inout u64[?]
    uint64_t seed;           //@ any
    int64_t shift;           //@ any
    int32_t R;               //@ rows
    int32_t K;               //@ columns
    uint32_t flags;          //@ any
    float factor;            //@ multiplies
} scale_args;
"""


@dataclass
class FakeBuffer:
    """What the checks look at, without memory behind it."""

    ptr: int
    nbytes: int
    dtype: np.dtype[Any]
    label: str = "buffer"
    alive: bool = True


@pytest.fixture
def make_abi(tmp_path: Path) -> Callable[..., Abi]:
    """An Abi from header texts: `make_abi(types_text, topic=text)`."""

    def make(types: str = TYPES, **topics: str) -> Abi:
        (tmp_path / "types.h").write_text(types)
        for name, text in topics.items():
            (tmp_path / f"{name}.h").write_text(text)
        return Abi(tmp_path)

    return make


@pytest.fixture
def abi(make_abi: Callable[..., Abi]) -> Abi:
    return make_abi(scale=SCALE)
