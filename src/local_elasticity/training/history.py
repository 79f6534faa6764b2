"""The history of a run: what every probe found, in memory, and on disk where a store was named."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from local_elasticity.engine.causes import NO_STEP
from local_elasticity.extras import extra
from local_elasticity.statistics.bootstrap import Reduction
from local_elasticity.statistics.class_pairs import ReadPairs, read_pairs, sampled_rows, summarized, tell_of_unresolved
from local_elasticity.statistics.locality import columns, locality, pooled, within_and_between
from local_elasticity.store.provenance import Fingerprints, different, in_words

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

    from local_elasticity.store.history import HistoryStore
    from local_elasticity.training.on_disk import OnDisk

logger = logging.getLogger("local_elasticity")

ONE_CLASS = "all"
"""The class of every example where no classes are known, and of what has no classes."""


@dataclass(frozen=True)
class Probe:
    """What was found at one step: a similarity [n, m] for every measure, the seconds it took, and the engine; and a
    number for every measure of features. `facts` has the `step_size` of the moment, which a scheduler may change
    (the largest, if parameter groups differ; a note has their range), the `nonlinearity` of the response, the mean loss
    of the sources (`source_loss`), the share of them that is predicted as labelled (`source_accuracy`), and how many
    were measured (`sources_measured`). `denominators` has, by measure, the own change of each source and its noise
    floor, [2, n]."""

    step: int
    similarity: Mapping[str, np.ndarray]
    seconds: float
    engine: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    denominators: Mapping[str, np.ndarray] = field(default_factory=dict)


class History:
    """Probes in the order of their steps, and what can be made of them.

    If the store cannot be written, the history continues in memory and warns once. `notes` say, by step, what changed
    around the run: which parameters step, on which device, that probing stopped.
    """

    def __init__(
        self,
        measures: Sequence[str],
        source_classes: Sequence[Any],
        target_classes: Sequence[Any],
        *,
        numbers: Sequence[str] = (),
        square: bool = False,
        store: str | Path | None = None,
        about: Mapping[str, Any] | None = None,
        provenance: Fingerprints | None = None,
    ) -> None:
        self.measures, self.numbers = tuple(measures), tuple(numbers)
        self.source_classes, self.target_classes = list(source_classes), list(target_classes)
        self.about = {**(about or {}), "targets_are_sources": square}
        self.provenance = provenance or {}
        self.notes: dict[int, str] = {}
        self._probes: list[Probe] = []
        self._frames: dict[tuple[int, str], pd.DataFrame] = {}
        self._told: set[str] = set()
        self._unlocated: set[str] = set()
        self._disk: OnDisk | None = None
        if store is not None:
            from local_elasticity.store.history import HistoryStore

            classes = self.source_classes, self.target_classes
            opened = HistoryStore(
                store, self.measures, *classes, self.about, numbers=self.numbers, provenance=self.provenance
            )
            self._read(opened)
            self._tell_of_changes(opened)

    @classmethod
    def open(cls, path: str | Path) -> History:
        """The history that a monitor with `store=path` wrote, also of a run that still trains."""
        from local_elasticity.store.history import HistoryStore

        store = HistoryStore.open(path)
        about = store.about
        classes = about["source_classes"], about["target_classes"]
        history = cls(about["measures"], *classes, numbers=about.get("numbers", ()), about=about)
        history.about, history.provenance = about, about.get("provenance", {})
        history._read(store)
        return history

    def _read(self, store: HistoryStore) -> None:
        from local_elasticity.training.on_disk import OnDisk

        engine = str(store.about.get("engine", ""))
        for one in store.probes():
            similarity = dict(zip(self.measures, one.similarity, strict=True))
            numbers = dict(zip(self.numbers, one.numbers, strict=True))
            denominators = dict(zip(self.measures, one.denominators, strict=False))
            self._probes.append(Probe(one.step, similarity, one.seconds, engine, numbers, one.facts, denominators))
        self.notes = {int(step): str(note) for step, note in store.about.get("notes", {}).items()}
        self._disk = OnDisk(store)

    def _tell_of_changes(self, store: HistoryStore) -> None:
        """Say where the store was begun with another update, loss or policy. The numbers of a live optimizer change
        during a run, and histories of earlier versions are only checked this far."""
        begun = store.about
        for name in ("update", "loss", "policy"):
            if begun.get(name) != self.about.get(name):
                logger.warning("store: it was begun with %s %s, not %s", name, begun.get(name), self.about.get(name))

    def __len__(self) -> int:
        return len(self._probes)

    def __iter__(self) -> Iterator[Probe]:
        return iter(self._probes)

    def __getitem__(self, place: int) -> Probe:
        return self._probes[place]

    def _repr_html_(self) -> str:
        """A small card for notebooks: the last probe, and whether to believe it."""
        from local_elasticity.report.card import history_card

        with extra("report"):
            return history_card(self)._repr_html_()

    @property
    def steps(self) -> list[int]:
        return [probe.step for probe in self._probes]

    @property
    def stored(self) -> bool:
        """Whether all of it is on disk."""
        return self._disk is not None and self._disk.whole

    def append(self, probe: Probe) -> None:
        """Append a probe, to the store first, so that an interrupt leaves memory and store consistent."""
        if self._disk is not None:
            self._disk.append(probe, self.notes)
        self._probes.append(probe)

    def note(self, step: int, note: str) -> None:
        """Write down what changed at this step."""
        self.notes[step] = f"{self.notes[step]}; {note}" if step in self.notes else note
        self.flush()

    def flush(self) -> None:
        """Try to write to the store what it lacks."""
        if self._disk is not None:
            self._disk.flush(self.notes)

    def keep_until(self, step: int) -> None:
        """Drop probes after `step`: they belong to a continuation that was abandoned."""
        self._probes = [probe for probe in self._probes if probe.step <= step]
        self._frames.clear()
        self.notes = {at: note for at, note in self.notes.items() if at <= step}
        if self._disk is not None:
            self._disk.keep(step, len(self._probes))

    @property
    def identity(self) -> dict[str, Any]:
        """What two histories must share to be of one run."""
        return {
            "measures": list(self.measures),
            "numbers": list(self.numbers),
            "source_classes": self.source_classes,
            "target_classes": self.target_classes,
            "provenance": self.provenance,
        }

    def check_identity(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of a monitor that measured something else, and say where they differ."""
        lists = {name: mine for name, mine in self.identity.items() if name != "provenance"}
        for name, mine in lists.items():
            theirs = list(state.get(name, ()))
            if theirs != mine:
                raise ValueError(
                    f"state: it is of a monitor with other {name.replace('_', ' ')} ({_where(theirs, mine)}); "
                    "make this one with the same measures, sources and labels"
                )
        self._check_provenance(state.get("provenance", {}))

    def _check_provenance(self, there: Any) -> None:
        """States of earlier versions do not say what was measured."""
        if not isinstance(there, Mapping):
            raise ValueError(f"state: it is damaged (its provenance is {there!r}); use another checkpoint")
        if there and self.provenance and different(there, self.provenance):
            raise ValueError(
                f"state: it is of a monitor that measures something else: {in_words(there, self.provenance)} differ; "
                "make this one with the same examples, measures, update and loss, or begin a new history"
            )

    def state(self) -> list[dict[str, Any]]:
        """The probes as plain values and tensors, which `torch.load(..., weights_only=True)` reads."""
        return [
            {
                "step": probe.step,
                "seconds": probe.seconds,
                "engine": probe.engine,
                "similarity": {name: torch.from_numpy(S) for name, S in probe.similarity.items()},
                "numbers": dict(probe.numbers),
                "facts": dict(probe.facts),
                "denominators": {name: torch.from_numpy(one) for name, one in probe.denominators.items()},
            }
            for probe in self._probes
        ]

    def load(self, state: Sequence[Mapping[str, Any]], step: int, notes: Mapping[int, str] | None = None) -> None:
        """Continue from a checkpoint at `step`, with what the store holds so far and what the checkpoint adds."""
        self.keep_until(step)
        self.notes |= notes or {}
        last = max(self.steps, default=-1)
        for one in state:
            if last < one["step"] <= step:
                S, denominators = (
                    {measure: tensor.numpy() for measure, tensor in one.get(name, {}).items()}
                    for name in ("similarity", "denominators")
                )
                numbers, facts = one.get("numbers", {}), one.get("facts", {})
                self.append(Probe(one["step"], S, one["seconds"], one["engine"], numbers, facts, denominators))

    def frame(self, *, reduce: Reduction = "median", resamples: int = 200) -> pd.DataFrame:
        """A row for every step, measure and pair of classes; `class_pairs` says what the columns are. A measure of
        features has one row a step, under the class "all"."""
        import pandas as pd

        if not self._probes:
            names = ["step", "measure", "source_class", "target_class", "value", "low", "high", "pairs", "unresolved"]
            return pd.DataFrame({name: [] for name in names})
        pairs = [self._summary(probe, name, reduce, resamples) for probe in self for name in self.measures]
        return pd.concat([*pairs, *self._number_rows()], ignore_index=True)

    def _number_rows(self) -> list[pd.DataFrame]:
        import pandas as pd

        return [
            pd.DataFrame(
                {
                    "step": self.steps,
                    "measure": name,
                    "source_class": ONE_CLASS,
                    "target_class": ONE_CLASS,
                    "value": (values := np.array([probe.numbers[name] for probe in self])),
                    "low": values,
                    "high": values,
                    "pairs": 0,
                    "unresolved": np.isnan(values).astype(float),
                }
            )
            for name in self.numbers
        ]

    def _summary(self, probe: Probe, measure: str, reduce: Reduction, resamples: int) -> pd.DataFrame:
        key = (probe.step, f"{measure} {reduce} {resamples}")
        if key not in self._frames:
            table = summarized(self._pairs(probe, measure), reduce, "exclude", resamples)
            cause = NO_STEP if probe.facts.get("step_size") == 0 else None
            if measure not in self._told and tell_of_unresolved(table, f"{measure} at step {probe.step}", cause):
                self._told.add(measure)
            table.insert(0, "step", probe.step)
            table.insert(1, "measure", measure)
            self._frames[key] = table
        return self._frames[key]

    @property
    def square(self) -> bool:
        """Whether column j is the example of row j."""
        return bool(self.about["targets_are_sources"])

    def locality(self, *, resamples: int = 0, permutations: int = 0) -> pd.DataFrame:
        """A row for every step and measure: within, between, ratio, times and the rest of `le.locality`. A measure of
        features has its value under `within`. Intervals need `resamples`, baseline and verdict `permutations`. Where a
        ratio has no value at any step, a warning says why."""
        table = self._localities(resamples, permutations)
        self._tell_of_no_ratio(table)
        return table

    def _localities(self, resamples: int = 0, permutations: int = 0) -> pd.DataFrame:
        import pandas as pd

        rows = []
        for probe in self:
            for name in self.measures:
                read = self._pairs(probe, name)
                found = locality(read, measure=name, resamples=resamples, permutations=permutations)
                rows.append({"step": probe.step, **found.row()})
        rows += [
            {"step": probe.step, "measure": name, "within": probe.numbers[name]}
            for name in self.numbers
            for probe in self
        ]
        return pd.DataFrame(rows, columns=["step", "measure", *columns(resamples, permutations)])

    def _tell_of_no_ratio(self, table: pd.DataFrame) -> None:
        """Say once for every measure why its ratio is NaN at every step."""
        for name in self.measures:
            mine = table[table["measure"] == name]
            if not len(mine) or mine["ratio"].notna().any() or name in self._unlocated:
                continue
            self._unlocated.add(name)
            last = mine.iloc[-1]
            few = not last["pairs_within"] or not last["pairs_between"]
            logger.warning(
                "locality: the ratio of %s is NaN at every step: %s",
                name,
                f"{last['pairs_within']} pairs within classes and {last['pairs_between']} between classes have a value"
                if few
                else f"the median within classes is {last['within']:.3g}, and a ratio needs one above 0",
            )

    def measured(self, probe: Probe) -> dict[str, ReadPairs]:
        """The pairs of a probe by measure, of the sources that it measured."""
        return {name: self._pairs(probe, name) for name in self.measures}

    def _pairs(self, probe: Probe, measure: str) -> ReadPairs:
        S, sources, targets = probe.similarity[measure], self.source_classes, self.target_classes
        count = probe.facts.get("sources_measured", np.nan)
        if count < len(sources):  # a budget left sources out; NaN in histories of earlier versions
            rows = sampled_rows(sources, int(count))
            sources = [sources[row] for row in rows]
            S, targets = (S[np.ix_(rows, rows)], sources) if self.square else (S[rows], targets)
        return read_pairs(S, sources, targets, square=self.square)

    def phases(self) -> pd.DataFrame:
        """For every measure: how many times as far a step moves its own class at the start and at the end, the
        half-life of this curve, and its change-point."""
        from local_elasticity.training.phases import phases

        return phases(self._localities())

    def plot(self, columns: int = 2) -> Figure:
        """The curves of all class pairs with their bands; with many classes, those within and between classes. As wide
        as one column of print or two."""
        with extra("report"):
            from local_elasticity.report.curves import CLASSES_SHOWN, history_figure

        few = len(set(map(str, self.source_classes))) <= CLASSES_SHOWN
        return history_figure(self.frame(), self.numbers, columns, bands=None if few else self._bands())

    def _bands(self) -> dict[str, np.ndarray]:
        """Quartiles of all pairs within and between classes, [steps, 2, 3], by measure."""

        def bands(probe: Probe, measure: str) -> np.ndarray:
            values, rows, columns, square = pooled(self._pairs(probe, measure))
            return within_and_between(values, rows, columns, square=square)

        return {name: np.array([bands(probe, name) for probe in self]) for name in self.measures}

    def dataset(self) -> xr.Dataset:
        """All similarities, labelled: [step, source, target] for every measure, [step] for measures of features."""
        import xarray as xr

        from local_elasticity.store.history import FACTS

        coords = {
            "step": self.steps,
            "source_class": ("source", self.source_classes),
            "target_class": ("target", self.target_classes),
            "seconds": ("step", [probe.seconds for probe in self]),
            **{name: ("step", [probe.facts.get(name, np.nan) for probe in self]) for name in FACTS},
        }
        shape = (0, len(self.source_classes), len(self.target_classes))
        arrays: dict[str, Any] = {
            name: (
                ("step", "source", "target"),
                np.stack([probe.similarity[name] for probe in self]) if self._probes else np.empty(shape),
            )
            for name in self.measures
        }
        arrays |= {name: ("step", [probe.numbers[name] for probe in self]) for name in self.numbers}
        notes = [f"step {step}: {note}" for step, note in self.notes.items()]
        return xr.Dataset(arrays, coords=coords, attrs=self.about | ({"notes": notes} if notes else {}))


def _where(theirs: list[Any], mine: list[Any]) -> str:
    """Where two lists begin to differ."""
    different = [(a, b) for a, b in zip(theirs, mine, strict=False) if a != b]
    if different:
        return f"expected {different[0][1]!r}, got {different[0][0]!r}"
    return f"expected {len(mine)}, got {len(theirs)}"
