"""By which tokens sequences became more or less likely: for a few pairs, since all pairs would be n × m × T numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from local_elasticity.engine.inputs import count, take
from local_elasticity.engine.respond import respond
from local_elasticity.engine.response import Response
from local_elasticity.engine.update import SGD, Update
from local_elasticity.measures.loss import KNOWN_TO, LOSS
from local_elasticity.measures.loss_differences import STANDARD_DEVIATIONS
from local_elasticity.training.language import predicted_tokens, token_log_problem

if TYPE_CHECKING:
    import pandas as pd

MOST_PAIRS = 24
"""Pairs that are measured where none are named."""


def token_changes(
    S: xr.DataArray,
    model: nn.Module,
    sources: tuple[Mapping[str, Tensor], Tensor],
    targets: Any = None,
    *,
    words: Callable[[int], str],
    pairs: Iterable[tuple[int, int]] | None = None,
    update: Update | None = None,
    params: str | Callable[[str, Tensor], bool] | None = None,
) -> pd.DataFrame:
    """How the step on a source changes the log-probability of each token of a target, for a few pairs of S.

        change_t = log p(x′_t | x′_<t; w⁺) − log p(x′_t | x′_<t; w),  above 0 where the token becomes more likely

    It is exact for the finite step. Their sum is the change of log p(x′), which the measure `"relative"` compares.

    Args:
        S: a similarity of the same model, sources and targets, such as that of `sequence_problem` or `answer_problem`.
        model, sources, targets, params: as they were for S; sources are those of `sequences`.
        words: a token's text by its number, such as `tokenizer.decode`.
        pairs: (source, target) numbers. By default the strongest of S, at most 24: each source with the target that it
            moves most; of the measure `"loss"` each target with the source that helps it most and the one that harms it
            most.
        update: the step; needed where that of S is not plain SGD.

    Returns:
        A row for each token of the pairs' targets: source, target, place, token, change. The change is NaN where the
        token is not predicted, or where ten standard deviations of rounding exceed 1 % of it and of the largest change
        of a token of the source itself. `S.le.with_token_changes(...)` puts them onto the report's page.

    Raises:
        ValueError: if the step is not that of S, a pair is not in S, or S was measured at other weights (which the
            measures `"relative"` and `"loss"` show).

    >>> import local_elasticity as le
    >>> from local_elasticity.training.language import sequence_problem, sequences
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    >>> sources, texts = sequences(torch.tensor([[0, 1, 2], [0, 1, 3]])), ["a", "cat", "sat", "ran"]
    >>> S = le.similarity(sequence_problem(model), sources, update=le.SGD(0.1))
    >>> token_changes(S, model, sources, words=texts.__getitem__, pairs=[(0, 1)]).round(3)
       source  target  place token  change
    0       0       1      0     a     NaN
    1       0       1      1   cat   0.481
    2       0       1      2   ran  -0.122
    """
    import pandas as pd

    _check_kinds(S, sources, words)
    update = _step_of(S, update)
    chosen = _Chosen(_strongest(S) if pairs is None else _checked(S, pairs))
    if not chosen.pairs:
        return pd.DataFrame({name: [] for name in ("source", "target", "place", "token", "change")})
    of_targets = sources[0] if targets is None else targets[0] if isinstance(targets, tuple) else targets
    for name, given, wanted in (("sources", sources[0], chosen.rows), ("targets", of_targets, chosen.columns)):
        if wanted[-1] >= count(given):
            raise ValueError(f"{name}: expected those of S, with number {wanted[-1]}, got {count(given)} sequences")
    stepped, read = take(sources, torch.tensor(chosen.rows)), take(of_targets, torch.tensor(chosen.columns))
    response = respond(token_log_problem(model, params), stepped, (read, None), update=update, progress=False)
    counted = predicted_tokens(**read)
    _check_same(S, response, chosen, (stepped[1], counted.sum(1)))
    changes = _resolved(response)
    changes = changes.masked_fill(~counted.to(changes.device), torch.nan)
    return pd.concat([_frame(pair, read, at, changes, words) for pair, at in chosen.places.items()], ignore_index=True)


@dataclass(frozen=True)
class _Chosen:
    """Pairs, and where they are among the sources and the targets that occur in them."""

    pairs: list[tuple[int, int]]

    @cached_property
    def rows(self) -> list[int]:
        return sorted({i for i, _ in self.pairs})

    @cached_property
    def columns(self) -> list[int]:
        return sorted({j for _, j in self.pairs})

    @property
    def places(self) -> dict[tuple[int, int], tuple[int, int]]:
        return {(i, j): (self.rows.index(i), self.columns.index(j)) for i, j in self.pairs}


def _check_kinds(S: Any, sources: Any, words: Any) -> None:
    """Raise a TypeError that says which argument is of another kind."""
    if not isinstance(S, xr.DataArray):
        raise TypeError(f"S: expected what le.similarity returned for one measure, got {type(S).__name__}")
    if not isinstance(sources, tuple) or len(sources) != 2 or not isinstance(sources[0], Mapping):
        raise TypeError(f"sources: expected what `sequences` returned, got {type(sources).__name__}")
    if not callable(words):
        raise TypeError(f"words: expected a function of a token's number, got {type(words).__name__}")


def _step_of(S: xr.DataArray, update: Update | None) -> Update:
    """The step that S was measured with."""
    known = S.attrs.get("update")
    if known is None:
        raise ValueError("S: it does not say which step it was measured with; pass what le.similarity returned")
    step = SGD(S.attrs["step_size"]) if update is None else update
    if repr(step) != known:
        raise ValueError(f"update: expected the step of S, {known}, got {step!r}")
    return step


def _strongest(S: xr.DataArray) -> list[tuple[int, int]]:
    """The pairs of the largest values, each source's own best; of a change of loss each target's best and worst."""
    values = np.array(S.values, dtype=float)
    if S.attrs.get("targets_are_sources"):
        np.fill_diagonal(values, np.nan)
    known = np.isfinite(values)
    if S.attrs.get("measure") == LOSS.name:
        each = np.flatnonzero(known.any(0))
        ends = (np.where(known, values, np.inf).argmin(0)[each], np.where(known, values, -np.inf).argmax(0)[each])
        found = {(int(i), int(j)) for end in ends for i, j in zip(end, each, strict=True)}
    else:
        each = np.flatnonzero(known.any(1))
        found = {(int(i), int(j)) for i, j in zip(each, np.where(known, values, -np.inf)[each].argmax(1), strict=True)}
    order = sorted(found, key=lambda pair: -abs(values[pair]))[:MOST_PAIRS]
    return [(int(S.source.values[i]), int(S.target.values[j])) for i, j in order]


def _checked(S: xr.DataArray, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Different pairs, each of them in S."""
    try:
        found = list(dict.fromkeys((index(i), index(j)) for i, j in pairs))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"pairs: expected (source, target) numbers, such as [(0, 1), (2, 3)], got {pairs!r}"
        ) from error
    for i, j in found:
        if i not in S.source.values or j not in S.target.values:
            raise ValueError(f"pairs: ({i}, {j}) is not in S, whose sources and targets are S.source and S.target")
    return found


