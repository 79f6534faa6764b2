"""Updates: the rule that turns the gradient on one source into the step w⁺ − w.

A rule returns the *displacement* w⁺ − w, not w⁺, so that nothing cancels when only the displacement is needed.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from local_elasticity.engine.optimizer_copy import (
    DIRECT,
    OptimizerCopy,
    Places,
    cast_state,
    clipped,
    has_step_hooks,
    steps_as_its_class,
    unwrapped,
)
from local_elasticity.engine.problem import BoundProblem, Problem, as_real
from local_elasticity.engine.replica import Params

Rule = Callable[[Params, Params], Params]
"""(params, gradient) → displacement, a pure function of tensors that may be batched by vmap. A parameter that has no
gradient does not move."""


DRIFTS = ("keep", "remove")
"""What to do with the part of a step that momentum and decay cause."""


@runtime_checkable
class Update(Protocol):
    """How one gradient becomes a step."""

    @property
    def step_size(self) -> float:
        """η; NaN where parameters have step sizes of their own."""

    @property
    def plain(self) -> bool:
        """Whether the displacement is −η times the gradient and nothing else."""

    @property
    def vectorizes(self) -> bool:
        """Whether the rule is a pure function that vmap can take."""

    def rule(self, problem: Problem) -> Rule:
        """The current rule for this problem's parameters.

        Args:
            problem: names the parameters that step.

        Returns:
            A function (params, gradient) → displacement.
        """


def check_update(update: Any) -> None:
    """Raise a TypeError if something else, such as a bare optimizer, was given in place of an update."""
    if isinstance(update, torch.optim.Optimizer):
        raise TypeError("update: an optimizer was given; wrap it: le.FromOptimizer(optimizer)")
    if not isinstance(update, Update):
        raise TypeError(f"update: expected le.SGD(…), le.Adam(…) or le.FromOptimizer(…), got {update!r}")


def stepped_by(update: Update, problem: Problem) -> tuple[str, ...]:
    """The parameters that an update moves: those of the problem's that an optimizer holds, or all."""
    return update.held(problem) if isinstance(update, FromOptimizer) else problem.stepped


def rule_of(update: Update, bound: BoundProblem) -> Rule:
    """The update's rule, after the hooks that the user registered on parameters have seen the gradient."""
    return hooked(update.rule(bound.problem), bound)


def hooked(rule: Rule, bound: BoundProblem) -> Rule:
    """A rule after the hooks that the user registered on parameters have seen the gradient."""
    if not bound.hooks:
        return rule

    def displacement(params: Params, gradient: Params) -> Params:
        hooks = bound.copied_hooks()
        seen = {name: _hooked(g, hooks.get(name, ()), name in bound.pairs) for name, g in gradient.items()}
        return rule(params, seen)

    return displacement


@dataclass(frozen=True)
class RulePair:
    """A rule for consecutive steps: `step` updates the state of the optimizer, `ahead` does not."""

    step: Rule
    ahead: Rule


def walking_rule(update: Update, bound: BoundProblem) -> RulePair:
    """The update's rule for steps one after another. Moments and counters move along in a copy: those of `le.Adam`
    begin fresh, those of a live optimizer where they are now."""
    if not isinstance(update, (Adam, FromOptimizer)):
        rule = rule_of(update, bound)
        return RulePair(rule, rule)
    if isinstance(update, Adam):
        names = list(bound.params)
        made = [bound.params[name].detach().clone().requires_grad_() for name in names]
        optimizer: torch.optim.Optimizer = torch.optim.Adam(
            made, lr=update.step_size, eps=update.eps, weight_decay=update.weight_decay
        )
        places, norm, value = {name: (0, j) for j, name in enumerate(names)}, None, None
    else:
        places = update._places(bound.problem)
        optimizer, norm, value = update.optimizer, update.clip_norm, update.clip_value
    moving = OptimizerCopy.of(optimizer, places)

    def step(params: Params, gradient: Params) -> Params:
        return moving.step(params, clipped(gradient, norm, value))

    def ahead(params: Params, gradient: Params) -> Params:
        return moving.copy().step(params, clipped(gradient, norm, value))

    return RulePair(hooked(step, bound), hooked(ahead, bound))


