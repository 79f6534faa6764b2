"""One probe: every measure of the network as it stands, from one response; and those of its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.emergence.along import ALONG, FeatureMeasure, Gathered
from local_elasticity.emergence.features import FeatureStream
from local_elasticity.emergence.named import OF_FEATURES
from local_elasticity.engine.auto import FAILURES, Auto, settled_where_short
from local_elasticity.engine.guard import isolated
from local_elasticity.engine.inputs import count, given_twice, read_sources, read_targets, take
from local_elasticity.engine.job import Engine, Job
from local_elasticity.engine.looped import Looped
from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.replay import Launched, Replay, recorded
from local_elasticity.engine.respond import resolve_engine, respond
from local_elasticity.engine.response import OfResponse, Response, repeated
from local_elasticity.engine.structured import Structured
from local_elasticity.engine.update import Update
from local_elasticity.measures.named import OF_PROBLEM, OF_RESPONSE, check_name
from local_elasticity.training.changes import Standing, at_present
from local_elasticity.training.distributed import (
    alone,
    for_want_of_memory,
    gathered_response,
    gathered_rows,
    share,
    shared,
    together,
)

Measure = str | OfResponse

FEW = 2
"""Examples enough to see whether something can be measured."""


@dataclass(frozen=True)
class Found:
    """Similarities [n, m] by the measure's name, the engine that computed the response, and the errors of measures that
    failed."""

    similarity: dict[str, np.ndarray]
    engine: str
    errors: Mapping[str, Exception] = field(default_factory=dict)


@dataclass(frozen=True)
class Prober:
    """What is asked at every probe, read and checked once.

    `target_labels` are the loss's, which stiffness alone needs; `targets` is None where they are the sources.
    `measures` give a similarity [n, m] each, `of_features` a number. `standing` is the model as it was read,
    and `replay` is a probe that a GPU has recorded.
    """

    problem: Problem
    sources: tuple[Any, Tensor]
    targets: Any
    target_labels: Tensor | None
    measures: Mapping[str, Measure]
    of_features: Mapping[str, FeatureMeasure]
    update: Update
    engine: Engine
    memory: int | None
    standing: Standing
    replay: Replay | None = None

    @classmethod
    def read(
        cls,
        problem: Problem,
        sources: Any,
        targets: Any,
        *,
        measures: Iterable[Measure | FeatureMeasure],
        update: Update,
        engine: str | Engine,
        approximate: bool,
        memory: int | None,
    ) -> Prober:
        """Check everything before training begins; errors name the argument and say what to do."""
        named, of_features = _named(measures)
        chosen = resolve_engine(engine, approximate)
        labels, labelled = None, any(_labelled(name) for name in named)
        if given_twice(sources, targets, labelled=labelled):
            targets = None
        with problem.moment() as moment:
            sources = read_sources(sources, moment.device, moment.dtype)
            if targets is not None and labelled:
                targets, labels = read_sources(targets, moment.device, moment.dtype, "targets")
            elif targets is not None:
                _check_unlabelled(targets, sources[0])
                targets = read_targets(targets, moment.device, moment.dtype)
            sources, targets, labels = tree_map(_own, (sources, targets, labels))
            Job.read(moment, sources, targets, update)
        standing = Standing.of(problem)
        prober = cls(problem, sources, targets, labels, named, of_features, update, chosen, memory, standing)
        for error in prober.numbers()[1].values():
            raise error
        prober.rehearse()
        try:
            prober = replace(prober, replay=prober.recorded())
            return prober if prober.replay else replace(prober, engine=prober.settled())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return prober

    @property
    def n(self) -> int:
        return len(self.sources[1])

    @property
    def m(self) -> int:
        return self.n if self.targets is None else count(self.targets)

    def at_present(self) -> Prober:
        """The same for the model as it is now: other parameters may step, on another device. A recording of what was
        there before is dropped."""
        problem = at_present(self.problem)
        standing = Standing.of(problem)
        if standing == self.standing:
            return self

        def moved(leaf: Any) -> Any:
            return leaf.to(standing.device) if isinstance(leaf, Tensor) else leaf

        sources, targets, labels = tree_map(moved, (self.sources, self.targets, self.target_labels))
        same = problem.steps == self.problem.steps and standing.device == self.standing.device
        return replace(
            self,
            problem=problem,
            sources=sources,
            targets=targets,
            target_labels=labels,
            standing=standing,
            replay=self.replay if same else None,
        )

    def __call__(self) -> Found:
        """Take every measure. Where some fail, the others are found; where all fail, the first error is raised."""
        if not self.measures:
            return Found({}, "features")
        response = self._respond() if self._steps() else None
        found: dict[str, np.ndarray] = {}
        errors: dict[str, Exception] = {}
        for name, measure in self.measures.items():
            try:
                found[name] = self._similarity(name, measure, response)
            except Exception as error:
                if for_want_of_memory(error):
                    raise
                errors[name] = error
        if not found:
            raise next(iter(errors.values()))
        return Found(found, response.engine if response else "gradients", errors)

    def launched(self) -> Launched | None:
        """The same on a GPU while the caller goes on; None where that was not recorded, or is no longer right."""
        return self.replay.launched() if self.replay else None

    def found(self) -> Found:
        """What was launched has found. Rows that rounding hides are computed again, at the weights of that moment."""
        assert self.replay is not None
        similarity, clear = self.replay.found()
        if clear or not self._climbs():
            return Found({name: _as_array(S) for name, S in similarity.items()}, "structured")
        return replace(self, problem=self.problem.at(self.replay.weights), replay=None)()

    def numbers(self) -> tuple[dict[str, float], dict[str, Exception]]:
        """The measures of features by name, NaN where one failed, and the errors. Each stream is gone through once, by
        every process."""
        known: dict[int, Gathered] = {}

        def gathered(stream: FeatureStream) -> Gathered:
            if id(stream) not in known:
                known[id(stream)] = stream.gathered()
            return known[id(stream)]

        def measured() -> tuple[dict[str, float], dict[str, Exception]]:
            values, errors = dict.fromkeys(self.of_features, float("nan")), {}
            for name, measure in self.of_features.items():
                try:
                    values[name] = measure(gathered)
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
                    errors[name] = error
            return values, errors

        with isolated(self.sources[1].device), torch.no_grad():
            return together(measured)

    def rehearse(self) -> None:
        """Take every measure once, of two sources at two targets, so that what cannot be measured shows at once."""
        try:
            response = self._small_response() if self._steps() else None
            for name, measure in self.measures.items():
                if _of_network(measure):
                    self._of_problem(measure, _few(self.sources), _few(self._targets(name)))
                elif response is not None:
                    _check_shape(name, _of_response(measure, response), (self.n, self.m))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise

    def recorded(self) -> Replay | None:
        """A recording, on a GPU, for one process and measures by name: functions of the user's may have a mind of their
        own. `auto` keeps it where it is fast."""
        named = {one: OF_RESPONSE[one] for one in self.measures.values() if isinstance(one, str) and one in OF_RESPONSE}
        known = named and len(named) == len(self.measures) and isinstance(self.engine, (Auto, Structured))
        if not (known and alone()):
            return None
        replay = recorded(self.problem, self.sources, self.targets, self.update, self.memory, named)
        return replay if replay and (isinstance(self.engine, Structured) or replay.beats_the_loop()) else None

    def settled(self) -> Engine:
        """The engine; `auto` with its way, where probes are too short for it to look for one."""
        if self.engine != Auto() or not self._steps():
            return self.engine
        with self.problem.moment() as moment:
            job = Job.read(moment, self.sources, self.targets, self.update, memory=self.memory)
            return Auto(settled_where_short(job))

    def _climbs(self) -> bool:
        """Whether rows that rounding hides are computed again."""
        return isinstance(self.engine, Auto)

    def _small_response(self) -> Response:
        """The response of the first sources at the first targets, repeated to the size of the whole."""
        response = respond(
            self.problem,
            _few(self.sources),
            _few(self.targets),
            update=self.update,
            engine=Looped() if self._climbs() else self.engine,
            memory=self.memory,
            progress=False,
        )
        return repeated(response, self.n, self.m)

    def _steps(self) -> bool:
        """Whether any measure needs steps to be taken."""
        return not all(_of_network(measure) for measure in self.measures.values())

    def _respond(self) -> Response:
        mine = together(self._respond_to_share)
        return gathered_response(mine, self.n, square=self.targets is None)

    def _respond_to_share(self) -> Response:
        def by(engine: Engine) -> Response:
            return respond(
                self.problem,
                share(self.sources),
                self.sources[0] if self._others() else self.targets,
                update=self.update,
                engine=engine,
                memory=self.memory,
                progress=False,
            )

        try:
            return by(self.engine)
        except FAILURES as error:
            if self.engine == Auto() or not self._climbs() or is_out_of_memory(error):
                raise
            return by(Auto())

    def _similarity(self, name: str, measure: Measure, response: Response | None) -> np.ndarray:
        if _of_network(measure):
            mine = together(lambda: self._of_problem(measure, share(self.sources), self._targets(measure)))
            (whole,) = gathered_rows([mine], self.n)
            return _as_array(whole)
        assert response is not None
        return together(lambda: self._checked(name, _of_response(measure, response)))

    def _checked(self, name: str, S: Tensor) -> np.ndarray:
        _check_shape(name, S, (self.n, self.m))
        return _as_array(S)

    def _of_problem(self, measure: str, sources: Any, targets: Any) -> Tensor:
        return OF_PROBLEM[measure](self.problem, sources, targets, memory=self.memory, progress=False)

    def _targets(self, measure: str) -> Any:
        """As a measure of the problem wants them: with labels, where it reads those; None for the sources."""
        if self._others():
            return self.sources if _labelled(measure) else self.sources[0]
        return (self.targets, self.target_labels) if _labelled(measure) and self.targets is not None else self.targets

    def _others(self) -> bool:
        """Whether this process's sources are a part of the targets, which are all sources."""
        return self.targets is None and shared(self.n)


