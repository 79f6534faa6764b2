"""What an experiment declares, and what a result is. `runner.py` runs them; they live in the papers' folders."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from local_elasticity.statistics.verdicts import CellVerdict, ClaimVerdict, agreement, effect_of, verdict_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "small", "paper"]
Reading = Literal["as_defined", "as_printed", "as_released"]
Verdict = CellVerdict | ClaimVerdict | Literal["not measured"]
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
    """A number of the paper beside ours, over seeds.

    It agrees where the published value lies within the range of our seeds widened by `tolerance` on either side: the
    paper gives one seed, and prints it rounded. Without a published value, or with fewer values than `least`, there is
    no verdict. `reason` says why values are missing.
    """

    row: str
    column: str
    paper: float | None
    values: tuple[float, ...]
    tolerance: float = 0.0
    least: int = 1
    reason: str = ""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def verdict(self) -> Verdict | None:
        if self.paper is None:
            return None
        if not self.values:
            return "not measured"
        if len(self.values) < self.least:
            return None
        return agreement(self.paper, self.values, self.tolerance)

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "column": self.column,
            "paper": self.paper,
            "values": list(self.values),
            "mean": self.mean,
            "sd": self.sd,
            "verdict": self.verdict,
            **({"reason": self.reason} if self.reason else {}),
        }


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what came out: the effect in numbers and the evidence in words.

    `low` and `high` are the range of the effect over seeds or runs, None where it is one number; `paper` is the same
    quantity from the numbers that the paper prints, None where it prints none.
    """

    id: str
    text: str
    verdict: Verdict = "not measured"
    effect: float | None = None
    evidence: str = ""
    low: float | None = None
    high: float | None = None
    paper: float | None = None

    def judged(
        self,
        outcomes: Sequence[bool],
        effect: Iterable[float] | float | None,
        evidence: str,
        paper: float | None = None,
        *,
        average: Callable[[Sequence[float]], float] = statistics.fmean,
    ) -> Claim:
        """With a verdict: it holds where every outcome is true, fails where none is, and depends otherwise; without
        outcomes it is not measured.

        `effect` is that of every seed or run, of which the average, the lowest and the highest are kept and NaN is left
        out; or one number, a maximum say.

        >>> rises = Claim("rises", "It rises.").judged([True, True], [0.25, 0.75], "in 2 of 2 runs", paper=0.6)
        >>> rises.verdict, rises.effect, rises.low, rises.high, rises.paper
        ('holds', 0.5, 0.25, 0.75, 0.6)
        """
        if not outcomes:
            return replace(self, paper=paper)
        made = replace(self, verdict=verdict_of(outcomes), evidence=evidence, paper=paper)
        if effect is None or isinstance(effect, int | float):
            return replace(made, effect=effect)
        middle, low, high = effect_of(effect, average)
        return replace(made, effect=middle, low=low, high=high)


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
    claims: Sequence[Claim] = ()
    curves: Sequence[Curve] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)


class Experiment(ABC):
    """A table or figure of a paper.

    A subclass declares its name, title, claims, readings and settings for each scale, measures units, and turns what
    was measured into findings. Units are independent, so that they can be interrupted and resumed. Measuring needs
    torch, NumPy and what the work itself needs; pandas and matplotlib are imported where findings are made, so that
    units can be measured on a bare GPU machine and concluded elsewhere.
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

    @abstractmethod
    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        """Cells, claims, curves and figures from whatever units there are."""
