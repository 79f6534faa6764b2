"""What a similarity can do: the accessor `S.le`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from local_elasticity.api.labels import example_coordinates
from local_elasticity.checks import check_choice
from local_elasticity.extras import extra
from local_elasticity.measurement import named_classes
from local_elasticity.measures.loss import LOSS
from local_elasticity.statistics.class_pairs import class_pairs, has_classes
from local_elasticity.statistics.coupling import Coupling, coupling
from local_elasticity.statistics.locality import columns, locality
from local_elasticity.store.result import save

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from local_elasticity.report.card import Card


@xr.register_dataarray_accessor("le")
class SimilarityAccessor:
    """What a similarity can do: `S.le.classes()`, `.coupled()`, `.frame()`, `.nearest()`, `.plot()`, `.html()`,
    `.save()`"""

    def __init__(self, S: xr.DataArray) -> None:
        self._S = S

    def frame(self) -> pd.DataFrame:
        """One row for each pair: source, target, their classes, value."""
        named = [name for name in ("source_class", "target_class") if name in self._S.coords]
        others = [name for name in self._S.coords if name not in ("source", "target", *named)]
        frame = self._S.rename("value").drop_vars(others).to_dataframe().reset_index()
        return frame[["source", "target", *named, "value"]]

    def classes(self, **options: Any) -> pd.DataFrame:
        """One row for each pair of classes; options as for `le.class_pairs`."""
        if not has_classes(self._S):
            raise ValueError(
                "source_labels, target_labels: this similarity carries no classes; give them to similarity()"
            )
        return class_pairs(self._S, **options)

    def coupled(self, **options: Any) -> Coupling:
        """The pairs of classes that are coupled, as the report page shows them; options as for `le.coupling`.

        Returns:
            A `Coupling`. Printed, it names the pairs, the largest value first, or says that none was found; `.frame()`
            has a row for every pair of classes.

        Raises:
            ValueError: if the similarity carries no classes.

        >>> import numpy as np, local_elasticity as le
        >>> labels = np.repeat(["cat", "dog", "fox", "owl"], 10)
        >>> values = np.random.default_rng(0).lognormal(-2, 0.4, size=(40, 40))
        >>> S = le.as_similarity(values, source_labels=labels, measure="relative")
        >>> print(str(S.le.coupled())[:76])
        No coupled pair of classes was found: none is clearly above what its row and
        >>> values[np.ix_(labels == "cat", labels == "owl")] *= 6
        >>> print(le.as_similarity(values, source_labels=labels, measure="relative").le.coupled())
        cat → owl: 78 %, 4.4× (3.2–5.2×) what row cat and column owl suggest (18 %).
        """
        return coupling(self._S, **options)

    def nearest(self, source: int | None = None, top: int = 10, *, target: int | None = None) -> pd.DataFrame:
        """The targets that a step on `source` moves most, or the sources whose step moves `target` most. An example
        with itself is left out.

        Args:
            source, target: the number of one example; give one of the two.
            top: how many.

        Returns:
            A row for each, the largest value first. For the measure `loss`, first the `top` helpers (the loss falls
            most), then the `top` harmers, with a column `effect`.

        Raises:
            ValueError: if there is no such example, or not exactly one was given.

        >>> import local_elasticity as le
        >>> S = le.as_similarity([[-0.2, 0.1, -0.1], [-0.05, -0.3, 0.2], [0.1, 0.3, -0.4]], measure="loss")
        >>> print(S.le.nearest(target=0))
           source  value effect
        0       1  -0.05  helps
        1       2   0.10  harms
        """
        if (source is None) == (target is None):
            raise ValueError("source, target: give one of them, the number of an example")
        here, there, number = ("source", "target", source) if target is None else ("target", "source", target)
        known = self._S[here].values
        if number not in known:
            raise ValueError(f"{here}: {number!r} is not one of the {len(known)} {here}s; S.{here} lists them")
        line = self._S.sel({here: number})
        if self._S.attrs.get("targets_are_sources"):
            line = line.drop_sel({there: number})
        others = [name for name in line.coords if name not in (there, f"{there}_class")]
        frame = line.rename("value").drop_vars(others).to_dataframe().reset_index()
        if self._S.attrs.get("measure") == LOSS.name:
            return helpers_and_harmers(frame, top)
        return frame.sort_values("value", ascending=False).head(top).reset_index(drop=True)

    def plot(self, columns: int = 1, *, by: Literal["example", "class"] = "example") -> Figure:
        """The matrix as a picture, ordered by class where classes are known.

        Args:
            columns: the width, one column of print or two.
            by: `"example"` draws a dot for each pair of examples, `"class"` the median of each pair of classes with
                its number.

        Returns:
            A Matplotlib figure; `.savefig("name.pdf")` keeps it.

        Raises:
            ValueError: if an argument is not one of those, or classes are not known.

        >>> import local_elasticity as le
        >>> S = le.as_similarity([[1, 0.5, 0.1], [0.7, 1, 0.3], [0.2, 0.4, 1]], source_labels=["cat", "cat", "dog"])
        >>> [label.get_text() for label in S.le.plot(by="class").axes[0].get_xticklabels()]
        ['cat', 'dog']
        """
        check_choice("by", by, ("example", "class"))
        with extra("report"):
            from local_elasticity.report.figures import class_figure, similarity_figure

        return similarity_figure(self._S, columns) if by == "example" else class_figure(self._S, columns)

    def html(self) -> Card:
        """A small card for notebooks: the matrix, its class pairs, and whether to believe them."""
        from local_elasticity.report.card import similarity_card

        with extra("report"):
            return similarity_card(self._S)

    def with_examples(self, sources: Any, targets: Any = None) -> xr.DataArray:
        """The same, with a small picture, text or vector for each example, which reports show."""
        square = bool(self._S.attrs.get("targets_are_sources"))
        examples = sources if targets is None else (sources, targets)
        return self._S.assign_coords(example_coordinates(examples, self._S.shape, square))

    def with_predictions(
        self, predictions: Any, class_names: Mapping[Any, str] | Sequence[str] | None = None
    ) -> xr.DataArray:
        """The same, with the class that the model predicts for each target. The page then shows the confusion matrix,
        and its rank correlation with the similarities of classes.

        Args:
            predictions: one class for each target, such as `net(x).argmax(1)`.
            class_names: as for `le.similarity`, if predictions are numbers and classes have names.

        Returns:
            The similarity with the coordinate `target_prediction`.

        Raises:
            ValueError: if there is not one for each target, or if the classes have names and predictions do not.

        >>> import local_elasticity as le
        >>> S = le.as_similarity([[1.0, 0.2], [0.4, 1.0]], source_labels=["cat", "dog"])
        >>> S.le.with_predictions(["cat", "cat"])["target_prediction"].values.tolist()
        ['cat', 'cat']
        """
        values = np.asarray(predictions.cpu() if hasattr(predictions, "cpu") else predictions)
        if class_names is not None:
            values = np.asarray(named_classes(values, class_names))
        known = self._S.coords.get("target_class", self._S.coords.get("source_class"))
        if known is not None and known.dtype.kind in "OU" and values.dtype.kind not in "OU":
            raise ValueError(
                f"predictions: expected classes by name, as {str(known.values[0])!r}, got numbers; pass class_names="
            )
        if values.shape != (self._S.sizes["target"],):
            raise ValueError(f"predictions: shape {values.shape} does not fit {self._S.sizes['target']} targets")
        return self._S.assign_coords(target_prediction=("target", values))

    def with_token_changes(self, changes: pd.DataFrame) -> xr.DataArray:
        """The same, with the changes of single tokens for some pairs, which the page shows as marked text.

        Args:
            changes: from `local_elasticity.training.token_changes.token_changes`: a row for each token.

        Returns:
            The similarity with these pairs in its attributes, which are saved with it.

        Raises:
            ValueError: if a column is missing or a pair is not in this similarity.

        >>> import local_elasticity as le, pandas as pd
        >>> S = le.as_similarity([[1.0, 0.2], [0.4, 1.0]], examples=["a cat", "a dog"])
        >>> tokens = {"place": [0, 1], "token": ["a", "dog"], "change": [None, -0.1]}
        >>> changes = pd.DataFrame({"source": 0, "target": 1, **tokens})
        >>> S.le.with_token_changes(changes).attrs["token_changes"]
        [{'source': 0, 'target': 1, 'tokens': ['a', 'dog'], 'changes': [None, -0.1]}]
        """
        from local_elasticity.report.marked import as_attribute

        return self._S.assign_attrs(token_changes=as_attribute(changes, self._S))

    def with_clusters(self, clusters: Any) -> xr.DataArray:
        """The same, with the cluster of each example, where the targets are the sources."""
        if not self._S.attrs.get("targets_are_sources"):
            raise ValueError("clusters: the targets are not the sources here, so that clusters have no matrix")
        values = np.asarray(clusters)
        if values.shape != (self._S.sizes["source"],):
            raise ValueError(f"clusters: shape {values.shape} does not fit {self._S.sizes['source']} examples")
        return self._S.assign_coords(source_cluster=("source", values), target_cluster=("target", values))

    def save(self, path: str | Path) -> Path:
        """Write to one zarr store; `le.load(path)` reads it back."""
        return save(self._S, path)


def helpers_and_harmers(frame: pd.DataFrame, top: int) -> pd.DataFrame:
    """The rows whose value is furthest below 0, then those furthest above."""
    import pandas as pd

    helps = frame[frame["value"] < 0].sort_values("value").head(top).assign(effect="helps")
    harms = frame[frame["value"] > 0].sort_values("value", ascending=False).head(top).assign(effect="harms")
    return pd.concat([helps, harms], ignore_index=True)


@xr.register_dataset_accessor("le")
class SimilaritiesAccessor:
    """What similarities of several measures can do together: `S.le.classes()`, `.locality()`, `.save()`; each of them
    has all of `S["relative"].le`."""

    def __init__(self, several: xr.Dataset) -> None:
        self._several = several

    def __getattr__(self, name: str) -> Any:
        measures = ", ".join(map(repr, self._several.data_vars)) if "_several" in vars(self) else ""
        raise AttributeError(f"le.{name} is there for one similarity; take one measure with S[...]: {measures}")

    def classes(self, **options: Any) -> pd.DataFrame:
        """One row for each measure and pair of classes; options as for `le.class_pairs`."""
        import pandas as pd

        tables = [S.le.classes(**options).assign(measure=name) for name, S in self._several.data_vars.items()]
        whole: pd.DataFrame = pd.concat(tables, ignore_index=True)
        whole.insert(0, "measure", whole.pop("measure"))
        return whole

    def locality(self, **options: Any) -> pd.DataFrame:
        """One row for each measure; options as for `le.locality`."""
        import pandas as pd

        rows = [locality(S, measure=str(name), **options).row() for name, S in self._several.data_vars.items()]
        computed = columns(*(options.get(name, 1) for name in ("resamples", "permutations")))
        return pd.DataFrame(rows, columns=["measure", *computed])

    def save(self, path: str | Path) -> Path:
        """Write all of them to one zarr store; `le.load(path)` reads it back."""
        return save(self._several, path)
