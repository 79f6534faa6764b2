"""What was found out about a model, so that watching a training run does not find it out anew at every step."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from local_elasticity.engine.problem import Moment

T = TypeVar("T")


class Remembered(Generic[T]):
    """Findings by model and circumstances; they go when the model does.

    They hold for as long as the model is made of the same modules, steps the same parameters and is read by the same
    output function; weights may differ. A model that cannot be hashed is found out about anew each time.
    """

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, dict[Any, T]] = WeakKeyDictionary()

    def get(self, moment: Moment, circumstances: Any) -> T | None:
        return self._known(moment).get((made_of(moment), circumstances))

    def put(self, moment: Moment, circumstances: Any, finding: T) -> None:
        self._known(moment)[made_of(moment), circumstances] = finding

    def _known(self, moment: Moment) -> dict[Any, T]:
        try:
            return self._of.setdefault(moment.problem.model, {})
        except TypeError:
            return {}


def made_of(moment: Moment) -> Any:
    """What findings about a network depend on, its weights aside."""
    problem = moment.problem
    modules = tuple(map(type, problem.model.modules())) if isinstance(problem.model, nn.Module) else ()
    return modules, problem.steps, problem.output, tuple(p.shape for p in moment.params.values())
