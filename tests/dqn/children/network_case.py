"""Network shapes that the children's tests share, and the plain NumPy float64 network they are compared with.

Nothing here knows the flat buffer, the padding or the kernels: tensors are plain (in, out) arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foxhunt_rt.dqn.layout import NetworkLayout

Shape = tuple[int, tuple[int, ...], tuple[int, ...], int, int]
Tensors = Mapping[str, npt.NDArray[np.floating]]
F64 = npt.NDArray[np.float64]

# (state_dim, hidden, branches, atoms, batch): multiples of nothing, batch 1, one layer, three layers, tails of every
# tile, the configuration of the benchmarks, batches that adam_grad splits.
SHAPES: list[Shape] = [
    (7, (5,), (3,), 11, 1),
    (1, (1,), (1,), 2, 2),
    (31, (65,), (5,), 21, 5),
    (33, (17, 40, 9), (2, 4), 13, 37),
    (48, (64, 64), (5, 3, 3, 3), 51, 64),
    (64, (130, 16), (2,), 5, 9),
    (7, (6, 21), (3,), 11, 1),
    (20, (24, 19), (3, 2), 7, 61),
    (20, (24, 19), (3, 2), 7, 65),
    (20, (24, 19), (3, 2), 7, 259),
    (40, (33,), (4,), 3, 1030),
]


@dataclass(frozen=True)
class Case:
    """One network with random parameters and a random batch, f32."""

    layout: NetworkLayout
    batch: int
    theta: dict[str, npt.NDArray[np.float32]]
    target: dict[str, npt.NDArray[np.float32]]
    state: npt.NDArray[np.float32]
    next_state: npt.NDArray[np.float32]

    @classmethod
    def make(cls, state_dim: int, hidden: tuple[int, ...], branches: tuple[int, ...], atoms: int, batch: int) -> Case:
        layout = NetworkLayout(state_dim, hidden, branches, atoms)
        random = np.random.default_rng([state_dim, *hidden, batch])
        shape = (batch, state_dim)
        return cls(
            layout,
            batch,
            layout.init(1),
            layout.init(2),
            random.standard_normal(shape, dtype=np.float32),
            random.standard_normal(shape, dtype=np.float32),
        )


def pad_columns(array: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
    """``array`` with zero columns up to ``width``."""
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))


def matrices(tensors: Tensors) -> list[tuple[F64, F64]]:
    """(W, b) of every layer in float64, the heads joined as the last."""
    trunk = sum(name.startswith("trunk.") and name.endswith(".weight") for name in tensors)
    branches = sum(name.startswith("branch.") and name.endswith(".weight") for name in tensors)
    heads = ["value", *(f"branch.{b}" for b in range(branches))]
    pairs = [(tensors[f"trunk.{i}.weight"], tensors[f"trunk.{i}.bias"]) for i in range(trunk)]
    pairs.append(
        (
            np.concatenate([tensors[f"{h}.weight"] for h in heads], axis=1),
            np.concatenate([tensors[f"{h}.bias"] for h in heads]),
        )
    )
    return [(np.asarray(w, np.float64), np.asarray(b, np.float64)) for w, b in pairs]


def forward(tensors: Tensors, x: npt.NDArray[np.floating]) -> tuple[list[F64], list[F64]]:
    """Outputs of every layer (after ReLU; the last: logits), and the sum of |terms| behind each."""
    outputs, terms = [], []
    layers = matrices(tensors)
    value = np.asarray(x, np.float64)
    for i, (w, b) in enumerate(layers):
        terms.append(np.abs(value) @ np.abs(w) + np.abs(b))
        value = value @ w + b
        if i < len(layers) - 1:
            value = np.where(value > 0, value, 0.0)
        outputs.append(value)
    return outputs, terms


def backward(tensors: Tensors, x: npt.NDArray[np.floating], hidden: list[F64], dlogits: F64) -> list[dict[str, F64]]:
    """By layer: dw, db and dy (gradient of the layer's output before its ReLU), each with its sum of |terms|."""
    layers = matrices(tensors)
    inputs = [np.asarray(x, np.float64), *hidden]
    dy, dy_terms, result = dlogits, np.abs(dlogits), []
    for i in reversed(range(len(layers))):
        w, _ = layers[i]
        result.append(
            {
                "dw": inputs[i].T @ dy,
                "dw_terms": np.abs(inputs[i]).T @ np.abs(dy),
                "db": dy.sum(0),
                "db_terms": np.abs(dy).sum(0),
                "dy": dy,
                "dy_terms": dy_terms,
            }
        )
        mask = inputs[i] > 0
        dy, dy_terms = np.where(mask, dy @ w.T, 0.0), np.where(mask, np.abs(dy) @ np.abs(w).T, 0.0)
    return result[::-1]


def assert_close(name: str, x: npt.NDArray[np.floating], ref: F64, terms: F64) -> None:
    """|x - ref| <= 2e-5 sum |terms| + 1e-6 rms(ref); the worst element is named with its share of the budget."""
    assert x.shape == ref.shape, (name, x.shape, ref.shape)
    budget = 2e-5 * terms + 1e-6 * np.sqrt(np.mean(ref**2)) + 1e-30
    share = np.abs(np.asarray(x, np.float64) - ref) / budget
    worst = np.unravel_index(np.argmax(np.where(np.isnan(share), np.inf, share)), share.shape)
    assert share[worst] <= 1.0, (
        f"{name}{list(worst)}: {x[worst]!r}, reference {ref[worst]!r}, {share[worst]:.3g} of the budget"
    )
