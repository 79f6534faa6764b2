"""What changed in a model since the last probe: which parameters step, their shapes, their device and precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from local_elasticity.engine.problem import Problem, selected
from local_elasticity.engine.supported import refuse_unsupported

NAMED_AT_MOST = 4
"""Parameters that a message names; the others are counted."""


@dataclass(frozen=True)
class Standing:
    """The parameters that step, with their shapes, and where and in which precision they are."""

    shapes: Mapping[str, tuple[int, ...]]
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, problem: Problem) -> Standing:
        parameters = problem.named_parameters()
        stepped = {name: parameters[name] for name in problem.stepped}
        some = next(iter(stepped.values()))
        return cls({name: tuple(p.shape) for name, p in stepped.items()}, some.device, some.dtype)

    def stepped_since(self, earlier: Standing) -> str:
        """How the stepped parameters differ from earlier ones; empty if they do not.

        >>> def standing(**shapes):
        ...     return Standing(shapes, torch.device("cpu"), torch.float32)
        >>> standing(weight_orig=(2, 3), bias=(2,)).stepped_since(standing(weight=(2, 3), bias=(2,)))
        'weight is now weight_orig'
        """
        gone = [name for name in earlier.shapes if name not in self.shapes]
        new = [name for name in self.shapes if name not in earlier.shapes]
        renamed = {name: successors for name in gone if (successors := _successors(name, new))}
        taken = {name for successors in renamed.values() for name in successors}
        parts = [
            _listed(f"{name} is now {' and '.join(successors)}" for name, successors in renamed.items()),
            _after("no longer stepped: ", (name for name in gone if name not in renamed)),
            _after("now stepped: ", (name for name in new if name not in taken)),
            _listed(
                f"{name} has shape {shape}, it had {earlier.shapes[name]}"
                for name, shape in self.shapes.items()
                if name in earlier.shapes and shape != earlier.shapes[name]
            ),
        ]
        return "; ".join(part for part in parts if part)

    def placed_since(self, earlier: Standing) -> str:
        """How device and precision differ from earlier ones; empty if they do not."""
        device = f"the model is on {self.device}, it was on {earlier.device}" if self.device != earlier.device else ""
        dtype = f"its parameters are {self.dtype}, they were {earlier.dtype}" if self.dtype != earlier.dtype else ""
        return "; ".join(part for part in (device, dtype) if part)


def at_present(problem: Problem) -> Problem:
    """The problem for the current model. A default selection of parameters is repeated; selected parameters must still
    exist."""
    if problem.by_default:
        steps = selected(problem.model, None)
        refuse_unsupported(problem.model, problem.named_tensors(), steps)
        return replace(problem, stepped=steps)
    parameters = problem.named_parameters()
    missing = [name for name in problem.stepped if name not in parameters]
    if missing:
        raise ValueError(
            f"params: the selected parameters {_listed(missing)} are no longer in the model; make a new Monitor to "
            "step others"
        )
    return problem


def _successors(name: str, new: Iterable[str]) -> list[str]:
    """Names that pruning, a parametrization or weight_norm gave to a parameter: `weight_orig`, `weight_g`,
    `parametrizations.weight.original`."""
    module, _, leaf = name.rpartition(".")
    prefix = f"{module}." if module else ""
    return [other for other in new if other.startswith((f"{prefix}{leaf}_", f"{prefix}parametrizations.{leaf}."))]


def _listed(parts: Iterable[str]) -> str:
    parts = list(parts)
    more = len(parts) - NAMED_AT_MOST
    return ", ".join(parts[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _after(words: str, names: Iterable[str]) -> str:
    listed = _listed(names)
    return words + listed if listed else ""
