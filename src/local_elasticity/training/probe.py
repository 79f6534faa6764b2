"""One probe: every measure of the network as it stands, from one response; and those of its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from local_elasticity.emergence.along import ALONG, FeatureMeasure, Gathered
from local_elasticity.emergence.features import FeatureStream
from local_elasticity.emergence.named import OF_FEATURES
from local_elasticity.engine.guard import held_still
from local_elasticity.engine.inputs import given_twice, read_sources, read_targets
from local_elasticity.engine.job import Engine, Job
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.respond import resolve_engine, respond
from local_elasticity.engine.response import Response
from local_elasticity.engine.update import Update
from local_elasticity.measures.named import OF_PROBLEM, OF_RESPONSE, OfResponse, check_name
from local_elasticity.training.distributed import gathered_response, gathered_rows, share, shared, together

Measure = str | OfResponse


@dataclass(frozen=True)
class Prober:
    """What is asked at every probe, read and checked once.

    `target_labels` are the loss's, which stiffness alone needs; `targets` is None where they are the sources.
    `measures` give a similarity [n, m] each, `of_features` a number.
    """

    problem: Problem
    sources: tuple[Any, Tensor]
    targets: Any
    target_labels: Tensor | None
    measures: Mapping[str, Measure]
    of_features: Mapping[str, FeatureMeasure]
    update: Update
    engine: str | Engine
    approximate: bool
    memory: int | None

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
        resolve_engine(engine, approximate)
        labels, labelled = None, any(name.startswith("stiffness") for name in named)
        if given_twice(sources, targets, labelled=labelled):
            targets = None
        with problem.moment() as moment:
            sources = read_sources(sources, moment.device, moment.dtype)
            if targets is not None and labelled:
                targets, labels = read_sources(targets, moment.device, moment.dtype)
            elif targets is not None:
                targets = read_targets(targets, moment.device, moment.dtype)
            Job.read(moment, sources, targets, update)
        prober = cls(problem, sources, targets, labels, named, of_features, update, engine, approximate, memory)
        prober.numbers()
        return prober

    @property
    def n(self) -> int:
        return len(self.sources[1])

    def __call__(self) -> tuple[dict[str, np.ndarray], str]:
        """Similarities [n, m] by the measure's name, and the engine that computed the response."""
        if not self.measures:
            return {}, "features"
        response = self._respond() if any(name not in OF_PROBLEM for name in self.measures) else None
        found = {name: self._similarity(measure, response) for name, measure in self.measures.items()}
        arrays = {name: S.detach().double().cpu().numpy() for name, S in found.items()}
        return arrays, response.engine if response else "gradients"

    def numbers(self) -> dict[str, float]:
        """The measures of features by name, each stream gone through once; every process measures them whole."""
        known: dict[int, Gathered] = {}

        def gathered(stream: FeatureStream) -> Gathered:
            if id(stream) not in known:
                known[id(stream)] = stream.gathered()
            return known[id(stream)]

        device = self.sources[1].device
        with held_still(device, None), torch.no_grad():
            return together(lambda: {name: measure(gathered) for name, measure in self.of_features.items()})

    def _respond(self) -> Response:
        mine = together(
            lambda: respond(
                self.problem,
                share(self.sources),
                self.sources[0] if self._others() else self.targets,
                update=self.update,
                engine=self.engine,
                approximate=self.approximate,
                memory=self.memory,
                progress=False,
            )
        )
        return gathered_response(mine, self.n, square=self.targets is None)

    def _similarity(self, measure: Measure, response: Response | None) -> Tensor:
        if not isinstance(measure, str):
            assert response is not None
            return measure(response)
        if measure in OF_RESPONSE:
            assert response is not None
            return OF_RESPONSE[measure](response)
        labelled = measure.startswith("stiffness")
        targets = (self.targets, self.target_labels) if labelled and self.targets is not None else self.targets
        if self._others():
            targets = self.sources if labelled else self.sources[0]
        options = {"memory": self.memory, "progress": False}
        mine = together(lambda: OF_PROBLEM[measure](self.problem, share(self.sources), targets, **options))
        return gathered_rows(mine, self.n)

    def _others(self) -> bool:
        """Whether this process's sources are a part of the targets, which are all sources."""
        return self.targets is None and shared(self.n)


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
