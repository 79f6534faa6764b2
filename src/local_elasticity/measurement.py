"""A measurement: what is asked of a network, read and checked once; it runs any measures, on any part of the pairs.

`le.similarity`, stores, `le.Monitor`, clustering and Ray tasks all ask through it, so that the same question gives the
same numbers and the same errors everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from local_elasticity.engine.causes import MOSTLY, cause_of_rest, cause_of_unresolved
from local_elasticity.engine.choose import name_of
from local_elasticity.engine.inputs import check_sources, count, given_twice, read_sources, read_targets
from local_elasticity.engine.job import Engine, Job, check_batches
from local_elasticity.engine.linearized import Linearized
from local_elasticity.engine.predicted import with_predicted_labels
from local_elasticity.engine.problem import BoundProblem, Inputs, Problem
from local_elasticity.engine.progress import ProgressOption
from local_elasticity.engine.respond import resolve_engine, response_of
from local_elasticity.engine.response import Response
from local_elasticity.engine.sequential import respond_in_sequence
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD, Update, check_update
from local_elasticity.measures.measure import Measure, Scores

Sources = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
"""(inputs, labels), or a Dataset or DataLoader of such pairs."""

Targets = Inputs | np.ndarray | Sources
"""Inputs alone, (inputs, labels), a Dataset or a DataLoader."""

OF_PROBABILITIES = ("kl", "relative_l1", "loss")
"""Measures that hardly move where the outputs are saturated."""


@dataclass(frozen=True)
class Measured:
    """What a measurement found: the scores of every measure by name, and how they were computed."""

    scores: Mapping[str, Scores]
    engine: str
    notes: tuple[str, ...] = ()
    cause: str | None = None
    """Why most sources did not move, if they did not."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """Why most pairs of a measure are unresolved, if so and if the cause is known."""
    nonlinearity: float = float("nan")


@dataclass(frozen=True)
class Measurement:
    """One question: a network, sources, targets, a step, an engine, and the measures to take.

    `targets` is None if they are the sources. `target_labels` are those that the user gave, if any. `engine` is None
    where one is to be chosen; with `refine`, rows that rounding hides are computed again.
    """

    problem: Problem
    sources: tuple[Inputs, Tensor]
    targets: Inputs | None
    target_labels: Tensor | None
    measures: tuple[Measure, ...]
    update: Update
    engine: Engine | None
    refine: bool
    source_batch_size: int | None = None
    memory: int | None = None
    labels: str = "given"

    @classmethod
    def read(
        cls,
        problem: Problem,
        sources: Sources,
        targets: Targets | None,
        *,
        measures: tuple[Measure, ...],
        update: Update = DEFAULT_UPDATE,
        engine: str | Engine = "auto",
        approximate: bool = False,
        source_batch_size: int | None = None,
        memory: int | None = None,
        labels: str = "given",
    ) -> Measurement:
        """Read and check what a user hands in; errors name the argument and say what to do."""
        sources, targets = with_predicted_labels(problem, sources, targets, labels)
        check_sources(sources)
        check_update(update)
        chosen = resolve_engine(engine, approximate)
        given = {
            "update": update is not DEFAULT_UPDATE,
            "engine": engine != "auto",
            "approximate": approximate,
            "source_batch_size": source_batch_size is not None,
        }
        _check_options(measures, [name for name, there in given.items() if there])
        square = targets is None or given_twice(sources, targets)
        problem.check()
        place = problem.device, problem.precision
        sources, target_labels = read_sources(sources, *place), None
        if source_batch_size is not None:
            check_batches(len(sources[1]), source_batch_size)
        if square:
            targets = None
        else:
            needed = any(measure.target_labels for measure in measures)
            targets, target_labels = read_targets(targets, sources[0], *place, labels_needed=needed)
        if square and source_batch_size is not None:
            targets, target_labels = sources
        measurement = cls(
            problem,
            sources,
            targets,
            target_labels,
            measures,
            update,
            chosen,
            refine=chosen is None,
            source_batch_size=source_batch_size,
            memory=memory,
            labels=labels,
        )
        for measure in measures:
            if measure.normalize is not None and not measurement.square:
                raise ValueError(f"measure: {measure.name} needs the targets to be the sources; leave targets out")
        return measurement.with_step_size()

    def with_step_size(self) -> Measurement:
        """With the step size that `SGD("auto")` chooses, so that every part and every probe takes the same step."""
        if not (isinstance(self.update, SGD) and self.update.automatic and self.takes_steps):
            return self
        with self.problem.bound() as bound:
            return replace(self, update=self.job(bound).update)

    @property
    def n(self) -> int:
        """Rows: sources, or batches of them."""
        return len(self.sources[1]) // (self.source_batch_size or 1)

    @property
    def m(self) -> int:
        return self.n if self.targets is None else count(self.targets)

    @property
    def square(self) -> bool:
        """Whether the targets are the sources."""
        return self.targets is None

    @property
    def dtype(self) -> torch.dtype:
        """What similarities are kept in."""
        return torch.float64 if self.problem.precision == torch.float64 else torch.float32

    @property
    def takes_steps(self) -> bool:
        """Whether a measure needs the response to updates."""
        return any(measure.takes_steps for measure in self.measures)

    @property
    def reads_target_labels(self) -> bool:
        """Whether a measure of the response reads the labels of the targets."""
        return any(measure.takes_steps and measure.target_labels for measure in self.measures)

    @property
    def pair_of_targets(self) -> tuple[Inputs, Tensor | None] | None:
        """(inputs, labels or None); None if the targets are the sources."""
        return None if self.targets is None else (self.targets, self.target_labels)

    def classes(
        self, source_labels: Any, target_labels: Any, class_names: Mapping[Any, str] | Sequence[str] | None = None
    ) -> tuple[Any, Any]:
        """The classes of sources and targets: those given, or their own labels where the loss says that they are
        classes; by name where names are given."""

        def own(labels: Tensor | None) -> Tensor | None:
            known = self.problem.classifies and labels is not None and labels.ndim == 1
            return labels if known and self.source_batch_size is None else None

        if source_labels is None:
            source_labels = own(self.sources[1])
        if target_labels is None:
            target_labels = source_labels if self.square else own(self.target_labels)
        if class_names is None:
            return source_labels, target_labels
        return named_classes(source_labels, class_names), named_classes(target_labels, class_names)

    def part(self, rows: slice, columns: slice) -> Measurement:
        """Some of the rows and columns. Their examples are copied, so that their memory layout does not depend on the
        rest."""
        batch = self.source_batch_size or 1
        sources = _copied(self.sources, slice(rows.start * batch, rows.stop * batch))
        if self.targets is not None:
            targets, labels = _copied((self.targets, self.target_labels), columns)
        else:
            targets, labels = (None, None) if rows == columns else _copied(self.sources, columns)
        return replace(self, sources=sources, targets=targets, target_labels=labels)

    def sampled(self, rows: Tensor) -> Measurement:
        """Some of the sources, each one example; where the targets are the sources, at these alone."""
        return replace(self, sources=_copied(self.sources, rows))

    def at(self, weights: Mapping[str, Tensor]) -> Measurement:
        """The same question at other weights: parameters and buffers by name."""
        return replace(self, problem=self.problem.at(weights))

    def respond(self, progress: ProgressOption = False) -> Response:
        """One update on each source, read at every target."""
        return response_of(
            self.problem,
            self.sources,
            self.pair_of_targets,
            update=self.update,
            engine=self.engine,
            refine=self.refine,
            source_batch_size=self.source_batch_size,
            memory=self.memory,
            progress=progress,
            check_targets=self.reads_target_labels,
        )

    def walk(self, record: Tensor | None = None, progress: ProgressOption = False) -> Response:
        """One update after another, each from where the last one ended, read at every target. `record` says which of
        them become rows; all do by default. There is one engine for this."""
        return respond_in_sequence(
            self.problem,
            self.sources,
            self.pair_of_targets,
            update=self.update,
            record=record,
            memory=self.memory,
            progress=progress,
        )

    def job(self, bound: BoundProblem) -> Job:
        """The updates to take and targets to read, laid out at one moment of training."""
        return Job.read(
            bound,
            self.sources,
            self.pair_of_targets,
            self.update,
            source_batch_size=self.source_batch_size,
            memory=self.memory,
            check_targets=self.reads_target_labels,
        )

    def score(self, measure: Measure, response: Response | None, progress: ProgressOption = False) -> Scores:
        """What one measure makes of the response, or of the network itself. Blocks off the diagonal of a normalised
        measure are not divided yet."""
        shape: tuple[int, ...] = self.n, self.m
        if measure.takes_steps:
            assert response is not None
            shape = response.target_change.shape[:2]
            try:
                scores = measure.scores(response)
            except (AttributeError, NameError, TypeError, KeyError, IndexError) as error:
                raise ValueError(f"measure: {measure.name} fails ({type(error).__name__}: {error})") from error
        else:
            scores = measure.scores(
                self.problem, self.sources, self._targets(measure), memory=self.memory, progress=progress
            )
        if scores.values.shape != shape:
            raise ValueError(
                f"measure: {measure.name}: expected a tensor of shape {tuple(shape)}, one number for each "
                f"source and target, got shape {tuple(scores.values.shape)}"
            )
        scores = replace(scores, values=scores.values.to(self.dtype))
        if measure.normalize is None or not self.square:
            return scores
        assert scores.own is not None
        return replace(scores, values=measure.normalize(scores.values, scores.own, scores.own))

    def run(self, progress: ProgressOption = False) -> Measured:
        """Take every measure; those that need the response share one."""
        limits = self._limits(progress)
        if limits is not None:
            return limits
        response = self.respond(progress) if self.takes_steps else None
        scores = {measure.name: self.score(measure, response, progress) for measure in self.measures}
        if response is None:
            return Measured(scores, self.measures[0].needs, tuple(self.problem.notes()))
        causes = causes_of(response, self.measures, {name: one.values for name, one in scores.items()})
        return Measured(scores, response.engine, response.notes, cause_of_rest(response), causes, response.nonlinearity)

    def _limits(self, progress: ProgressOption) -> Measured | None:
        """The first order of the measure without a response, which has every output of every target. None if this was
        not asked for, if the measure has no such form, or if most pairs are unresolved: a response tells why."""
        first = self.measures[0] if self.measures else None
        if not isinstance(self.engine, Linearized) or first is None or first.limits is None or len(self.measures) > 1:
            return None
        if self.source_batch_size is not None:
            return None
        found = first.limits(
            self.problem, self.sources, self.pair_of_targets, update=self.update, memory=self.memory, progress=progress
        )
        if found is None or unresolved_share(found.scores.values) > MOSTLY:
            return None
        scores = replace(found.scores, values=found.scores.values.to(self.dtype))
        notes = (*self.problem.notes(), *found.notes)
        return Measured({first.name: scores}, name_of(self.engine), notes, nonlinearity=0.0)

    def _targets(self, measure: Measure) -> Any:
        if self.targets is None:
            return None
        return (self.targets, self.target_labels) if measure.target_labels else self.targets


def causes_of(
    response: Response, measures: tuple[Measure, ...], values: Mapping[str, Tensor | np.ndarray]
) -> dict[str, str]:
    """Why most pairs of a measure are unresolved, by its name, if so and if the cause is known."""
    found: dict[str, str] = {}
    for measure in measures:
        if measure.takes_steps and measure.name in values and unresolved_share(values[measure.name]) > MOSTLY:
            cause = cause_of_unresolved(response, of_probabilities=measure.name in OF_PROBABILITIES)
            found |= {measure.name: cause} if cause else {}
    return found


def unresolved_share(values: Tensor | np.ndarray) -> float:
    """The share of pairs without a value."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return float(np.isnan(array).mean()) if array.size else float("nan")


def _check_options(measures: tuple[Measure, ...], given: list[str]) -> None:
    """An option about steps is an error if no measure takes a step."""
    if given and measures and not any(measure.takes_steps for measure in measures):
        names = " and ".join(measure.name for measure in measures)
        takes = "takes" if len(measures) == 1 else "take"
        raise ValueError(f"{given[0]}: {names} {takes} no step, so {given[0]}= would have no effect; leave it out")


def named_classes(labels: Any, names: Mapping[Any, str] | Sequence[str]) -> list[str] | None:
    """The name of each label; a ValueError if one has none."""
    if labels is None:
        return None
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    try:
        return [_as_text(names[label]) for label in values]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"class_names: expected a name for each class in the labels, got {names!r}") from error


def _as_text(name: Any) -> str:
    r"""A name that can be written: bytes of a file's name that are no text are spelled out.

    >>> print(_as_text("caf\udce9"))
    caf\udce9
    """
    return str(name).encode("utf-8", "backslashreplace").decode()


def _copied(examples: Any, rows: slice | Tensor) -> Any:
    return tree_map(lambda leaf: leaf[rows].clone() if isinstance(leaf, torch.Tensor) else leaf, examples)
