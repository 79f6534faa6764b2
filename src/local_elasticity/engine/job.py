"""A job: one measurement, checked and laid out; and the rows that an engine's runner fills in."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from local_elasticity.engine.guard import vectorized
from local_elasticity.engine.inputs import cast_floats, count, given_twice, read_sources, read_targets, take
from local_elasticity.engine.layouts import CRASHES, batches_of, group_norms_of
from local_elasticity.engine.loss import IGNORED, Kind, check_log_probabilities, check_probabilities
from local_elasticity.engine.memory import Footprint, budget_of, footprint, keep_freed_memory, may_be_passed_over
from local_elasticity.engine.problem import BoundProblem, Inputs, as_predictions, leaves_of, sizes_of
from local_elasticity.engine.replica import Params
from local_elasticity.engine.rows import Rows
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.update import SGD, FromOptimizer, Rule, Update, check_update, is_plain, rule_of, stepped_by
from local_elasticity.shapes import Float
from local_elasticity.warn import warn

DEPENDS_ON_BATCH = (
    "model: the prediction for one of the {} changes with the other examples in its batch, as it does with batch norm "
    "without running statistics or with a mean over the first axis; a prediction must depend on one example alone"
)

SUM_OF_PROBABILITIES = 1e-4
"""How close to 1 outputs sum that are probabilities."""

AT_ONCE = 256
"""Examples predicted at a time to find one that the model does not take."""

COMPANY = 4
"""Examples among which a prediction is compared with the one alone."""


@dataclass(frozen=True)
class Sampled:
    """Pairs whose limits of small steps are asked for. An engine that finds them together with its rows puts them into
    `limits`, by source: [targets, k]; one that has the displacements of parameters puts these."""

    sources: tuple[int, ...]
    targets: Tensor
    limits: dict[int, Tensor]
    displacements: dict[int, Params]


@dataclass(frozen=True)
class Job:
    """n updates to take and m targets to read, at one moment of training.

    `source_inputs` and `source_labels` have the axes [n, B, …]: one step is taken on each batch of B examples, B = 1
    unless minibatches were asked for. `plain` says whether the step is −η times the gradient and nothing else.
    """

    bound: BoundProblem
    update: Update
    rule: Rule
    plain: bool
    source_inputs: Inputs
    source_labels: Tensor
    target_inputs: Inputs
    targets_are_sources: bool
    minibatches: bool
    memory: int
    footprint: Footprint
    k: int
    kind: Kind
    target_labels: Tensor | None = None
    output_shape: tuple[int, ...] = ()
    sampled: Sampled | None = None
    alone: Tensor | None = None
    """The predictions of the first and the last target, each run by itself: [2, k]; None in another precision, or where
    they were compared before."""

    @classmethod
    def read(
        cls,
        bound: BoundProblem,
        sources: Any,
        targets: Any,
        update: Update,
        *,
        source_batch_size: int | None = None,
        memory: int | None = None,
        check_targets: bool = False,
    ) -> Job:
        """Read and check everything a user hands in; errors name the argument and say what to do. The labels of the
        targets are checked where they are needed."""
        check_update(update)
        _check_step_size(update, bound.dtype)
        bound = bound.stepping(stepped_by(update, bound.problem))
        keep_freed_memory(bound.device)
        inputs, labels = read_sources(sources, bound.device, bound.dtype)
        shared = targets is None or given_twice(sources, targets)
        target_inputs, target_labels = (
            (inputs, labels) if shared else read_targets(targets, inputs, bound.device, bound.dtype)
        )
        batch = 1 if source_batch_size is None else source_batch_size
        check_batches(count(inputs), batch)
        outputs, footprint_of_one, alone = check_network(bound, inputs, None if shared else target_inputs)
        check_labels(bound, labels, outputs)
        _warn_of_probabilities(bound, alone)
        if check_targets and target_labels is not None and not shared:
            check_labels(bound, target_labels, outputs, "targets")
        job = cls(
            bound=bound,
            update=update,
            rule=(rule := rule_of(update, bound)),
            plain=is_plain(update, rule, bound),
            source_inputs=tree_map(lambda leaf: batches_of(leaf, batch), inputs),
            source_labels=labels.unflatten(0, (-1, batch)),
            target_inputs=target_inputs,
            targets_are_sources=source_batch_size is None and shared,
            minibatches=source_batch_size is not None,
            memory=budget_of(memory, bound.device),
            footprint=footprint_of_one,
            k=outputs[0].numel(),
            kind=_kind(bound, outputs),
            target_labels=target_labels,
            output_shape=tuple(outputs.shape[1:]),
            alone=alone,
        )
        return job.with_step_size() if isinstance(update, SGD) and update.automatic else job

    def with_step_size(self) -> Job:
        """The same job with the step that its sources and targets suggest."""
        from local_elasticity.engine.nonlinearity import resolved_step

        update = resolved_step(self)
        return replace(self, update=update, rule=rule_of(update, self.bound))

    @property
    def n(self) -> int:
        return len(self.source_labels)

    @property
    def m(self) -> int:
        return count(self.target_inputs)

    @property
    def batch(self) -> int:
        return self.source_labels.shape[1]

    @property
    def removes_drift(self) -> bool:
        """Whether changes are counted from the model after a step with zero gradient, which moves something."""
        return isinstance(self.update, FromOptimizer) and self.update.drift == "remove" and not self.plain

    @property
    def vectorizes(self) -> bool:
        """Whether vmap can take the rule."""
        return self.update.vectorizes and not (self.bound.hooks or self.bound.alters_gradients)

    @cached_property
    def unreached(self) -> list[str]:
        """The parameters that a step of an optimizer skips, because the first source does not reach them."""
        return [] if self.plain or not isinstance(self.update, FromOptimizer) else self.unreached_by(0)

    def unreached_by(self, row: int) -> list[str]:
        """The parameters that no gradient of this source arrives at, not even a zero."""
        inputs, labels = self.source(row)
        _, _, found = self.bound.step_gradient(leaves_of(self.bound.params), inputs, labels, reached=True)
        return [name for name in self.bound.params if name not in found]

    def displacements(self, gradients: Params, start: int) -> Params:
        """What the rule makes of the gradients of the sources from `start` on, name → [c, …]. An
        UnsupportedModelError where some of those do not reach a parameter that others reach."""
        self._refuse_unreached(gradients, start)
        params = self.bound.params
        if self.vectorizes:
            with vectorized():
                moved: Params = vmap(self.rule, in_dims=(None, 0))(params, gradients)
            return moved
        rows = range(len(next(iter(gradients.values()))))
        each = [self.rule(params, {name: part[i] for name, part in gradients.items()}) for i in rows]
        return {name: torch.stack([one[name] for one in each]) for name in each[0]}

    def _refuse_unreached(self, gradients: Params, start: int) -> None:
        """An optimizer skips a parameter for the sources that do not reach it, and for those alone. A gradient that is
        zero may mean that, or not."""
        if not isinstance(self.update, FromOptimizer):
            return
        reached = torch.stack([part.reshape(len(part), -1).any(1) for part in gradients.values()])
        for row in torch.nonzero(~reached.all(0)).flatten().tolist():
            missed = [name for name in self.unreached_by(start + row) if name in gradients]
            if missed:
                raise UnsupportedModelError(
                    f"engine: a source does not reach {missed[0]}, which the optimizer may skip"
                )

    @property
    def kind_of_targets(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of one target. Findings about a model are cached for targets of the same shape."""
        return tuple(tuple(leaf.shape[1:]) for leaf in tree_leaves(self.target_inputs))

    @cached_property
    def scales(self) -> tuple[int | None, ...]:
        """The powers of two nearest to the norms of weights and inputs, and of inputs about their mean. Findings about
        a model and its data are cached until one of them changes."""
        data = (self.target_inputs,) if self.targets_are_sources else (self.target_inputs, self.source_inputs)
        norms = self.bound.sizes, *map(_sizes, data), *map(_spreads, data)
        return tuple(_octave(math.hypot(*one)) for one in norms)

    @cached_property
    def magnitudes(self) -> tuple[Any, ...]:
        """The powers of two nearest to the norm of each weight, and the norms of targets and of these about their mean.
        Findings that are cheap are kept until one of them changes."""
        return (*map(_octave, self.bound.sizes), *_sizes(self.target_inputs), *_spreads(self.target_inputs))

    def part(self, rows: int) -> Job:
        """The same job for its first sources."""
        first = slice(0, rows)
        return replace(self, source_inputs=take(self.source_inputs, first), source_labels=self.source_labels[first])

    def source(self, row: int) -> tuple[Inputs, Tensor]:
        """The batch that row `row` steps on."""
        return take(self.source_inputs, row), self.source_labels[row]

    def examples(self, rows: slice | Tensor = slice(None)) -> Inputs:
        """The examples that some rows step on, those of one batch after those of another."""
        return tree_map(lambda leaf: leaf.flatten(0, 1), take(self.source_inputs, rows))

    def refuse_hooks(self, engine: str) -> None:
        """Raise an UnsupportedModelError if gradients pass hooks of the user's, which this engine cannot run."""
        hooks = (self.bound.hooks, "hooks on parameters"), (self.bound.alters_gradients, "backward hooks of modules")
        for there, what in hooks:
            if there:
                raise UnsupportedModelError(f"engine: {engine} cannot run {what}; use engine='auto'")

    def predict(self, params: Params, inputs: Inputs, at_once: int) -> Float[Tensor, "b k"]:
        """Predictions without gradients, at most `at_once` examples in a pass."""
        return predictions(self.bound, params, inputs, at_once)

    def check_company(self, target_before: Float[Tensor, "m k"]) -> None:
        """Raise a ValueError if the first or last target's prediction among the others is not the one it has
        alone."""
        if self.m <= COMPANY or self.alone is None:
            return
        alone = self.alone.to(target_before.dtype)
        same = same_predictions(alone, target_before[[0, -1]], self.bound.replica.coarsest)
        if not same and _differs_in_float64(self.bound, self.target_inputs, self.memory // self.footprint.forward()):
            raise ValueError(DEPENDS_ON_BATCH.format("sources" if self.targets_are_sources else "targets"))

    def rounding_inside(self) -> float:
        """The unit of the coarsest numbers that the network rounds to in this precision, 0 if it keeps its digits; a
        RuntimeError where it cannot be run in it."""
        replica = self.bound.replica
        replica.effects = None if replica.effects is None else replace(replica.effects, coarsest=0.0)
        try:
            self.bound.watched(take(self.target_inputs, slice(0, 1)))
        except Exception as error:  # whatever a forward pass raises that was not made for float64
            if not may_be_passed_over(error):
                raise
            raise RuntimeError(str(error)) from error
        assert replica.effects is not None
        return replica.effects.coarsest

    def again(self, bound: BoundProblem, rows: Tensor) -> Job:
        """The same job for some of its sources, in the precision of another moment of the same problem."""
        bound.replica.effects = self.bound.replica.effects
        inputs, labels = cast_floats((take(self.source_inputs, rows), self.source_labels[rows]), bound.dtype)
        return replace(
            self,
            bound=bound,
            rule=rule_of(self.update, bound),
            source_inputs=inputs,
            source_labels=labels,
            target_inputs=cast_floats(self.target_inputs, bound.dtype),
            target_labels=None if self.target_labels is None else cast_floats(self.target_labels, bound.dtype),
            targets_are_sources=False,
            sampled=None,
            alone=None,
        )

    def few(self, bound: BoundProblem, update: Update, rows: Tensor, targets: Tensor) -> Job:
        """Some of its pairs under another update, in the precision of another moment of the same problem."""
        plain = isinstance(update, SGD) and update.plain
        inputs, labels = take(self.target_inputs, targets), self.target_labels
        labels = None if labels is None else labels[targets]
        some = replace(self, update=update, plain=plain, target_inputs=inputs, target_labels=labels)
        return some.again(bound, rows)


def _sizes(inputs: Inputs) -> list[float]:
    return sizes_of(tree_leaves(inputs))


def _spreads(inputs: Inputs) -> list[float]:
    """The norms of inputs about their mean."""
    leaves = [leaf for leaf in tree_leaves(inputs) if leaf.is_floating_point() and leaf.layout == torch.strided]
    return sizes_of([leaf - leaf.mean(0) for leaf in leaves])


def octaves_of(tensors: Iterable[Tensor]) -> tuple[int | None, ...]:
    """The powers of two nearest to the norms of some tensors."""
    return tuple(map(_octave, sizes_of(tensors)))


def _octave(size: float) -> int | None:
    return round(math.log2(size)) if 0 < size < math.inf else None


def predictions(
    bound: BoundProblem, params: Params, inputs: Inputs, at_once: int, *, raw: bool = False
) -> Float[Tensor, "b k"]:
    """Predictions without gradients, at most `at_once` examples in a pass; `raw` in the precision that the model gives,
    if it has more digits than that of the weights."""
    outputs = bound.raw_outputs if raw else bound.outputs
    with torch.no_grad():
        starts = range(0, count(inputs), at_once)
        parts = [as_predictions(outputs(params, take(inputs, slice(i, i + at_once)))) for i in starts]
    found = (parts[0] if len(parts) == 1 else torch.cat(parts)).detach()
    return found.to(bound.dtype) if found.dtype.itemsize < bound.dtype.itemsize else found


class Runner(ABC):
    """Computes the rows of one job, for one engine."""

    job: Job

    chunk: int
    """How many sources it takes at a time."""

    subtracts: bool
    """Whether some of its rows are differences of two predictions."""

    target_before: Tensor
    """Predictions at the targets before any step, [m, k]."""

    notes: tuple[str, ...] = ()
    """What a reader of the result should know."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory it works in, beyond the result."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Rows:
        """Compute the rows of sources start … stop − 1."""

    @abstractmethod
    def shrink(self) -> bool:
        """Use less memory from now on; False if that is not possible."""


@runtime_checkable
class Engine(Protocol):
    """A way to compute responses. All exact engines agree with the plain loop."""

    @property
    def exact(self) -> bool: ...

    def runner(self, job: Job) -> Runner:
        """What computes the rows of a job.

        Args:
            job: the updates to take and targets to read.

        Returns:
            A `Runner`.

        Raises:
            UnsupportedModelError: if the engine cannot take the model or the update.
        """
        ...


def check_batches(n: int, batch: int) -> None:
    """Raise a ValueError unless n sources make whole batches."""
    if isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 1:
        raise ValueError(f"source_batch_size: expected a positive whole number, got {batch!r}")
    if n % batch:
        raise ValueError(f"source_batch_size: {n} sources do not divide into batches of {batch}; leave {n % batch} out")


def check_network(
    bound: BoundProblem, sources: Inputs, targets: Inputs | None, names: tuple[str, ...] = ("sources", "targets")
) -> tuple[Tensor, Footprint, Float[Tensor, "2 k"]]:
    """Run a few sources and targets through the network; errors name the argument that does not fit. Returns the
    outputs of the first source; what the pass of one target took, and the predictions of the first and the last target
    by themselves, or of sources where those are the targets."""
    outputs, size, alone = _taken(bound, sources, names[0])
    _check_layout(bound, sources)
    if targets is not None:
        expected, size, alone = _taken(bound, targets, names[1])
        _check_layout(bound, targets)
        if outputs.shape[1:] != expected.shape[1:]:
            raise ValueError(
                f"{names[1]}: outputs have shape {tuple(expected.shape[1:])}, those of {names[0]} "
                f"{tuple(outputs.shape[1:])}; {names[0]} and {names[1]} must give the same number of outputs"
            )
    return outputs, size, alone


def _check_layout(bound: BoundProblem, inputs: Inputs) -> None:
    """Raise a ValueError if a backward pass may end the process, in a group norm that `GroupNormsInTwo` cannot see, as
    one in TorchScript."""
    effects = bound.replica.effects
    if effects is None or not effects.group_norms:
        return
    if group_norms_of(partial(bound.outputs, leaves_of(bound.params)), inputs).weighted:
        raise ValueError(
            f"model: {CRASHES}; call x.contiguous() before it, or pass contiguous images and "
            "model.to(memory_format=torch.contiguous_format)"
        )


def _taken(bound: BoundProblem, inputs: Inputs, name: str) -> tuple[Tensor, Footprint, Float[Tensor, "2 k"]]:
    """The outputs of the first example, which must be the same among others, what its forward pass took, and the
    predictions of the first and the last example by themselves."""
    n = count(inputs)
    bound.examples[name] = inputs
    some = torch.linspace(0, n - 1, min(n, COMPANY), device=bound.device).round().long()
    one = take(inputs, slice(0, 1))
    try:
        together = bound.watched(take(inputs, some))
    except Exception as error:
        if may_be_passed_over(error):
            _alone(bound, one, name)  # raises an error that explains why the model does not accept even one example
        raise
    outputs, size = _alone(bound, one, name)
    if len(together) != len(some):
        raise ValueError(
            f"model: {len(some)} examples give {len(together)} outputs; the first axis of both must be the examples"
        )
    with torch.no_grad():
        last = bound.predict(bound.params, take(inputs, some[-1:]))
    alone = torch.cat([as_predictions(outputs).detach(), last])
    _check_alone(bound, take(inputs, some), alone, together[[0, -1]], name)
    return outputs, size, alone


def _alone(bound: BoundProblem, one: Inputs, name: str) -> tuple[Tensor, Footprint]:
    """The outputs of one example, and what its forward pass took."""
    try:
        outputs, size = footprint(bound, one)
    except (KeyError, AttributeError, NameError) as error:
        raise ValueError(_why_it_fails(bound, error)) from error
    except (RuntimeError, IndexError, ValueError, TypeError, AssertionError) as error:
        if not may_be_passed_over(error) or str(error).startswith(("model: ", "loss: ", "output: ")):
            raise
        raise ValueError(_why_not_taken(bound, one, name, error)) from error
    if outputs.ndim == 0 or len(outputs) != 1:
        raise ValueError(
            f"model: one example gives outputs of shape {tuple(outputs.shape)}; the first axis must be the examples"
        )
    if not outputs.numel():
        raise ValueError(
            f"model: one example gives outputs of shape {tuple(outputs.shape)}, which hold no number; "
            "return at least one output"
        )
    if not outputs.is_floating_point():
        raise TypeError(f"model: its outputs are {outputs.dtype}; expected real floating-point numbers")
    return outputs, size


def _why_it_fails(bound: BoundProblem, error: Exception) -> str:
    """What to say where the forward pass does not find something. A key that is an object, or the id of a part of the
    copy, says that it looks for its parts by their identity."""
    said = f"{type(error).__name__}: {error}"
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, (str, int, float, bytes, type(None))) or key in bound.replica.identities():
        return (
            f"model: its forward pass fails on a private copy of it ({said}); "
            "it must find its parts by attribute, not by their identity"
        )
    return f"model: its forward pass raises {said}; check that the model takes these inputs and has what it reads"


class ExampleError(ValueError):
    """The model does not take one of the examples, though it takes others."""

    def __init__(self, name: str, place: int, why: str) -> None:
        super().__init__(f"{name}: the model does not take example {place}, counted from 0 ({why})")
        self.name, self.place, self.why = name, place, why


def name_example(bound: BoundProblem, error: Exception) -> None:
    """Raise an ExampleError if the model does not take one of its examples, in place of an error that does not name an
    argument. Predicts all examples for this, half of those that fail at a time."""
    named = isinstance(error, (ValueError, TypeError)) and re.match(r"\w+: ", str(error)) is not None
    if not may_be_passed_over(error) or (named and not isinstance(error, UnsupportedModelError)):
        return
    if not bound.examples or not _comes_from_the_model(error):
        return
    for name, inputs in bound.examples.items():
        for start in range(0, count(inputs), AT_ONCE):
            place, why = start, _refused(bound, take(inputs, slice(start, start + AT_ONCE)))
            few = min(AT_ONCE, count(inputs) - start)
            while why is not None and few > 1:
                half = few // 2
                first = _refused(bound, take(inputs, slice(place, place + half)))
                place, few = (place, half) if first is not None else (place + half, few - half)
                why = first or _refused(bound, take(inputs, slice(place, place + few)))
            if why is not None and place > 0:  # the first was predicted before, so that it is not the cause
                raise ExampleError(name, place, str(why) or type(why).__name__) from error


def _comes_from_the_model(error: BaseException | None) -> bool:
    """Whether a forward pass raised an error, or the one that it follows from; a loss or a callback may have."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in (BoundProblem.raw_outputs.__code__, BoundProblem.watched.__code__):
                return True
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return False


def _refused(bound: BoundProblem, inputs: Inputs) -> Exception | None:
    """The error of a forward pass of examples; None if there is none, or if it says nothing about them."""
    try:
        with torch.no_grad():
            bound.outputs(bound.params, inputs)
    except Exception as error:  # whatever a forward pass raises
        return error if may_be_passed_over(error) else None
    return None


def _why_not_taken(bound: BoundProblem, one: Inputs, name: str, error: Exception) -> str:
    """What to say where the model fails on one example."""
    if "Expected more than 1 value per channel" in str(error):
        return (
            "model: its batch norm has no running statistics, so that a prediction depends on the whole batch; "
            "make it with track_running_stats=True"
        )
    half = bound.problem.half
    if half not in (None, bound.dtype) and any(word in str(error) for word in ("BFloat16", "Half")):
        return (
            f"model: it is measured in {bound.dtype}, since steps drown in {half}, but its forward casts to {half} "
            f"({error}); cast to the type of the weights, x.to(layer.weight.dtype), or remove the cast, or pass "
            f"problem.to({half}) with a large step"
        )
    given = ", ".join(f"{leaf.dtype} {tuple(leaf.shape)}".removeprefix("torch.") for leaf in tree_leaves(one))
    return f"{name}: the model does not take one example of {given} ({str(error) or type(error).__name__})"


def _check_alone(bound: BoundProblem, few: Inputs, alone: Tensor, together: Tensor, name: str) -> None:
    """The predictions of the first and the last example are the same alone as among others, and the same twice."""
    if same_predictions(alone, together, bound.replica.coarsest):
        return
    with torch.no_grad():
        again = bound.predict(bound.params, take(few, slice(0, 1)))
    if not same_predictions(alone[:1], again, bound.replica.coarsest):
        raise ValueError("model: two equal calls give different predictions; remove what is random in eval mode")
    if _differs_in_float64(bound, few, COMPANY):
        raise ValueError(DEPENDS_ON_BATCH.format(name))


def _differs_in_float64(bound: BoundProblem, inputs: Inputs, at_once: int) -> bool:
    """Whether the predictions of the first and the last example change with the others where rounding is small: a
    network may lose so many digits in float32 that a batch is rounded otherwise than one example."""
    if bound.dtype == torch.float64:
        return True
    inputs = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, inputs)
    ends = [take(inputs, slice(i, i + 1)) for i in (0, count(inputs) - 1)]
    try:
        with bound.problem.to(torch.float64).bound() as higher:
            together = predictions(higher, higher.params, inputs, max(1, at_once))
            alone = torch.cat([predictions(higher, higher.params, one, 1) for one in ends])
    except Exception as error:  # whatever a forward pass raises that was not made for float64
        if not may_be_passed_over(error):
            raise
        return True
    return not same_predictions(alone, together[[0, -1]])