def without_gradient(rule: Rule) -> Rule:
    """What a rule does where every gradient is zero: the drift of momentum and decay."""
    return lambda params, gradient: rule(params, {name: torch.zeros_like(g) for name, g in gradient.items()})


def is_plain(update: Update, rule: Rule, bound: BoundProblem) -> bool:
    """Whether the displacement is −η times the gradient and nothing else. An update of the user's or of an optimizer is
    asked for one displacement.
    """
    if not update.plain or bound.hooks:
        return False
    if isinstance(update, SGD):
        return True
    gradient = {name: torch.full_like(p, 0.5) for name, p in bound.params.items()}
    moved = rule(bound.params, gradient)
    return all(torch.allclose(moved[name], -update.step_size * g, rtol=1e-5, atol=0) for name, g in gradient.items())


def _hooked(gradient: Tensor, hooks: Iterable[Callable[[Tensor], Tensor | None]], is_complex: bool) -> Tensor:
    seen = torch.view_as_complex(gradient) if is_complex else gradient
    for hook in hooks:
        seen = seen.clone()
        found = hook(seen)
        seen = seen if found is None else found
    return as_real(seen)


Kind = TypeVar("Kind")


def _explained(kind: type[Kind]) -> type[Kind]:
    """A class whose errors about options say what to write: those of torch's optimizers have other names."""
    made, name = kind.__init__, kind.__name__
    signature = inspect.signature(made)
    known = [option for option in signature.parameters if option != "self"]

    @functools.wraps(made)
    def checked(self: Kind, *args: Any, **options: Any) -> None:
        if "lr" in options:
            raise TypeError(f"lr: le.{name} calls it step_size; write le.{name}(step_size={options['lr']!r})")
        for option in options:
            if option not in known:
                raise TypeError(
                    f"{option}: le.{name} takes {', '.join(known)}. For other options of an optimizer, wrap it: "
                    f"le.FromOptimizer(torch.optim.{name}(model.parameters(), lr=..., {option}=...))"
                )
        try:
            signature.bind(self, *args, **options)
        except TypeError as error:
            raise TypeError(f"step_size: expected le.{name}({', '.join(known)}), such as le.{name}(1e-3)") from error
        made(self, *args, **options)

    kind.__init__ = checked  # type: ignore[method-assign, assignment]
    return kind


@_explained
@dataclass(frozen=True, init=False)
class SGD:
    """w⁺ = w − η(∇ℓ + λw), λ the weight decay (He & Su eq. 2.1 at λ = 0).

    Args:
        step_size: η; or `"auto"` for the largest step at which changes are still linear: those of outputs, and of the
            probabilities that are made of them, deviate by at most 1 % from the limit of small steps. Twelve sources
            are tried, at themselves and at four targets, of which one in ten may deviate by more; changes that
            rounding hides do not count. It is looked for between 1e-12 and 1, once for each measurement, and results
            say what was found. A ValueError says where there is none, as where gradients are not derivatives.
        weight_decay: λ, zero or positive. Every parameter decays, also one that the source does not reach, such as an
            expert that is not chosen. torch.optim skips those; use `FromOptimizer` for its step.

    Raises:
        ValueError: if a number is not positive and finite.

    >>> import local_elasticity as le
    >>> le.SGD(1e-3), le.SGD("auto")
    (SGD(step_size=0.001, weight_decay=0.0), SGD(step_size='auto', weight_decay=0.0))
    """

    step_size: float
    weight_decay: float = 0.0
    vectorizes = True

    def __init__(self, step_size: float | str, weight_decay: float = 0.0) -> None:
        if isinstance(step_size, str) and step_size != "auto":
            raise ValueError(f'step_size: expected a positive, finite number or "auto", got {step_size!r}')
        size = math.nan if step_size == "auto" else _checked("step_size", step_size)
        object.__setattr__(self, "step_size", size)
        object.__setattr__(self, "weight_decay", _checked("weight_decay", weight_decay, zero=True))

    def __repr__(self) -> str:
        size = repr("auto" if self.automatic else self.step_size)
        return f"SGD(step_size={size}, weight_decay={self.weight_decay!r})"

    @property
    def automatic(self) -> bool:
        """Whether the step is still to be chosen."""
        return math.isnan(self.step_size)

    @property
    def plain(self) -> bool:
        return self.weight_decay == 0

    def rule(self, problem: Problem) -> Rule:
        def displacement(params: Params, gradient: Params) -> Params:
            decayed = _decayed(params, gradient, self.weight_decay)
            return {name: -self.step_size * g for name, g in decayed.items()}

        return displacement