def _resolved(response: Response) -> Tensor:
    """The changes [n, m, T − 1]; NaN where rounding may change one by more than 1 % of it, and of the largest change of
    the source's own tokens, or where that is hidden itself."""
    changes = response.target_change
    own, noise = (part.abs().amax(1)[:, None, None] for part in (response.source_change, response.source_noise))
    error = response.noise_scale[:, None, None] * response.target_noise
    hidden = STANDARD_DEVIATIONS * error > KNOWN_TO * torch.maximum(changes.abs(), own)
    return changes.masked_fill(hidden | (STANDARD_DEVIATIONS * noise > KNOWN_TO * own), torch.nan)


def _check_same(S: xr.DataArray, response: Response, chosen: _Chosen, lengths: tuple[Tensor, Tensor]) -> None:
    """Raise an error if the sums over tokens do not give what S says, for the measures that follow from them."""
    sums, own = response.target_change.double().sum(2), response.source_change.double().sum(1)[:, None].abs()
    of_sources, of_targets = (one.double().to(sums.device) for one in lengths)
    if S.attrs.get("measure") == "relative" and S.attrs.get("outputs") == "numbers":
        now, unit = sums.abs() / own, torch.ones_like(sums)
    elif S.attrs.get("measure") == LOSS.name:
        now, unit = -sums / of_targets, (own / of_sources[:, None]).expand_as(sums)
    else:
        return
    for (i, j), at in chosen.places.items():
        there = float(S.sel(source=i, target=j))
        if abs(float(now[at]) - there) > KNOWN_TO * max(abs(there), float(unit[at])):
            raise ValueError(
                f"S: source {i} and target {j} have {there:.3g} there and {float(now[at]):.3g} now; measure S again, "
                "with the model, the sources and the targets as they are"
            )


def _frame(
    pair: tuple[int, int], read: Mapping[str, Tensor], at: tuple[int, int], changes: Tensor, words: Callable[[int], str]
) -> pd.DataFrame:
    """The tokens of one target, padding left out."""
    import pandas as pd

    length = int(read["attention_mask"][at[1]].sum())
    tokens = [str(words(int(token))) for token in read["input_ids"][at[1], :length]]
    values = [np.nan, *changes[at][: length - 1].double().tolist()]
    return pd.DataFrame(
        {"source": pair[0], "target": pair[1], "place": range(length), "token": tokens, "change": values}
    )
