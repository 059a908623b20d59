"""Independent references for replay: Philox from its paper, sampling from prefix sums, windows from whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TERMINATED, TRUNCATED, ABSENT = 1, 2, 4


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds, as figure 4 and table 2 of Salmon et al. 2011 give them."""
    mask = 0xFFFFFFFF
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b & mask, (a >> 32) ^ x[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return x[0], x[1], x[2], x[3]


def random_words(seed: int, step: int, consumer: int, element: int) -> tuple[int, int, int, int]:
    """The four words that (seed, step, consumer, element) name."""
    return philox4x32((step & 0xFFFFFFFF, step >> 32, consumer, element), (seed & 0xFFFFFFFF, seed >> 32))


def stratified(seed: int, step: int, consumer: int, batch: int) -> npt.NDArray[np.float64]:
    """(k + xi_k) / B in [0, 1), xi of 53 bits."""
    words = [random_words(seed, step, consumer, k) for k in range(batch)]
    xi = np.array([((w[0] << 32 | w[1]) >> 11) / 2.0**53 for w in words])
    return (np.arange(batch) + xi) / batch


def draw(
    priority: npt.NDArray[np.float32], u: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Smallest row whose prefix sum exceeds u * total, and how far u is from the nearest prefix, as a share of the total."""
    prefix = np.cumsum(priority.astype(np.longdouble))
    target = u.astype(np.longdouble) * prefix[-1]
    rows = np.searchsorted(prefix, target, side="right")
    below = np.where(rows > 0, prefix[np.maximum(rows - 1, 0)], 0)
    margin = np.minimum(np.abs(target - below), np.abs(prefix[np.minimum(rows, len(prefix) - 1)] - target)) / prefix[-1]
    return rows, margin.astype(np.float64)


def tree_sums(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sums of each 256 values in f64, neighbours first: the order that the kernels promise."""
    sums = values.astype(np.float64).reshape(-1, 256)
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


@dataclass
class Transition:
    state: npt.NDArray[np.float32]
    next_state: npt.NDArray[np.float32]
    action: int
    reward: float
    ended: int


@dataclass
class RingOracle:
    """Every transition ever inserted, by environment; what is held, complete and drawable follows from the rules alone."""

    capacity: int
    environments: int
    n_step: int
    explicit_next: bool  # market mode: s' stands in the row, so a window is complete one insert earlier
    finals: int = 1 << 60
    history: list[list[Transition]] = field(default_factory=list)  # [insert][environment]

    def insert(self, transitions: list[Transition]) -> None:
        self.history.append(transitions)

    def _window(self, t: int, e: int) -> tuple[list[Transition], int] | None:
        """The transitions of the window from insert t on and the number of the last insert in it; None when incomplete."""
        window: list[Transition] = []
        for j in range(self.n_step):
            if t + j >= len(self.history):
                return None
            transition = self.history[t + j][e]
            if transition.ended & ABSENT:
                return None
            window.append(transition)
            if transition.ended:
                return window, t + j
        last = t + self.n_step - 1
        return (window, last) if self.explicit_next or last + 1 < len(self.history) else None

    def expected(self, gamma: float, scale: float) -> dict[int, tuple[Any, ...]]:
        """row -> (state, action, return, discount, next state) of every drawable row, in float64."""
        ends = [t * self.environments + e for t, step in enumerate(self.history) for e, x in enumerate(step)
                if x.ended and not x.ended & ABSENT]  # fmt: skip
        kept = set(ends[-self.finals :])
        result = {}
        for number, _, e, window, last in self._complete():
            if window[-1].ended and not self.explicit_next and last * self.environments + e not in kept:
                continue
            ret = sum(gamma**j * scale * float(np.float32(x.reward)) for j, x in enumerate(window))
            discount = 0.0 if window[-1].ended & TERMINATED else gamma ** len(window)
            following = (
                window[-1].next_state if window[-1].ended or self.explicit_next else self.history[last + 1][e].state
            )
            result[number % self.capacity] = (window[0].state, window[0].action, ret, discount, following)
        return result

    def _complete(self) -> Iterator[tuple[int, int, int, list[Transition], int]]:
        """(number, step, environment, window, step of its last transition) of every row held with a complete window."""
        total = len(self.history) * self.environments
        for number in range(max(0, total - self.capacity), total):
            t, e = divmod(number, self.environments)
            if (found := self._window(t, e)) is not None:
                yield number, t, e, *found

    def past(self, number: int, steps_back: int) -> list[Transition]:
        """The transitions that precede number ``number`` in its episode, and it: at most so many, none that the ring lost."""
        oldest = max(0, len(self.history) * self.environments - self.capacity)
        found = [self._at(number)]
        while len(found) <= steps_back and (number := number - self.environments) >= oldest:
            if self._at(number).ended:
                break
            found.insert(0, self._at(number))
        return found

    def _at(self, number: int) -> Transition:
        return self.history[number // self.environments][number % self.environments]

    def windows(self, window: int) -> dict[int, tuple[list[Any], list[Any]]]:
        """row -> the last states that end in s, and in s', of every row held whose return's window is complete."""
        result = {}
        for number, t, e, _, last in self._complete():
            before = [x.state for x in self.past(number, window - 1)]
            during = [self.history[i][e].state for i in range(t + 1, last + 1)]
            end = self.history[last][e]
            following = end.next_state if end.ended or self.explicit_next else self.history[last + 1][e].state
            result[number % self.capacity] = (before[-window:], [*before, *during, following][-window:])
        return result
