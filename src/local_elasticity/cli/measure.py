"""`measure`: the similarity of your own examples in your own model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from local_elasticity.cli import common_options
from local_elasticity.cli.app import Device, Json, Quiet, app, console, print_frame, print_json
from local_elasticity.cli.common_options import DATA, Count, ImageSize, Labels, Loss, Measure, StepSize, UpdateRule

PAIRS_SHOWN = 16
"""Pairs of classes that are printed; of more, those with the largest values."""

COUPLED_SHOWN = 3
"""Coupled pairs of classes that are printed."""

ENDINGS = (".zarr", ".npz")


@app.command()
def measure(
    model: common_options.Model,
    data: Annotated[str, typer.Option(help=DATA)],
    weights: common_options.Weights = None,
    targets: Annotated[
        str | None, typer.Option(help="Where predictions are read, given as --data is; by default at the sources.")
    ] = None,
    loss: Loss = "cross_entropy",
    measure: Measure = "relative",
    update: UpdateRule = "sgd",
    step_size: StepSize = None,
    n: Count = 100,
    labels: Labels = "given",
    image_size: ImageSize = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep the matrix: .zarr (le.load reads it) or .npz (np.load does).")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page to explore, such as report.html.")] = None,
    device: Device = "cpu",
    json_wanted: Json = False,
    quiet: Quiet = False,
) -> None:
    """Whose predictions move, and how far, when your model takes one step on each of your examples.

    Example: `local-elasticity measure --model my_nets:make --weights best.pt --data photos --n 200 --out run.zarr
    --report run.html`, where my_nets.py in this folder has a function make() that returns the model, and photos/ has a
    folder of images for each class.
    """
    from local_elasticity import similarity
    from local_elasticity.cli.models import problem_of

    common_options.check_out(out, report, ENDINGS)
    step = common_options.made_update(update, step_size)
    sources = common_options.read_data(data, n, image_size, device)
    others = None if targets is None else common_options.read_data(targets, n, image_size, device, "--targets")
    problem = problem_of(model, weights, loss, device, sources)
    x, at, options = common_options.question(sources, others, measure, step, labels)
    options["progress"] = not quiet
    with common_options.warnings_on_one_line():
        S = similarity(problem, x, at, examples=common_options.shown_examples(sources, others), **options)
    S = common_options.named(S, sources, others)
    S = common_options.with_predictions(S, problem, others or sources, sources.class_names, labels)
    screen = console(quiet=quiet or json_wanted)
    if json_wanted:
        print_json(_facts(S))
    _show(S, screen)
    if out is not None:
        _write(S, out)
        screen.print(f"wrote {out}", soft_wrap=True)
    if report is not None:
        common_options.write_page(screen, {data: S}, report)


def _facts(S: Any) -> dict[str, Any]:
    """What a program wants to know: how it was made, class pairs, locality."""
    from local_elasticity import locality
    from local_elasticity.statistics.class_pairs import has_classes

    found: dict[str, Any] = {"about": S.attrs, "shape": list(S.shape)}
    if has_classes(S):
        found["classes"] = S.le.classes().to_dict("records")
        local = locality(S)
        found["locality"] = {**local.row(), "sentence": str(local)}
    return found


def _show(S: Any, screen: Any) -> None:
    """Class pairs, how local the step is, which classes are coupled, and whether to believe it."""
    from local_elasticity import locality
    from local_elasticity.measures.registry import with_unit
    from local_elasticity.statistics.class_pairs import has_classes

    about = S.attrs
    size = f"{S.shape[0]} sources × {S.shape[1]} targets"
    if has_classes(S):
        frame = S.le.classes()
        kept = frame.sort_values("value", ascending=False, kind="stable").head(PAIRS_SHOWN).sort_index()
        more = f"; {len(kept)} of {len(frame)} class pairs, the largest" if len(kept) < len(frame) else ""
        print_frame(screen, common_options.in_words(kept), f"{with_unit(about['measure'])}: {size}{more}")
        screen.print(str(locality(S)), soft_wrap=True)
        screen.print(_coupled(S), soft_wrap=True)
    else:
        values = S.values
        screen.print(f"{with_unit(about['measure'])}: {size}; median {_median(values):.4g}", soft_wrap=True)
    told = [f"engine {about['engine']}"] if about.get("engine") else []
    told += [f"update {about['update']}"] if about.get("update") else []
    if math.isfinite(about.get("nonlinearity", math.nan)):
        told.append(f"{about['nonlinearity']:.1%} away from the limit of small steps")
    told.append(f"{about['unresolved']:.1%} of the pairs unresolved")
    screen.print("; ".join(told), soft_wrap=True)


def _coupled(S: Any) -> str:
    """The strongest coupled pairs of classes, or why there are none."""
    found = S.le.coupled()
    if found.nothing:
        return str(found.nothing)
    pairs = found.coupled()
    more = f" {len(pairs) - COUPLED_SHOWN} more: le.coupling." if len(pairs) > COUPLED_SHOWN else ""
    return "Coupled classes: " + " ".join(" ".join(found.sentence(at)) for at in pairs[:COUPLED_SHOWN]) + more


def _median(values: Any) -> float:
    import numpy as np

    return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")


def _write(S: Any, out: Path) -> None:
    """A zarr store, or an .npz file: `similarity`, every coordinate by name, and `about`, JSON of how it was made."""
    if out.suffix == ".zarr":
        S.le.save(out)
        return
    import io

    import numpy as np

    from local_elasticity.store.atomic import write_whole

    coords = {str(name): _plain(one.values) for name, one in S.coords.items()}
    file = io.BytesIO()
    np.savez_compressed(file, similarity=S.values, about=json.dumps(S.attrs, default=str), **coords)
    write_whole(out, file.getvalue(), "--out")


def _plain(values: Any) -> Any:
    """Without Python objects, so that `np.load` needs no pickle."""
    return values.astype(str) if values.dtype.kind == "O" else values