def same_predictions(one: Tensor, other: Tensor, coarsest: float = 0.0) -> bool:
    """Whether predictions are the same but for rounding, where they are finite. A network that rounds to fewer digits
    inside, to units of `coarsest`, is compared as one of float32."""
    allowed = max(torch.finfo(one.dtype).eps, min(coarsest, torch.finfo(torch.float32).eps)) ** 0.5
    if bool(((one - other).abs() <= allowed * other.abs().amax()).all()):
        return True
    known = one.isfinite() & other.isfinite()
    one, other = torch.where(known, one, 0), torch.where(known, other, 0)
    largest = torch.maximum(one.abs().amax(), other.abs().amax())
    return bool((one - other).abs().amax() <= allowed * largest)


def check_labels(bound: BoundProblem, labels: Tensor, outputs: Tensor, name: str = "sources") -> None:
    """Check the labels of examples with these outputs; errors say what the loss does not accept."""
    _check_classes(bound, labels, outputs, name)
    if bound.problem.loss_name == "bce":
        check_probabilities(outputs)
    try:
        _check_loss(bound, labels, outputs)
    except (ValueError, TypeError) as error:
        if name == "sources" or not str(error).startswith("sources: "):
            raise
        raise type(error)(str(error).replace("sources", name, 1)) from error