def _as_array(S: Tensor) -> np.ndarray:
    return S.detach().double().cpu().numpy()


def _own(leaf: Any) -> Any:
    """A copy of a tensor: the user may write into hers."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _few(examples: Any) -> Any:
    return None if examples is None else take(examples, slice(0, FEW))


def _of_response(measure: Measure, response: Response) -> Tensor:
    return (OF_RESPONSE[measure] if isinstance(measure, str) else measure)(response)


def _of_network(measure: Measure) -> TypeGuard[str]:
    """Whether the measure takes no step."""
    return isinstance(measure, str) and measure in OF_PROBLEM


def _labelled(measure: str) -> bool:
    """Whether the measure reads the targets' labels."""
    return measure.startswith("stiffness")


def _check_unlabelled(targets: Any, inputs: Any) -> None:
    if isinstance(inputs, Tensor) and isinstance(targets, (tuple, list)) and len(targets) == 2:
        raise ValueError("targets: a pair was given, but only stiffness reads labels there; pass the inputs alone")


def _check_shape(name: str, S: Any, shape: tuple[int, int]) -> None:
    found = tuple(S.shape) if isinstance(S, Tensor) else type(S).__name__
    if found != shape:
        raise ValueError(
            f"measures: {name} gives {found}, not a tensor of shape {shape}, one number for each source and target"
        )


