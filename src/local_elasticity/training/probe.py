"""One probe: every measure of the current network, from one response, and the measures of its features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.emergence.feature_measures import ALONG, FeatureMeasure, Gathered
from local_elasticity.emergence.features import FeatureStream
from local_elasticity.emergence.named import OF_FEATURES
from local_elasticity.engine.choose import short
from local_elasticity.engine.fast_paths.replay import Launched, Replay, recorded
from local_elasticity.engine.guard import interruption, isolated
from local_elasticity.engine.inputs import cast_floats, count, take
from local_elasticity.engine.job import Engine
from local_elasticity.engine.looped import Looped
from local_elasticity.engine.loss import IGNORED
from local_elasticity.engine.memory import is_out_of_memory
from local_elasticity.engine.problem import BoundProblem
from local_elasticity.engine.response import Response, repeated
from local_elasticity.engine.structured import Structured
from local_elasticity.measurement import Measurement, causes_of
from local_elasticity.measures.measure import Measure, Scores
from local_elasticity.measures.registry import AnyMeasure, as_measures, is_ours
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

AT_ONCE = 256
"""Examples of one forward pass."""

FEW = 2
"""Examples used to check whether something can be measured."""


@dataclass(frozen=True)
class Found:
    """Similarities [n, m] by the measure's name, the engine that computed the response, the errors of measures that
    failed, and denominators [2, n]: the own change of each source and its noise floor."""

    similarity: dict[str, np.ndarray]
    engine: str
    errors: Mapping[str, Exception] = field(default_factory=dict)
    nonlinearity: float = float("nan")
    causes: Mapping[str, str] = field(default_factory=dict)
    denominators: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Prober:
    """What is asked at every probe: a measurement, and measures of features, which give a number each.

    `standing` is the model as it was read, and `replay` is a probe that a GPU has recorded.
    """

    measurement: Measurement
    of_features: Mapping[str, FeatureMeasure]
    standing: Standing
    replay: Replay | None = None

    @classmethod
    def of(cls, measurement: Measurement, of_features: Mapping[str, FeatureMeasure]) -> Prober:
        """Try everything before training begins; errors name the argument and say what to do. Examples are copied: the
        user may write into the originals."""
        measurement = _with_examples(Tensor.clone, measurement)
        with measurement.problem.bound() as bound:
            measurement.job(bound)
        prober = cls(measurement, of_features, Standing.of(measurement.problem))
        for error in prober.numbers()[1].values():
            raise error
        prober.rehearse()
        try:
            prober = replace(prober, replay=prober.recorded())
            return prober if prober.replay else prober._with(engine=prober.chosen())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return prober

    @property
    def n(self) -> int:
        return self.measurement.n

    @property
    def m(self) -> int:
        return self.measurement.m

    @property
    def device(self) -> torch.device:
        return self.measurement.sources[1].device

    def _with(self, **changes: Any) -> Prober:
        return replace(self, measurement=replace(self.measurement, **changes))

    def sampled(self, rows: np.ndarray) -> Prober:
        """The same for some of the sources."""
        chosen = torch.as_tensor(rows, device=self.device)
        return replace(self, measurement=self.measurement.sampled(chosen), replay=None)

    def at_present(self) -> Prober:
        """The same for the model as it is now: other parameters may step, on another device. A recording of what was
        there before is dropped."""
        problem = at_present(self.measurement.problem)
        standing = Standing.of(problem)
        if standing == self.standing:
            return self
        same = problem.stepped == self.measurement.problem.stepped and standing.device == self.standing.device
        moved = _with_examples(lambda leaf: leaf.to(standing.device), replace(self.measurement, problem=problem))
        return replace(self, measurement=moved, standing=standing, replay=self.replay if same else None)

    def __call__(self) -> Found:
        """Take every measure. Where some fail, the others are found; where all fail, the first error is raised."""
        measurement = self.measurement
        if not measurement.measures:
            return Found({}, "features")
        response = self._respond() if measurement.takes_steps else None
        scores: dict[str, Scores] = {}
        errors: dict[str, Exception] = {}
        for measure in measurement.measures:
            try:
                scores[measure.name] = self._scores(measure, response)
            except Exception as error:
                if for_want_of_memory(error) or interruption(error):
                    raise
                errors[measure.name] = error
        if not scores:
            raise next(iter(errors.values()))
        found = {name: _as_array(one.values) for name, one in scores.items()}
        if response is None:
            return Found(found, measurement.measures[0].needs, errors)
        causes = causes_of(response, measurement.measures, found)
        denominators = {name: _denominators(one) for name, one in scores.items()}
        return Found(found, response.engine, errors, response.nonlinearity, causes, denominators)

    def launched(self) -> Launched | None:
        """The same on a GPU while the caller continues; None if that was not recorded, or is no longer right."""
        return self.replay.launched() if self.replay else None

    def found(self) -> Found:
        """The result of a launched probe. Rows that rounding hides are computed again, at the weights of that step."""
        assert self.replay is not None
        similarity, clear = self.replay.found()
        if clear or not self.measurement.refine:
            found, denominators = ({name: _as_array(one[k]) for name, one in similarity.items()} for k in (0, 1))
            return Found(found, "structured", denominators=denominators)
        return replace(self, measurement=self.measurement.at(self.replay.weights), replay=None)()

    def state_of_sources(self) -> Tensor:
        """The mean loss of the sources and the share that is predicted as labelled, from one forward pass. The share is
        NaN where outputs are plain numbers or labels are no classes, and both are where the pass fails: a probe is not
        lost because of them. The caller need not wait for a GPU."""
        try:
            with self.measurement.problem.bound() as bound, torch.no_grad():
                return self._state_of_sources(bound)
        except Exception as error:
            if interruption(error):
                raise
            return torch.full((2,), torch.nan, dtype=torch.float64)

    def _state_of_sources(self, bound: BoundProblem) -> Tensor:
        inputs, labels = cast_floats(self.measurement.sources, bound.dtype)
        chunks = [slice(at, at + AT_ONCE) for at in range(0, count(inputs), AT_ONCE)]
        outputs = torch.cat([bound.outputs(bound.params, take(inputs, rows)) for rows in chunks])
        right = _predicted_right(outputs, labels, bound.problem.kind)
        return torch.stack([bound.loss(outputs, labels).double(), right])

    def numbers(self) -> tuple[dict[str, float], dict[str, Exception]]:
        """The measures of features by name, NaN where one failed, and the errors. Each stream is read once, by every
        process."""
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
                    if is_out_of_memory(error) or interruption(error):
                        raise
                    errors[name] = error
            return values, errors

        with isolated(self.device), torch.no_grad():
            return together(measured)

    def rehearse(self) -> None:
        """Take every measure once, for two sources and two targets, so that errors appear before training."""
        whole = self.measurement
        few = whole.part(slice(0, min(FEW, whole.n)), slice(0, min(FEW, whole.m)))
        few = replace(few, engine=Looped(), refine=False) if few.refine else few
        try:
            response = repeated(few.respond(), whole.n, whole.m) if whole.takes_steps else None
            for measure in whole.measures:
                (whole if measure.takes_steps else few).score(measure, response)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise

    def recorded(self) -> Replay | None:
        """A recording, on a GPU, for one process and measures of the package: those of a user may do anything. `auto`
        keeps it where it is fast."""
        asked = self.measurement
        known = bool(asked.measures) and all(is_ours(one) and one.takes_steps for one in asked.measures)
        if not (known and (asked.engine is None or isinstance(asked.engine, Structured)) and alone()):
            return None

        def similarities(response: Response) -> dict[str, tuple[Tensor, Tensor]]:
            scores = {one.name: asked.score(one, response) for one in asked.measures}
            return {name: (one.values, _own_and_floor(one)) for name, one in scores.items()}

        replay = recorded(asked.problem, asked.sources, asked.pair_of_targets, asked.update, asked.memory, similarities)
        return replay if replay and (isinstance(asked.engine, Structured) or replay.beats_the_loop()) else None

    def chosen(self) -> Engine | None:
        """The engine; where none was asked for, one for probes that are too short to time others."""
        asked = self.measurement
        if asked.engine is not None or not asked.takes_steps:
            return asked.engine
        with asked.problem.bound() as bound:
            return short(asked.job(bound))

    def _respond(self) -> Response:
        mine = together(lambda: self._share().respond())
        return gathered_response(mine, self.n, square=self.measurement.square)

    def _share(self) -> Measurement:
        """The sources of this process, at all targets."""
        return self.measurement.part(share(self.n), slice(0, self.m)) if shared(self.n) else self.measurement

    def _scores(self, measure: Measure, response: Response | None) -> Scores:
        if measure.takes_steps:
            return together(lambda: self.measurement.score(measure, response))
        mine = together(lambda: self._share().score(measure, None).values)
        (whole,) = gathered_rows([mine], self.n)
        return Scores(whole)


def _with_examples(change: Callable[[Tensor], Tensor], measurement: Measurement) -> Measurement:
    """A measurement with every tensor of its sources and targets changed."""
    examples = measurement.sources, measurement.targets, measurement.target_labels
    sources, targets, labels = tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, examples)
    return replace(measurement, sources=sources, targets=targets, target_labels=labels)


def _predicted_right(outputs: Tensor, labels: Tensor, kind: str) -> Tensor:
    """The share of the labels that are predicted; places labelled −100 are left out."""
    if kind in ("binary_logits", "binary_probabilities") and labels.numel() == outputs.numel():
        positive = outputs > (0 if kind == "binary_logits" else 0.5)
        return (positive == (labels.reshape(outputs.shape) > 0.5)).double().mean()
    classes = kind in ("logits", "probabilities") and outputs.ndim > 1 and not labels.is_floating_point()
    if not classes or labels.shape != (len(outputs), *outputs.shape[2:]):
        return torch.full((), torch.nan, dtype=torch.float64, device=outputs.device)
    known = labels != IGNORED
    return ((outputs.argmax(1) == labels) & known).sum().double() / known.sum()


def _own_and_floor(scores: Scores) -> Tensor:
    """[2, n], NaN where a measure does not give them."""
    unknown = torch.full_like(scores.values[:, 0], torch.nan)
    return torch.stack([unknown if one is None else one.to(unknown) for one in (scores.own, scores.floor)])


def _denominators(scores: Scores) -> np.ndarray:
    return _as_array(_own_and_floor(scores))


def _as_array(S: Tensor) -> np.ndarray:
    return S.detach().double().cpu().numpy()


def sorted_measures(
    measures: AnyMeasure | FeatureMeasure | Iterable[AnyMeasure | FeatureMeasure],
) -> tuple[tuple[Measure, ...], dict[str, FeatureMeasure]]:
    """Those that give similarities, and those of features by name."""
    several = list(measures) if isinstance(measures, Iterable) and not isinstance(measures, str) else [measures]
    of_features = [one for one in several if isinstance(one, FeatureMeasure)]
    for one in several:
        if isinstance(one, str) and (one in OF_FEATURES or one in ALONG):
            raise ValueError(
                f"measure: {one!r} is a measure of features; say of which: "
                f"le.emergence.FeatureMeasure({one!r}, le.emergence.stream_features(model, loader, layer=...))"
            )
    rest = [one for one in several if not isinstance(one, FeatureMeasure)]
    of_pairs = as_measures(rest) if rest or not of_features else ()
    names = [*(one.name for one in of_pairs), *(one.name for one in of_features)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"measure: two are called {name!r}; FeatureMeasure(..., name=...) tells them apart")
    return of_pairs, {one.name: one for one in of_features}