@_explained
@dataclass(frozen=True)
class Adam:
    """The first step of a fresh Adam: w⁺ = w − η g/(|g| + ε) with g = ∇ℓ + λw, nearly η·sign(g).

    In a fresh state both moments are those of g alone, so the betas cancel.

    Args:
        step_size: η, positive.
        eps: ε, positive.
        weight_decay: λ, zero or positive; every parameter decays, as for `SGD`.

    >>> import local_elasticity as le
    >>> le.Adam(1e-4, weight_decay=1e-4).plain
    False
    """

    step_size: float
    eps: float = 1e-8
    weight_decay: float = 0.0
    plain, vectorizes = False, True

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", _checked("step_size", self.step_size))
        object.__setattr__(self, "eps", _checked("eps", self.eps))
        object.__setattr__(self, "weight_decay", _checked("weight_decay", self.weight_decay, zero=True))

    def rule(self, problem: Problem) -> Rule:
        def displacement(params: Params, gradient: Params) -> Params:
            decayed = _decayed(params, gradient, self.weight_decay)
            return {name: -self.step_size * g / (g.abs() + self.eps) for name, g in decayed.items()}

        return displacement


@dataclass(frozen=True)
class FromOptimizer:
    """The step that *your* optimizer, with its present momentum and second moments, would take on one example.

    `torch.optim.SGD`, `Adam` and `AdamW` are computed directly. Any other optimizer, also of a class of your own, takes
    its step on a deep copy in float64, one source at a time; if its code insists on float32, the rounding counts as
    noise. The optimizer is read, never stepped. Existing `.grad` and loss scaling are not part of it, and parameters
    outside the optimizer do not move. At a learning rate of 0, where a warm-up begins, nothing moves, and all
    similarities are unresolved.

    Args:
        optimizer: a `torch.optim.Optimizer`, also inside the wrappers of Lightning and Accelerate.
        clip_norm: clip the gradient as `torch.nn.utils.clip_grad_norm_(parameters, clip_norm)` does before the step;
            the norm is that of the parameters that step.
        clip_value: clip each entry as `torch.nn.utils.clip_grad_value_` does; after `clip_norm` where both are given.
        drift: what momentum and weight decay move in a step whose gradient is zero, the same for all sources.
            `"keep"` counts changes from the model as it is, `"remove"` from the model after such a step.

    Raises:
        TypeError, ValueError: if there is no single step to measure, or an option is not one of the above.

    >>> import torch, local_elasticity as le
    >>> net = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    >>> le.FromOptimizer(optimizer).step_size
    0.001
    >>> le.FromOptimizer(optimizer, clip_norm=1.0, drift="remove").plain
    False
    """

    optimizer: Any
    clip_norm: float | None = None
    clip_value: float | None = None
    drift: str = "keep"

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if self.drift not in DRIFTS:
            raise ValueError(f'drift: expected "keep" or "remove", got {self.drift!r}')
        object.__setattr__(self, "optimizer", unwrapped(self.optimizer))
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            inside = "; pass the optimizer inside it" if hasattr(self.optimizer, "optimizer") else ""
            raise TypeError(
                f"optimizer: expected a torch.optim.Optimizer, got {type(self.optimizer).__name__}, whose step is its "
                f"own{inside}"
            )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ValueError(
                "optimizer: LBFGS evaluates a closure several times a step, so there is no single step to measure; "
                "use le.SGD, le.Adam or another optimizer"
            )
        self._refuse_unknown_steps()

    def _refuse_unknown_steps(self) -> None:
        if not steps_as_its_class(self.optimizer):
            raise ValueError(
                "optimizer: its step was replaced by another function, which is not followed; put the rule into a "
                "subclass of the optimizer, or `del optimizer.step` while measuring"
            )
        if has_step_hooks(self.optimizer):
            raise ValueError(
                "optimizer: it has step hooks, which would act on your own model and run; remove them while measuring"
            )

    def __repr__(self) -> str:
        """With the options that are not the default."""
        options = {"clip_norm": self.clip_norm, "clip_value": self.clip_value}
        given = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        given += ", drift='remove'" if self.drift == "remove" else ""
        return f"FromOptimizer(optimizer={self.optimizer!r}{given})"

    @property
    def step_sizes(self) -> list[float]:
        """The learning rate of every parameter group."""
        return [float(group.get("lr", math.nan)) for group in self.optimizer.param_groups]

    @property
    def step_size(self) -> float:
        rates = set(self.step_sizes)
        return rates.pop() if len(rates) == 1 else math.nan

    @property
    def plain(self) -> bool:
        if type(self.optimizer) is not torch.optim.SGD or math.isnan(self.step_size) or self.clips:
            return False
        groups = self.optimizer.param_groups
        return not any(g["momentum"] or g["weight_decay"] or g["maximize"] for g in groups)

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped before the step."""
        return self.clip_norm is not None or self.clip_value is not None

    @property
    def vectorizes(self) -> bool:
        return type(self.optimizer) in DIRECT

    def held(self, problem: Problem) -> tuple[str, ...]:
        """The parameters that the problem steps and the optimizer holds; the others do not move.

        Args:
            problem: names the parameters that step.

        Returns:
            Their names.
        """
        return tuple(self._settings(problem))

    def rule(self, problem: Problem) -> Rule:
        rule = self._rule(problem)
        if not self.clips:
            return rule
        return lambda params, gradient: rule(params, clipped(gradient, self.clip_norm, self.clip_value))

    def _rule(self, problem: Problem) -> Rule:
        """The rule of the optimizer alone."""
        if not self.vectorizes:
            ready = OptimizerCopy.of(self.optimizer, self._places(problem))
            return lambda params, gradient: ready.copy().step(params, gradient)
        settings = self._settings(problem)
        direct = DIRECT[type(self.optimizer)]

        def displacement(params: Params, gradient: Params) -> Params:
            return {name: direct(params[name], g, settings[name][1], settings[name][2]) for name, g in gradient.items()}

        return displacement

    def rounding(self, problem: Problem) -> float:
        """The relative rounding of the weights that displacements are differences of.

        Args:
            problem: names the parameters that step.

        Returns:
            0 for optimizers that are computed directly. Others step in float64, unless their code insists on less.
        """
        if self.vectorizes:
            return 0.0
        return OptimizerCopy.of(self.optimizer, self._places(problem)).unit

    def _places(self, problem: Problem) -> Places:
        return {name: place for name, (place, _, _) in self._settings(problem).items()}

    def _settings(self, problem: Problem) -> dict[str, tuple[tuple[int, int], Mapping[str, Any], Mapping[str, Any]]]:
        """Parameter name → (its place in the optimizer, its group's options, its state cast to the problem's dtype)."""
        self._refuse_unknown_steps()  # hooks may have come since it was made
        own = problem.named_parameters()
        names = {id(own[name]): name for name in problem.stepped}
        settings: dict[str, tuple[tuple[int, int], Mapping[str, Any], Mapping[str, Any]]] = {}
        for i, group in enumerate(self.optimizer.param_groups):
            for j, p in enumerate(group["params"]):
                if id(p) in names:
                    dtype = problem.dtype or p.dtype.to_real()
                    state = self.optimizer.state.get(p, {})
                    settings[names[id(p)]] = (
                        (i, j),
                        group,
                        {key: cast_state(value, dtype) for key, value in state.items()},
                    )
        if not settings:
            raise ValueError("optimizer: it holds none of the parameters that the problem steps; pass the model's own")
        return {name: settings[name] for name in problem.stepped if name in settings}


def _decayed(params: Params, gradient: Params, weight_decay: float) -> Params:
    return {name: g + weight_decay * params[name] for name, g in gradient.items()} if weight_decay else gradient


def _checked(name: str, value: Any, *, zero: bool = False) -> float:
    """A finite number that is positive, or zero where that may be, as a float."""
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        wanted = "a finite number, zero or more" if zero else "a positive, finite number"
        raise ValueError(f"{name}: expected {wanted}, got {value!r}")
    return float(value)


def step_sizes_of(update: Update) -> list[float]:
    """The different step sizes of an update, ascending: one, or those of an optimizer's parameter groups."""
    return sorted(set(getattr(update, "step_sizes", [update.step_size])))


DEFAULT_UPDATE = SGD(1e-3)
"""The step where no `update=` is given."""
