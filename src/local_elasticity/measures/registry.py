"""The measures by name, the same names everywhere; a `Measure` or a function is taken wherever a name is.

| name                | what it is                                                                 |
|---------------------|----------------------------------------------------------------------------|
| `relative`          | S_rel of the outputs, Euclidean (Definition 1)                             |
| `relative_l1`       | S_rel of the probabilities, L1 (Definition 1 as Dan et al. use it); of plain numbers, L1 |
| `kl`                | S_rel of the predicted distributions (Definition 2)                        |
| `kernel`            | S_ker (He & Su eq. 2.3)                                                    |
| `normalized_kernel` | S_ker over the root of its diagonal (He & Su A.4); sources must be targets |
| `loss`              | the change of the target's loss, signed                                    |
| `stiffness_cos`     | cosine of loss gradients                                                   |
| `stiffness_sign`    | its sign                                                                   |
| `activation`        | cosine of ReLU patterns                                                    |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

from torch import Tensor

from local_elasticity.engine.response import Response
from local_elasticity.measures.activation import ACTIVATION
from local_elasticity.measures.kernel import KERNEL, NORMALIZED_KERNEL
from local_elasticity.measures.loss import LOSS
from local_elasticity.measures.measure import Measure, Scores
from local_elasticity.measures.relative import KL, RELATIVE, RELATIVE_L1
from local_elasticity.measures.stiffness import STIFFNESS_COS, STIFFNESS_SIGN

OfResponse = Callable[[Response], Tensor | Scores]
AnyMeasure = str | Measure | OfResponse
"""What users may pass: a name, a measure, or a function of a response."""

Function = TypeVar("Function", bound=OfResponse)

OURS = (RELATIVE, RELATIVE_L1, KL, KERNEL, NORMALIZED_KERNEL, LOSS, STIFFNESS_COS, STIFFNESS_SIGN, ACTIVATION)
"""The measures of this package."""

_by_name = {one.name: one for one in OURS}


def measure(name: str, *, words: str, **flags: Any) -> Callable[[Function], Function]:
    """Register a function of a `Response` as a measure, so that its name is accepted wherever a measure's is.

    Args:
        name: what it is called in arguments and results.
        words: completes "The number for a pair says …" on the page.
        flags: as for `le.Measure`, such as signed=True.

    Returns:
        A decorator that leaves the function as it is.

    Raises:
        ValueError: if the name belongs to a measure of this package.

    >>> import torch, local_elasticity as le
    >>> @le.measure("largest", words="the largest change of an output")
    ... def largest(response):
    ...     return response.target_change.abs().amax(-1)
    >>> S = le.similarity(torch.nn.Linear(2, 3), (torch.eye(2), torch.tensor([0, 1])), loss="cross_entropy",
    ...                   measure="largest")
    >>> S.attrs["measure"]
    'largest'
    """
    if any(name == one.name for one in OURS):
        raise ValueError(f"name: {name!r} is a measure of local_elasticity; choose another name")
    known = [one.name for one in fields(Measure)[3:]]
    for flag in flags:
        if flag not in known:
            raise TypeError(f"{flag}: expected one of {', '.join(known)}")

    def register(function: Function) -> Function:
        _by_name[name] = Measure(name, words, function, **flags)
        return function

    return register


def as_measure(given: Any) -> Measure:
    """The measure that a user means by a name, a `Measure` or a function of a `Response`."""
    if isinstance(given, Measure):
        return given
    if isinstance(given, str):
        if given not in _by_name:
            raise ValueError(f"measure: expected one of {', '.join(_by_name)}, got {given!r}")
        return _by_name[given]
    if not callable(given):
        raise TypeError(f"measure: expected a name, a le.Measure or a function of a Response, got {given!r}")
    name = str(getattr(given, "__name__", type(given).__name__))
    return Measure(name, f"what the function {name} makes of the changes", given)


def as_measures(given: Any) -> tuple[Measure, ...]:
    """One measure or several, each under a name of its own."""
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    found = tuple(as_measure(one) for one in several)
    names = [one.name for one in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"measure: two are called {twice[0]!r}; give le.Measure(name, ...) another name")
    if not found:
        raise ValueError('measure: expected at least one, for example ("relative", "kl")')
    return found


def is_ours(given: Measure) -> bool:
    """Whether this is a measure of the package, which its name alone identifies."""
    return given in OURS


def known_measure(name: Any) -> Measure | None:
    """The measure of that name, where it is ours or registered.

    >>> known_measure("kl").order, known_measure("my_own")
    (2, None)
    """
    return _by_name.get(name) if isinstance(name, str) else None


def order_of(measure: str) -> int:
    """How a ratio scales with the change of a prediction; 2 for `kl`, so its root compares with other measures.

    >>> order_of("kl"), order_of("relative")
    (2, 1)
    """
    known = known_measure(measure)
    return known.order if known is not None and known.ratio else 1


def words_of(name: str) -> str:
    """What a measure says, as half a sentence, by the name that a result carries.

    >>> words_of("my_own")
    'what the function my_own makes of the changes'
    """
    known = _by_name.get(name)
    return known.words if known else f"what the function {name} makes of the changes"


def axis_of(name: str) -> str:
    """A few words for the axis of a figure, by the name that a result carries; the name itself if it is not known.

    >>> axis_of("kl"), axis_of("my_own")
    ('KL divergence, target / source', 'my_own')
    """
    return (_by_name[name].axis if name in _by_name else "") or name


def with_unit(name: str) -> str:
    """A measure's name with what its numbers are, for titles of tables; the name alone if it is not known.

    >>> with_unit("kl"), with_unit("my_own")
    ('kl (KL divergence, target / source)', 'my_own')
    """
    unit = axis_of(name)
    return name if unit == name else f"{name} ({unit})"


def is_ratio(name: Any) -> bool:
    """Whether results of this name are shares of the source's own change, so that an example has 1 with itself."""
    return name in _by_name and _by_name[name].ratio