def _check_loss(bound: BoundProblem, labels: Tensor, outputs: Tensor) -> None:
    """The loss of two examples is one number that depends on the outputs."""
    two = labels[:2]
    read = torch.cat([outputs.detach()] * len(two)).requires_grad_()
    loss = bound.watched_loss(read, two)
    if not isinstance(loss, Tensor) or loss.ndim > 0:
        shape = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss: it returns {shape} for {len(two)} examples, not a scalar; take the mean, loss.mean()")
    if not bound.problem.loss_is_named and not same_predictions(
        bound.loss(read, two).detach()[None], loss.detach()[None]
    ):
        raise ValueError("loss: two equal calls give different values; it must follow from outputs and labels alone")
    if not loss.requires_grad:
        raise ValueError("loss: it does not depend on the outputs, or not differentiably, so that no step follows")


def _check_classes(bound: BoundProblem, labels: Tensor, outputs: Tensor, name: str) -> None:
    """Whole-number labels of the cross-entropy name one of the model's outputs, at every place that has a class."""
    if not bound.problem.classifies or labels.is_floating_point() or outputs.ndim < 2:
        return
    if bound.problem.loss_name == "nll":
        check_log_probabilities(outputs)
    k, places = outputs.shape[1], outputs.shape[2:]
    if labels.shape[1:] != places:
        raise ValueError(
            f"{name}: cross_entropy expects one class for each example{' and place' if places else ''}, not labels of "
            f"shape {tuple(labels.shape)}; one-hot labels are read as probabilities where they are floats"
        )
    labels = labels.long()
    left_out = (labels == IGNORED) if places else torch.zeros_like(labels, dtype=torch.bool)
    outside = labels[((labels < 0) & ~left_out) | (labels >= k)]
    if len(outside):
        raise ValueError(f"{name}: label {int(outside[0])} is outside the model's {k} outputs; give labels 0 … {k - 1}")
    if bool(left_out.reshape(len(labels), -1).all(1).any()):
        raise ValueError(f"{name}: an example has the label {IGNORED} at every place and so no loss; leave it out")


