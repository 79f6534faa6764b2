"""write_report: from results to one file."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from torch import nn

from local_elasticity.data.points import read_arrays
from local_elasticity.report.explorer import page
from local_elasticity.report.foreseen import Foreseen
from local_elasticity.report.paper import Paper
from local_elasticity.report.results import (
    NOTHING_KNOWN,
    as_forecast,
    is_clustering,
    is_comparison,
    is_empty,
    is_history,
    opened,
    unknown,
    with_examples,
    without_examples,
)
from local_elasticity.report.run import Run, Unshown
from local_elasticity.report.tabled import Tabled, tabled
from local_elasticity.store.atomic import check_file, plainly, write_whole

logger = logging.getLogger("local_elasticity")

SIZE = "%%SIZE%%"
"""Where the page says how large it is, which is known once it is made."""


def write_report(
    results: Any,
    out: str | Path,
    *,
    examples: Any = None,
    title: str | None = None,
    command: str = "",
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML page: it can be opened offline, mailed, printed, and linked to at any view.

    Args:
        results: one or several, also by name in a dict: a similarity, a `Monitor` or its history, what `le.compare`,
            `le.forecast`, `le.check_step` or the query of an influence index found, a forecast with its check as
            (forecast, check), a fitted clustering, or a path to a stored similarity, a stored history, or a folder of a
            paper's results. What cannot be read is listed on the page.
        out: the file to write. An existing file is replaced and keeps its permissions, the target of a symlink is
            written, and a folder, device or FIFO is refused.
        examples: pictures, texts or vectors to show, one for each source, or (of sources, of targets); similarities
            that carry their own keep them.
            False leaves all examples out, also those that results carry; the page says what it contains.
        title, command: for the page's head and foot.
        about: what else is known of the results, such as `{"data": "MNIST", "seed": 0}`; shown under "How it was made".

    Returns:
        The path of the page.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.
        OSError: if the file cannot be written; an earlier one is kept.

    >>> import tempfile, torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(4, 2), "cross_entropy")
    >>> x, y = torch.randn(6, 4), torch.arange(6) % 2
    >>> S = le.similarity(problem, (x, y), measure="kl", examples=x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = le.write_report({"a first look": S}, f"{folder}/report.html")
    ...     "a first look" in page.read_text(encoding="utf-8")
    True
    """
    if not isinstance(out, (str, Path)):
        raise TypeError(f"out: expected the path of a file, got {type(out).__name__}; it comes after the results")
    out = Path(out)
    check_file(out, "out")
    runs: list[Run | Paper | Foreseen | Tabled | Unshown] = []
    for name, one in _named(results):
        runs += opened(name, one)
    if not runs:
        raise ValueError("results: there is nothing to report; give a similarity, a history or a path")
    if all(isinstance(run, Unshown) and run.why == NOTHING_KNOWN for run in runs):
        raise ValueError(f"results: {', '.join(run.name for run in runs)}: {NOTHING_KNOWN}")
    left_out = examples is False
    if left_out:
        runs = [without_examples(run) if isinstance(run, (Run, Foreseen, Tabled)) else run for run in runs]
    elif examples is not None:
        runs = [with_examples(run, examples) if isinstance(run, (Run, Foreseen, Tabled)) else run for run in runs]
    runs = [Unshown(run.name, "it holds no measurement yet") if is_empty(run) else run for run in runs]
    for run in runs:
        if isinstance(run, Unshown):
            logger.warning("%s is not shown: %s", run.name, run.why)
    if about is not None and not isinstance(about, Mapping):
        raise TypeError(f"about: expected a dict of facts, got {about!r}")
    text = page(runs, title=title or _title(runs), command=command, about=about or {}, left_out=left_out)
    size = len(text.encode())
    told = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.0f} kB"
    write_whole(out, text.replace(f">{SIZE}</span>", f">{told}</span>").encode(), "out")
    return out


def read_examples(path: Path) -> Any:
    """Pictures or vectors from an .npy file, the array x of an .npz file, or the lines of a text file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "texts.txt"
    ...     _ = file.write_text("a cat\\na dog\\n")
    ...     read_examples(file)
    ['a cat', 'a dog']
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"--examples: {path} is not a regular file")
    if path.suffix in (".npy", ".npz"):
        return read_arrays(path, ("x",), "--examples")[0]
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise plainly(error, f"--examples: {path} cannot be read ({error.strerror}); name a file") from error


def _named(results: Any) -> list[tuple[str, Any]]:
    if isinstance(results, dict):
        return list(results.items())
    history = is_history(results) or is_history(getattr(results, "history", None))
    single = is_clustering(results) or is_comparison(results) or as_forecast(results) is not None
    single = single or tabled("", results) is not None
    if isinstance(results, (str, Path, xr.DataArray, xr.Dataset)) or history or single:
        results = [results]
    if not isinstance(results, Iterable) or isinstance(results, nn.Module):
        raise TypeError(unknown(results))
    results = list(results)
    paths = [Path(one) for one in results if isinstance(one, (str, Path))]
    return [(_name_of(one, place, paths), one) for place, one in enumerate(results)]


def _name_of(one: Any, place: int, paths: Sequence[Path]) -> str:
    """The last part of a path, and as many of its folders as tell it from the others."""
    if isinstance(one, (str, Path)):
        tails = [[Path(*path.parts[-size:]) for path in (Path(one), *paths)] for size in range(1, len(Path(one).parts))]
        return next((str(tail) for tail, *others in tails if others.count(tail) == 1), str(one))
    kind = "similarity" if isinstance(one, (xr.DataArray, xr.Dataset)) else type(one).__name__
    return f"{'Forecast' if as_forecast(one) is not None else kind} {place + 1}"


def _title(runs: Sequence[Any]) -> str:
    names = [run.name for run in runs]
    if len(runs) > 3 and all(isinstance(run, Paper) for run in runs):
        papers = dict.fromkeys(run.provenance["experiment"].partition("/")[0] for run in runs)
        return f"Local elasticity: {len(runs)} results of {', '.join(papers)}"
    return "Local elasticity: " + ", ".join(names[:3]) + ("" if len(names) <= 3 else f" and {len(names) - 3} more")
