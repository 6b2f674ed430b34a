"""Which (token, layer) cells of a transfer have arrived: no cell twice, and at the end every cell."""

from __future__ import annotations

from bisect import bisect_right

Run = tuple[int, int]
"""Token positions [start, end)."""


class Cover:
    """Cells of tokens [start, end) x `num_layers` layers, filled by runs of tokens over ranges of layers."""

    def __init__(self, start: int, end: int, num_layers: int):
        self.start, self.end, self.num_layers = start, end, num_layers
        self._missing = max(0, end - start) * num_layers
        self._runs: dict[int, list[Run]] = {}

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def contains(self, tokens: Run, layers: Run) -> bool:
        """Whether the cells are some, and all of them part of this transfer."""
        return self.start <= tokens[0] < tokens[1] <= self.end and 0 <= layers[0] < layers[1] <= self.num_layers

    def add(self, tokens: Run, layers: Run) -> bool:
        """Fills the cells, which `contains` holds of; False, and nothing changes, if one of them is filled already."""
        if any(_overlaps(self._runs.get(layer, []), tokens) for layer in range(*layers)):
            return False
        for layer in range(*layers):
            self._runs[layer] = _merged(self._runs.get(layer, []), tokens)
        self._missing -= (tokens[1] - tokens[0]) * (layers[1] - layers[0])
        return True


def _overlaps(runs: list[Run], run: Run) -> bool:
    """`runs` are sorted and disjoint: only the last that starts before `run` ends can reach into it."""
    at = bisect_right(runs, run[1] - 1, key=lambda known: known[0])
    return at > 0 and runs[at - 1][1] > run[0]


def _merged(runs: list[Run], run: Run) -> list[Run]:
    """`runs` with a disjoint `run`, joined to its neighbours where they touch."""
    at = bisect_right(runs, run)
    before, after = runs[:at], runs[at:]
    if before and before[-1][1] == run[0]:
        run = (before.pop()[0], run[1])
    if after and after[0][0] == run[1]:
        run = (run[0], after.pop(0)[1])
    return [*before, run, *after]
