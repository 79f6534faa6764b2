"""Loggers: TensorBoard, W&B, MLflow, Lightning's, or anything with log(values, step). None of them is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from local_elasticity.engine.guard import raise_of_handler
from local_elasticity.training.failures import first_line, tell

Log = Callable[[Mapping[str, float], int], Any]

IN_ANY_ORDER = ("log_metrics", "add_scalar")
"""What loggers have that take steps in any order."""


class Loggers:
    """Hands numbers to every logger. One that raises is reported and gets nothing from then on; training continues.

    `in_order` says whether one may refuse a step that comes after a later one was logged, as W&B does.

    >>> seen = []
    >>> Loggers([lambda values, step: seen.append((step, values))]).log({"kl": 0.5}, 3)
    >>> seen
    [(3, {'kl': 0.5})]
    """

    def __init__(self, loggers: Iterable[Any]) -> None:
        if not isinstance(loggers, Iterable):
            raise TypeError(f"loggers: expected a list of them, got {type(loggers).__name__}; pass loggers=[logger]")
        loggers = list(loggers)
        self._logs = [(_name(one), log_of(one)) for one in loggers]
        self.in_order = not all(any(hasattr(one, name) for name in IN_ANY_ORDER) for one in loggers)

    def __bool__(self) -> bool:
        return bool(self._logs)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for one in list(self._logs):
            name, log = one
            try:
                log(dict(values), step)
            except Exception as error:
                raise_of_handler(error)
                self._logs.remove(one)
                tell(
                    f"loggers: {name} failed at step {step} ({first_line(error)}). It is left out from now on; "
                    "training and the other loggers continue",
                    error,
                )


def _name(one: Any) -> str:
    return str(getattr(one, "__name__", type(one).__name__))


def log_of(one: Any) -> Log:
    """What to call with (values, step): `log_metrics` (Lightning, MLflow), `add_scalar` (TensorBoard's SummaryWriter),
    `log` (W&B), or the object itself.
    """
    if hasattr(one, "log_metrics"):
        return one.log_metrics
    if hasattr(one, "add_scalar"):
        return lambda values, step: [one.add_scalar(name, value, step) for name, value in values.items()]
    if hasattr(one, "log"):
        return one.log
    if callable(one):
        return one
    raise TypeError(
        f"loggers: {type(one).__name__} has none of log(values, step), log_metrics and add_scalar; pass one that has"
    )
