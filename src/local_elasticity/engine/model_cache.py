"""What was found out about a model, so that watching a training run does not find it out anew at every step."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from local_elasticity.engine.problem import BoundProblem

T = TypeVar("T")

MOST_FINDINGS = 64
"""For one model; the oldest go first. An `output` made anew for every call brings new ones each time."""


class ModelCache(Generic[T]):
    """Findings by model and circumstances; they go when the model does.

    They hold for as long as the model is made of the same modules, steps the same parameters and is read by the same
    output function; weights may differ. A model that cannot be hashed is found out about anew each time.
    """

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, dict[Any, T]] = WeakKeyDictionary()

    def get(self, bound: BoundProblem, circumstances: Any) -> T | None:
        return self._known(bound).get((bound.made_of, circumstances))

    def put(self, bound: BoundProblem, circumstances: Any, finding: T) -> None:
        known = self._known(bound)
        known[bound.made_of, circumstances] = finding
        while len(known) > MOST_FINDINGS:
            known.pop(next(iter(known)), None)

    def _known(self, bound: BoundProblem) -> dict[Any, T]:
        try:
            return self._of.setdefault(bound.problem.model, {})
        except TypeError:
            return {}
