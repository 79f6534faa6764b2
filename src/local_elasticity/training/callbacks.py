"""What the callbacks of trainers share: a monitor on the trainer's device, for its optimizer and its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._pytree import tree_map

from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import Update, check_update
from local_elasticity.training.monitor import Monitor


def monitor_of(
    problem: Problem,
    examples: tuple[Any, Any],
    update: Update | Callable[[Any], Update],
    options: dict[str, Any],
    *,
    device: Any,
    optimizer: Any,
    last_step: float,
) -> Monitor:
    """A monitor of (sources, targets), which are moved to the device; options that are given come first."""
    sources, targets = tree_map(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, examples)
    options = {**total_steps(last_step), **options}
    return Monitor(problem, sources, targets=targets, update=_update_of(update, optimizer), **options)


def total_steps(last: float) -> dict[str, int]:
    """The option of a monitor that probes from step 0 to the last step of a trainer; none where that is not known.

    >>> total_steps(100), total_steps(float("inf")), total_steps(-1)
    ({'total_steps': 101}, {}, {})
    """
    return {"total_steps": int(last) + 1} if 0 < last < float("inf") else {}


def _update_of(update: Update | Callable[[Any], Update], optimizer: Any) -> Update:
    """An update, or what a function such as `FromOptimizer` makes of the optimizer; a class is such a function."""
    if isinstance(update, Update) and not isinstance(update, type):
        return update
    if not callable(update):
        check_update(update)
    return update(optimizer)