def _named(measures: Iterable[Measure | FeatureMeasure]) -> tuple[dict[str, Measure], dict[str, FeatureMeasure]]:
    """Measures by name: those that give similarities, and those of features."""
    if isinstance(measures, str) or callable(measures):
        measures = (measures,)
    named: dict[str, Measure] = {}
    of_features: dict[str, FeatureMeasure] = {}
    for measure in measures:
        name = _name(measure)
        if name in named or name in of_features:
            raise ValueError(f"measures: two are called {name!r}; FeatureMeasure(..., name=...) tells them apart")
        if isinstance(measure, FeatureMeasure):
            of_features[name] = measure
        else:
            named[name] = measure
    if not named and not of_features:
        raise ValueError('measures: name at least one, for example measures=("relative", "kl")')
    return named, of_features


def _name(measure: Measure | FeatureMeasure) -> str:
    if isinstance(measure, FeatureMeasure):
        return measure.name
    if not isinstance(measure, str):
        if not callable(measure):
            raise TypeError(f"measures: a name, a function of a Response or a FeatureMeasure, not {measure!r}")
        return str(getattr(measure, "__name__", type(measure).__name__))
    if measure in OF_FEATURES or measure in ALONG:
        raise ValueError(
            f"measures: {measure!r} is a measure of features; say of which: "
            f"le.emergence.FeatureMeasure({measure!r}, le.emergence.stream_features(model, loader, layer=...))"
        )
    check_name(measure)
    return measure