def _check_step_size(update: Update, dtype: torch.dtype) -> None:
    """Raise a ValueError if the weights cannot hold numbers as large as the step size."""
    largest, size = torch.finfo(dtype).max, getattr(update, "step_size", None)
    if isinstance(size, float) and size > largest:
        raise ValueError(f"step_size: {size:g} is larger than the largest number of the weights, {largest:.2g}")


def _warn_of_probabilities(bound: BoundProblem, outputs: Float[Tensor, "2 k"]) -> None:
    """Warn where what should be logits are probabilities, of which the loss takes the softmax a second time."""
    if bound.problem.kind != "logits" or outputs.shape[1] < 2:
        return
    sums = outputs.sum(1)
    if bool(((outputs >= 0).all(1) & ((sums - 1).abs() < SUM_OF_PROBABILITIES)).all()):
        warn(
            "model: its outputs are probabilities, which sum to 1, but the loss takes the softmax itself; return "
            "logits, without a softmax at the end",
            UserWarning,
        )


def _kind(bound: BoundProblem, outputs: Tensor) -> Kind:
    """What the outputs are; logits with several axes are several distributions, of which no measure knows."""
    several = sum(size > 1 for size in outputs.shape[1:]) > 1
    return "logits_by_place" if bound.problem.kind == "logits" and several else bound.problem.kind
