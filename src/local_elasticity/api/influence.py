"""influence_index: which of many training examples help or harm a target, from gradients that are sketched once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from local_elasticity.api.accessor import helpers_and_harmers
from local_elasticity.api.sketched import ARRAY, SketchWork, begin_index, checkpoint_path
from local_elasticity.checks import check_count, check_positive
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import count, spread, take
from local_elasticity.engine.loss import LossFunction
from local_elasticity.engine.problem import Inputs, Problem, as_problem, at_weights
from local_elasticity.engine.progress import ProgressOption, seconds_in_words
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD
from local_elasticity.extras import extra
from local_elasticity.measurement import Measurement, Sources
from local_elasticity.measures.registry import as_measures
from local_elasticity.scale.sketch import Sketch, loss_gradient_sketch
from local_elasticity.scale.stream import ExampleStream
from local_elasticity.statistics.correlation import spearman
from local_elasticity.store import provenance
from local_elasticity.store.blocks import BlockStore
from local_elasticity.store.fingerprint import fingerprint
from local_elasticity.store.resume import fill
from local_elasticity.training.checkpoints import weights_in
from local_elasticity.words import step_sizes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Weights = Mapping[str, Tensor] | str | Path
"""Parameters and buffers by name, or a file of them."""

DIMENSION = 4096
"""Numbers for each example and checkpoint; 50,000 examples take 0.8 GB."""

CHECKED = 64
"""Sources at which scores are compared with exact responses."""

CHECKED_TARGETS = 8
"""Targets at which they are."""


@dataclass(frozen=True)
class _Checkpoint:
    """A moment of training: its weights, None for those of the model, and the step size that weighs it."""

    weights: Weights | None
    step_size: float
    key: str


@dataclass(frozen=True, eq=False)
class Influences:
    """The training examples that help and harm targets most; `index.query` makes one.

    Attributes:
        rank_correlation: Spearman's, of scores and exact responses (measure `"loss"`, a step of the size given on one
            example), over sampled training examples, the mean over the checked targets; NaN without a check.
        limit_rank_correlation: the same against the limit of small steps, which the sketch alone separates from it.
        sign_agreement: the share of listed pairs, of the checked targets, whose exact response has the sign that is
            listed.
        checked: how many training examples and targets were compared.
        n, m: how many training examples and targets there are.
        without: training examples without a score, because their gradient is not finite.
        checkpoints: how many were summed.
        seconds: what the query took, its check included.
    """

    rank_correlation: float
    limit_rank_correlation: float
    sign_agreement: float
    checked: tuple[int, int]
    n: int
    m: int
    without: int
    checkpoints: int
    seconds: float
    _frame: pd.DataFrame = field(repr=False)

    def frame(self) -> pd.DataFrame:
        """The helpers of each target, the strongest first, then its harmers.

        Returns:
            A frame with `target`, `source` (positions), `source_class` where labels are one whole number each, `value`
            (the change of the target's loss, below 0 where it helps) and `effect`.
        """
        return self._frame.copy()

    def plot(self, columns: int = 1) -> Figure:
        """Helpers and harmers of each of the first 12 targets as bars, with their positions and classes.

        Args:
            columns: 1 or 2, the width in columns of print; with two, targets are side by side.

        Returns:
            A matplotlib figure.
        """
        with extra("report"):
            from local_elasticity.report.bars import influence_figure

        return influence_figure(self._frame, columns)

    def __repr__(self) -> str:
        return "\n".join([*self.sentences(), self._frame.to_string(index=False)])

    def _repr_html_(self) -> str:
        table: str = self._frame.to_html(index=False)
        return "".join(f"{escape(line)}<br>" for line in self.sentences()) + table

    def sentences(self) -> list[str]:
        """What was asked, and how far to trust the answer.

        Returns:
            One sentence each.
        """
        moments = "" if self.checkpoints == 1 else f" at {self.checkpoints} checkpoints"
        told = [f"Influence of {self.n} examples on {self.m}{moments}: {seconds_in_words(self.seconds)}"]
        if self.checked[0]:
            told.append(
                f"checked on {self.checked[0]} × {self.checked[1]} pairs: rank correlation with exact responses "
                f"{self.rank_correlation:.2f}, with their limit for small steps {self.limit_rank_correlation:.2f}; "
                f"{self.sign_agreement:.0%} of those listed have the sign of their exact response"
            )
        if self.without:
            told.append(f"{self.without} examples have no finite gradient and no score")
        return told


@dataclass(frozen=True, eq=False)
class InfluenceIndex:
    """Sketched loss gradients of many training examples, on disk; build one with `le.influence_index`.

    Attributes:
        problem: the network and its loss.
        path: the store.
        n: how many training examples there are.
        dimension: numbers for each example and checkpoint.
        seconds: what the call that gave this index took.
    """

    problem: Problem
    path: Path
    n: int
    dimension: int
    seconds: float
    _stream: ExampleStream
    _checkpoints: tuple[_Checkpoint, ...]
    _sketch: Sketch
    _memory: int | None = None

    def __repr__(self) -> str:
        moments = "" if len(self._checkpoints) == 1 else f" at {len(self._checkpoints)} checkpoints"
        sizes = sorted({checkpoint.step_size for checkpoint in self._checkpoints})
        return (
            f"Influence index of {self.n} examples{moments}, {step_sizes(sizes)}, {self.dimension} numbers each, "
            f"in {self.path}: {seconds_in_words(self.seconds)}"
        )

    @untouched
    def scores(self, targets: Sources) -> np.ndarray:
        """The influence of every training example on every target.

        Args:
            targets: (inputs, labels), a Dataset or a DataLoader.

        Returns:
            Σ_c −η_c⟨φ_c(x), φ_c(x′)⟩ over checkpoints c, [n, m]: the change of the target's loss under one small step
            on the example, below 0 where it helps; NaN where a gradient is not finite.

        Raises:
            ValueError, TypeError: what is wrong with the targets; or that the weights are not those of the index.
        """
        return self._scores(self._read(ExampleStream.of(targets, "targets")))

    @untouched
    def query(self, targets: Sources, top: int = 10, *, check: bool = True) -> Influences:
        """The training examples that help and harm each target most.

        Args:
            targets: (inputs, labels), a Dataset or a DataLoader.
            top: how many of either kind for each target.
            check: whether to compare scores with exact responses: 64 training examples and those listed, at up to 8
                targets. It costs so many steps at every checkpoint.

        Returns:
            `.frame()` with helpers and harmers, and how far to trust them; printed, it shows both.

        Raises:
            ValueError, TypeError: what is wrong with an argument; or that the weights are not those of the index.
        """
        check_count("top", top)
        began = time.perf_counter()
        asked = self._read(ExampleStream.of(targets, "targets"))
        scores = self._scores(asked)
        frame = self._listed(scores, top)
        found = self._check(scores, frame, asked) if check else (math.nan, math.nan, math.nan, (0, 0))
        missing = int(np.isnan(scores).all(1).sum())
        seconds = time.perf_counter() - began
        n, m = scores.shape
        return Influences(*found, n, m, missing, len(self._checkpoints), seconds, frame)

    def _read(self, stream: ExampleStream) -> tuple[Inputs, Tensor]:
        return stream.read(range(stream.n), self.problem.device, self.problem.precision)

    def _at(self, checkpoint: _Checkpoint) -> Problem:
        """The problem with the weights whose gradients are in the store; a ValueError if they have changed since."""
        problem = _at(self.problem, checkpoint.weights)
        if _key(problem) == checkpoint.key:
            return problem
        which = "the model has other weights" if checkpoint.weights is None else "a checkpoint has other weights"
        raise ValueError(
            f"problem: {which} than when the index was built; build it with a copy of the weights, "
            "checkpoints=[(copy.deepcopy(model.state_dict()), step_size)], and the model may train on"
        )

    def _scores(self, targets: tuple[Inputs, Tensor]) -> np.ndarray:
        total = np.zeros((self.n, count(targets[0])), dtype=np.float32)
        for checkpoint in self._checkpoints:
            there = loss_gradient_sketch(
                self._at(checkpoint), *targets, self._sketch, memory=self._memory, name="targets"
            )
            there = -checkpoint.step_size * there.T
            store = BlockStore.open(checkpoint_path(self.path, checkpoint.key), sketches=True)
            for at in store.grid.blocks():
                values = torch.from_numpy(store.read(at)[0][ARRAY]).to(there)
                total[store.grid.region(at)[0]] += (values @ there).cpu().numpy()
        return total

    def _listed(self, scores: np.ndarray, top: int) -> pd.DataFrame:
        """Helpers and harmers of every target, with their classes."""
        import pandas as pd

        tables = []
        for j, column in enumerate(scores.T.astype(float)):
            known = np.flatnonzero(np.isfinite(column))
            few = min(top, len(known))
            order = known[np.argpartition(column[known], [few - 1, -few])] if few else known
            ends = np.unique(np.concatenate([order[:few], order[len(order) - few :]]))
            table = pd.DataFrame({"target": j, "source": ends, "value": column[ends]})
            tables.append(helpers_and_harmers(table, top))
        frame = pd.concat(tables, ignore_index=True)
        if len(frame) and self.problem.classifies:
            rows = np.unique(frame["source"])
            labels = self._stream.read(rows.tolist(), self.problem.device, self.problem.precision)[1].cpu().numpy()
            if labels.ndim == 1 and labels.dtype.kind in "iu":
                frame.insert(2, "source_class", labels[np.searchsorted(rows, frame["source"])])
        return frame

    def _check(
        self, scores: np.ndarray, frame: pd.DataFrame, targets: tuple[Inputs, Tensor]
    ) -> tuple[float, float, float, tuple[int, int]]:
        """Rank correlations with exact responses and with their limit, and how many listed signs agree."""
        columns = spread(scores.shape[1], CHECKED_TARGETS)
        sampled = spread(self.n, CHECKED).numpy()
        listed = frame[frame["target"].isin(columns.tolist())]
        rows = np.unique(np.concatenate([sampled, listed["source"].to_numpy(dtype=int)]))
        few = tuple(take(part, columns.to(self.problem.device)) for part in targets)
        exact, limit = (self._exact(rows, few, approximate=approximate) for approximate in (False, True))
        here = np.searchsorted(rows, sampled)
        told = scores[np.ix_(sampled, columns.numpy())]
        correlations = [_mean(list(map(spearman, told.T, found[here].T))) for found in (exact, limit)]
        places = np.searchsorted(rows, listed["source"]), np.searchsorted(columns.numpy(), listed["target"])
        real = exact[places]
        known = np.isfinite(real)
        agree = np.sign(real[known]) == np.sign(listed["value"].to_numpy()[known])
        share = float(agree.mean()) if known.any() else math.nan
        return correlations[0], correlations[1], share, (len(sampled), len(columns))

    def _exact(self, rows: np.ndarray, targets: Any, *, approximate: bool) -> np.ndarray:
        """Responses to a step on single examples, summed over checkpoints: [rows, targets]."""
        place = self.problem.device, self.problem.precision
        sources = self._stream.read(rows.tolist(), *place)
        total = np.zeros((len(rows), count(targets[0])))
        for checkpoint in self._checkpoints:
            measurement = Measurement.read(
                self._at(checkpoint),
                sources,
                targets,
                measures=as_measures("loss"),
                update=SGD(checkpoint.step_size),
                approximate=approximate,
                memory=self._memory,
            )
            total += measurement.run().scores["loss"].values.double().cpu().numpy()
        return total


@untouched
def influence_index(
    problem: Problem | nn.Module,
    data: Sources,
    *,
    store: str | Path,
    loss: str | LossFunction | None = None,
    checkpoints: Sequence[tuple[Weights, float]] | None = None,
    step_size: float = DEFAULT_UPDATE.step_size,
    dimension: int = DIMENSION,
    seed: int = 0,
    memory: int | None = None,
    progress: ProgressOption = None,
) -> InfluenceIndex:
    """An index of training examples: their loss gradients, sketched once, answer which of them help or harm any target.

    The score of example x for target x′ is TracIn's sum Σ_c −η_c⟨∇ℓ(x), ∇ℓ(x′)⟩ over checkpoints c, each inner product
    by sketches (`scale/sketch.py`), with a standard error of about ‖∇ℓ(x)‖‖∇ℓ(x′)‖/√dimension. Examples are read a few
    thousand at a time and need not fit into memory. Blocks of sketches are written as they are done. The same call
    resumes where it was stopped, and only opens an index that is finished. A call with another checkpoint adds that
    one. Inside `with le.workers(...)` the blocks are computed by Ray's workers.

    Args:
        problem, loss: a `le.Problem`, or a model with `loss=`.
        data: (inputs, labels), a Dataset with `__getitem__` and `__len__`, or a DataLoader of one, whose `collate_fn`
            and workers are used. Positions are those of the dataset. Random augmentation must be off.
        store: the folder of the index, in zarr format.
        checkpoints: (weights, step size) of each moment of training: tensors by name or a file that holds them, and
            the learning rate there. By default the model as it is, with `step_size`.
        step_size: η for the model as it is.
        dimension: numbers kept for each example and checkpoint, 4 bytes each in float32.
        seed: of the random signs and buckets.
        memory: bytes to work in; by default half of what is free.
        progress: as for `respond`, in blocks of examples.

    Returns:
        An `InfluenceIndex`: `.query(targets=(x, y), top=10)`, `.scores(targets)`.

    Raises:
        ValueError, TypeError: what is wrong with an argument; or that the store is an index of another model, other
            examples or another sketch.

    >>> import tempfile, torch, local_elasticity as le
    >>> _ = torch.manual_seed(0)
    >>> net, x, y = torch.nn.Linear(5, 3), torch.randn(40, 5), torch.arange(40) % 3
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = le.influence_index(net, (x, y), loss="cross_entropy", store=f"{folder}/index.zarr")
    ...     found = index.query(targets=(x[:1], y[:1]), top=1)
    >>> int(found.frame()["source"][0]), bool(found.rank_correlation > 0.9)
    (0, True)
    """
    began = time.perf_counter()
    problem = as_problem(problem, loss)
    check_count("dimension", dimension, least=2)
    check_count("seed", seed, least=0)
    if not isinstance(store, (str, Path)):
        raise TypeError(f"store: expected the path of a folder, got {store!r}")
    stream = ExampleStream.of(data)
    problem.check()
    moments = _moments(problem, checkpoints, step_size)
    sketch = Sketch(dimension, seed)
    _refuse_random(stream, problem)
    path = Path(store)
    about = {
        **_of_network(problem),
        "examples": _of_examples(stream, problem),
        "dimension": str(dimension),
        "seed": str(seed),
    }
    works = [SketchWork(_at(problem, moment.weights).promoted(), stream, sketch, memory) for moment in moments]
    if not path.exists():
        works[0].tried()
    begin_index(path, about)
    for moment, work in zip(moments, works, strict=True):
        fill(
            checkpoint_path(path, moment.key),
            work,
            {**about, "weights": moment.key},
            xr.Dataset(),
            side=None,
            versions=provenance.versions(),
            progress=progress,
        )
    seconds = time.perf_counter() - began
    return InfluenceIndex(problem, path, stream.n, dimension, seconds, stream, moments, sketch, memory)


def _mean(values: list[float]) -> float:
    """Over those that are finite; NaN where there are none."""
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _moments(problem: Problem, checkpoints: Any, step_size: Any) -> tuple[_Checkpoint, ...]:
    if checkpoints is None:
        check_positive("step_size", step_size)
        return (_Checkpoint(None, float(step_size), _key(problem)),)
    if not isinstance(checkpoints, (list, tuple)) or not checkpoints:
        raise ValueError("checkpoints: expected a list of (weights, step size), with at least one")
    found = []
    for i, pair in enumerate(checkpoints):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], (Mapping, str, Path)):
            raise TypeError(
                f"checkpoints: expected (weights by name or a file, step size), got {type(pair).__name__} at place {i}"
            )
        check_positive(f"checkpoints, step size at place {i}", pair[1])
        found.append(_Checkpoint(pair[0], float(pair[1]), _key(_at(problem, pair[0]))))
    return tuple(found)


def _at(problem: Problem, weights: Weights | None) -> Problem:
    """The problem with other weights."""
    if weights is None:
        return problem
    if not isinstance(weights, Mapping):
        if not isinstance(problem.model, nn.Module):
            raise TypeError("checkpoints: files of weights need an nn.Module; pass tensors by name")
        weights = weights_in(Path(weights), problem.model, "checkpoints")
    return at_weights(problem, weights, problem.named_parameters(), "checkpoints")


def _key(problem: Problem) -> str:
    """The fingerprint of the weights."""
    return fingerprint({**problem.named_tensors(), **(problem.weights or {})})


def _of_network(problem: Problem) -> provenance.Fingerprints:
    found = provenance.of_problem(problem)
    return {name: value for name, value in found.items() if name not in ("weights", "device")}


def _of_examples(stream: ExampleStream, problem: Problem) -> str:
    """Of tensors all of their bytes; of a dataset how many there are, and some of them as they are read."""
    if stream.pair is not None:
        return fingerprint(stream.pair)
    rows = spread(stream.n, CHECKED).tolist()
    return f"{stream.n} {fingerprint(stream.read(rows, torch.device('cpu'), problem.precision))}"


def _refuse_random(stream: ExampleStream, problem: Problem) -> None:
    """Sketches of examples that change whenever they are read belong to none of them."""
    if stream.pair is not None:
        return
    rows = spread(stream.n, 2).tolist()
    once, twice = (stream.read(rows, torch.device("cpu"), problem.precision) for _ in range(2))
    if fingerprint(once) != fingerprint(twice):
        raise ValueError(
            "data: an example is another each time that it is read; turn off random augmentation in the Dataset"
        )
