"""What an experiment declares, and what a result is. `runner.py` runs them; they live in the papers' folders."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from local_elasticity.statistics.claims import Alternatives, Claim, NotMeasuredError
from local_elasticity.statistics.claims import Scale as ClaimScale
from local_elasticity.statistics.judging import interval_on
from local_elasticity.statistics.verdicts import FEWEST_UNITS, CellVerdict, agreement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "small", "paper"]
Reading = Literal["as_defined", "as_printed", "as_released"]
Settings = Mapping[str, Any]
Measured = Mapping[str, Any]
"""What one unit of work found: JSON values by name."""


@dataclass(frozen=True)
class Unit:
    """A piece of work that is done and kept on its own: one part of an experiment at one seed."""

    part: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.part} seed {self.seed}".replace("/", "-").replace(" ", "-")


def runs_of(measured: Mapping[Unit, Measured], part: str) -> list[Measured]:
    """What was measured for a part, one seed after another."""
    return [found for unit, found in measured.items() if unit.part == part]


@dataclass(frozen=True)
class Cell:
    """A number of the paper beside ours, one for every seed, None where there is none.

    It agrees where the published value lies within the range of our seeds widened by `tolerance` on either side: the
    paper gives one seed, and prints it rounded. Without a published value, or with fewer values than `least`, there is
    no verdict. `reason` says why values are missing. With a `scale`, the mean over seeds on that scale has an
    unadjusted 95 % interval.

    >>> [round(v, 2) for v in Cell("S(a, b)", "end", None, (0.5, 1.0, 2.0), scale="log").interval]
    [0.18, 1.0, 5.59]
    """

    row: str
    column: str
    paper: float | None
    values: tuple[float | None, ...]
    tolerance: float = 0.0
    least: int = 1
    reason: str = ""
    scale: ClaimScale | None = None

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None and math.isfinite(value)]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.known) if self.known else None

    @property
    def sd(self) -> float | None:
        return statistics.stdev(self.known) if len(self.known) > 1 else None

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """(low, mean, high) over seeds on the cell's scale; None without a scale, or where a value is missing."""
        if self.scale is None or len(self.known) < max(len(self.values), FEWEST_UNITS):
            return None
        return interval_on(np.array(self.known), self.scale)

    @property
    def verdict(self) -> CellVerdict | Literal["not measured"] | None:
        if self.paper is None:
            return None
        if not self.known:
            return "not measured"
        if len(self.known) < self.least:
            return None
        return agreement(self.paper, self.known, self.tolerance)

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "column": self.column,
            "paper": self.paper,
            "values": [value if value is not None and math.isfinite(value) else None for value in self.values],
            "mean": self.mean,
            "sd": self.sd,
            "tolerance": self.tolerance,
            "verdict": self.verdict,
            **({"reason": self.reason} if self.reason else {}),
            **({"interval": list(self.interval)} if self.interval else {}),
        }


class Values:
    """An experiment's numbers by row and column, one for every seed: what claims are judged from.

    Args:
        cells: the cells of a result, as JSON.
        seeds: how many there are. A cell with another number of values does not say which seeds it lacks.

    >>> values = Values([Cell("K-means", "5 vs 8", 50.4, (50.0, 51.0)).as_json()], seeds=2)
    >>> values.of("K-means", "5 vs 8"), values.printed().of("K-means", "5 vs 8")
    (array([50., 51.]), array([50.4]))
    """

    def __init__(self, cells: Sequence[Mapping[str, Any]], seeds: int) -> None:
        self.cells = {(cell["row"], cell["column"]): cell for cell in cells}
        self.seeds = seeds

    def of(self, row: str, column: str = "") -> np.ndarray:
        """The values at all seeds, NaN where there is none."""
        cell = self.cells.get((row, column))
        where = " / ".join(filter(None, (row, column)))
        if cell is None:
            raise NotMeasuredError(f"{where}: the result holds no values by seed; run the experiment again")
        if len(cell["values"]) != self.seeds:
            why = cell.get("reason") or f"{len(cell['values'])} of {self.seeds} seeds"
            raise NotMeasuredError(f"{where}: {why}")
        return np.array(cell["values"], dtype=float)

    def columns(self, row: str) -> list[str]:
        """The columns in which a row has a cell."""
        return [column for name, column in self.cells if name == row]

    def row(self, row: str) -> np.ndarray:
        """[columns, seeds]."""
        columns = self.columns(row)
        if not columns:
            raise NotMeasuredError(f"{row}: the result has no such row; run the experiment again")
        return np.array([self.of(row, column) for column in columns])

    def average(self, row: str) -> np.ndarray:
        """A row's average over its columns at every seed; NaN where a column is missing."""
        return np.asarray(self.row(row).mean(0))

    def printed(self) -> Values:
        """The paper's own numbers as one seed's; rows that it does not print are missing."""
        cells = [{**cell, "values": [cell["paper"]]} for cell in self.cells.values() if cell["paper"] is not None]
        return Values(cells, seeds=1)


def not_at_hand(what: str) -> Callable[[Values], Alternatives]:
    """The `measure` of a sentence that needs data or a network that nobody here has: it is "not measured"."""

    def measure(values: Values) -> Alternatives:
        raise NotMeasuredError(what)

    return measure


@dataclass(frozen=True)
class Curve:
    """A line with a band."""

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Findings:
    """All that an experiment has to say about its measured units."""

    cells: Sequence[Cell] = ()
    curves: Sequence[Curve] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)


class Experiment(ABC):
    """A table or figure of a paper.

    A subclass declares its name, title, claims, readings and settings for each scale, measures units, and turns what
    was measured into findings; its claims are judged from the cells that it finds. Units are independent, so that they
    can be interrupted and resumed. Measuring needs torch, NumPy and what the work itself needs; pandas and matplotlib
    are imported where findings are made, so that units can be measured on a bare GPU machine and concluded elsewhere.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    scales: Mapping[Scale, Settings]
    readings: tuple[Reading, ...] = ("as_defined",)
    shares: tuple[str, ...] = ()
    """Experiments whose parts of the same name are the same work: at equal scale, reading, settings and seed a unit
    that lies in a folder beside this one's is taken over instead of measured again."""

    @abstractmethod
    def parts(self, settings: Settings) -> list[str]:
        """The parts that are run at every seed."""

    def batches(self, units: Sequence[Unit], settings: Settings) -> list[list[Unit]]:
        """Units that are measured in one go, by `measure_batch`; one at a time unless an experiment says otherwise."""
        return [[unit] for unit in units]

    def measure_batch(
        self, units: Sequence[Unit], settings: Settings, reading: Reading, device: str
    ) -> Iterator[tuple[Unit, Measured]]:
        """Measure the units of one batch, and hand each over as soon as it is done: it is kept at once."""
        for unit in units:
            yield unit, self.measure(unit, settings, reading, device)

    @abstractmethod
    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        """Run one unit; JSON values only."""

    def resolved(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The cells of a published result whose units were not kept, without values that are rounding."""
        return [dict(cell) for cell in cells]

    @abstractmethod
    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        """Cells, curves and figures from whatever units there are; claims are judged from the cells."""
