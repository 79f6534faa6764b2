"""What a certificate is: a statement, the comparisons made, and the verdict that follows from their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Verdict = Literal["holds", "holds with correction", "false as printed", "not confirmed"]
Paper = Literal["Dan et al.", "He & Su"]

SAME = 1e-9
"""Relative error at which two routes are called the same; the flows by numbers are good to 1e-11."""

NEVER = 1e-12
"""By how much an inequality may be missed: rounding."""

ORDER = 0.1
"""An order of convergence is known to this."""


@dataclass(frozen=True)
class Check:
    """One comparison: against what, in how many trials, the worst error, and the error that is allowed."""

    against: str
    trials: int
    worst: float
    allowed: float = SAME

    @property
    def passes(self) -> bool:
        return bool(self.worst <= self.allowed)


@dataclass(frozen=True)
class Certificate:
    """A statement with its evidence. The verdict is read off the checks; `expected` is what was found before.

    A statement holds where all checks of it as `printed` pass; with correction where they do not and those of it as
    `corrected` do; it is false as printed where there is no correction, and then `counterexample` shows it. Where the
    verdict is not the expected one the certificate is red: a formula, or a finding, has been broken.

    >>> Certificate("He & Su", "eq. 0", "1 + 1 = 2", "holds", [Check("arithmetic", 1, 0.0)]).green
    True
    """

    paper: Paper
    statement: str
    says: str
    expected: Verdict
    printed: Sequence[Check]
    corrected: Sequence[Check] = ()
    correction: str = ""
    counterexample: str = ""

    @property
    def verdict(self) -> Verdict:
        if any(np.isnan(check.worst) for check in (*self.printed, *self.corrected)):
            return "not confirmed"
        if all(check.passes for check in self.printed):
            return "holds" if all(check.passes for check in self.corrected) else "not confirmed"
        if not self.corrected:
            return "false as printed"
        return "holds with correction" if all(check.passes for check in self.corrected) else "not confirmed"

    @property
    def green(self) -> bool:
        told = self.expected == "holds" or bool(self.counterexample)
        return self.verdict == self.expected and told

    @property
    def standing(self) -> Sequence[Check]:
        """The checks that the verdict rests on: of the corrected statement where there is one."""
        return self.corrected or self.printed


def relative_error(found: ArrayLike, true: ArrayLike) -> float:
    """The largest difference, relative to the larger of the true value and 1e-3 of the largest one; NaN counts as ∞."""
    ours, theirs = np.asarray(found, dtype=np.float64), np.asarray(true, dtype=np.float64)
    scale = np.maximum(np.abs(theirs), 1e-3 * np.abs(theirs).max() + 1e-300)
    error = np.abs(ours - theirs) / scale
    return float(np.where(np.isnan(error), np.inf, error).max())


def order_of(errors: Sequence[float], factor: float = 2.0) -> float:
    """The order of convergence: the slope of the last errors when the step shrinks by `factor` each time."""
    return float(np.log(errors[-2] / errors[-1]) / np.log(factor))
