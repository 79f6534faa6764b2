"""What a similarity can do: the accessor `S.le`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from local_elasticity.api.labels import example_coordinates
from local_elasticity.extras import extra
from local_elasticity.statistics.class_pairs import class_pairs
from local_elasticity.statistics.locality import locality
from local_elasticity.store.result import save

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from local_elasticity.report.card import Card


@xr.register_dataarray_accessor("le")
class SimilarityAccessor:
    """What a similarity can do: `S.le.classes()`, `.frame()`, `.nearest()`, `.plot()`, `.html()`, `.save()`"""

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
        if "source_class" not in self._S.coords or "target_class" not in self._S.coords:
            raise ValueError(
                "source_labels, target_labels: this similarity carries no classes; give them to similarity()"
            )
        return class_pairs(self._S, **options)

    def nearest(self, source: int, top: int = 10) -> pd.DataFrame:
        """The targets that a step on `source` moves most, itself left out."""
        there = self._S["source"].values
        if source not in there:
            raise ValueError(f"source: {source!r} is not one of the {len(there)} sources; S.source lists them")
        row = self._S.sel(source=source)
        if self._S.attrs.get("targets_are_sources"):
            row = row.drop_sel(target=source)
        others = [name for name in row.coords if name not in ("target", "target_class")]
        frame = row.rename("value").drop_vars(others).to_dataframe()
        return frame.reset_index().sort_values("value", ascending=False).head(top).reset_index(drop=True)

    def plot(self, columns: int = 1) -> Figure:
        """The matrix as a picture, ordered by class where classes are known, as wide as one column of print or two."""
        with extra("report"):
            from local_elasticity.report.figures import similarity_figure

        return similarity_figure(self._S, columns)

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


@xr.register_dataset_accessor("le")
class SimilaritiesAccessor:
    """What similarities of several measures can do together: `S.le.classes()`, `S.le.locality()`; each of them has all
    of `S["relative"].le`."""

    def __init__(self, several: xr.Dataset) -> None:
        self._several = several

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

        rows = [{"measure": name, **vars(locality(S, **options))} for name, S in self._several.data_vars.items()]
        return pd.DataFrame(rows)
