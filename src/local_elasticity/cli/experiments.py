"""The papers' experiments: `list` and `run`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from local_elasticity.cli.app import INTERRUPTED, Device, Json, Quiet, app, choices, console, print_json


@app.command(name="list")
def list_experiments(
    paper: Annotated[
        str | None, typer.Argument(metavar="PAPER", help="Only experiments of this paper, such as he2020local.")
    ] = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the names alone, a line each.")] = False,
) -> None:
    """The papers' experiments that can be run."""
    from local_elasticity.papers.runner import EXPERIMENTS, find_experiment

    papers = list(dict.fromkeys(name.partition("/")[0] for name in EXPERIMENTS))
    if paper is not None and paper not in papers:
        raise ValueError(f"PAPER: expected one of {', '.join(papers)}, got {paper!r}")
    found = {name: find_experiment(name) for name in EXPERIMENTS if paper in (None, name.partition("/")[0])}
    if json:
        print_json(
            [
                {"name": name, "title": one.title, "scales": list(one.scales), "readings": list(one.readings)}
                for name, one in found.items()
            ]
        )
        return
    if quiet:
        for name in found:
            typer.echo(name)
        return
    screen = console()
    wide = max(map(len, found))
    for name, one in found.items():
        both = "*" if len(one.readings) > 1 else " "
        screen.print(f"{name:{wide}} {both} {one.title}", no_wrap=True, overflow="ellipsis", crop=True, highlight=False)
    screen.print("*: also --reading as_released. Whole titles, scales and readings: --json")


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment, as `local-elasticity list` shows it.")],
    scale: Annotated[
        str,
        typer.Option(
            help="Seconds, minutes on 2 cores, or the published setting.", **choices("smoke", "small", "paper")
        ),
    ] = "small",
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, …")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/NAME-SCALE-READING.")
    ] = None,
    device: Device = "cpu",
    reading: Annotated[
        str,
        typer.Option(
            help="The paper's definitions or the authors' code; `list` shows which.",
            **choices("as_defined", "as_released"),
        ),
    ] = "as_defined",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help='Units on Ray: "local", ray://HOST:10001 or HOST:6379.')
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of a paper. Finished parts are kept: the same command resumes after an interruption."""
    from local_elasticity.papers.runner import find_experiment, run_experiment
    from local_elasticity.scale.workers import workers

    screen = console(quiet=quiet or json)
    experiment = find_experiment(whole_name(name))
    folder = out or Path("runs") / f"{name.replace('/', '-')}-{scale}-{reading}"

    def report(unit: Any, done: int, total: int, how: str) -> None:
        screen.print(f"[{done}/{total}] {unit.part}, seed {unit.seed}: {how}")

    try:
        with nullcontext() if ray is None else workers(ray):
            result = run_experiment(
                experiment,
                folder,
                scale=scale,  # type: ignore[arg-type]
                seeds=seeds,
                reading=reading,  # type: ignore[arg-type]
                device=device,
                report=report,
            )
    except KeyboardInterrupt:
        typer.echo(
            f"\ninterrupted; what is finished is kept in {folder}: the same command resumes from there", err=True
        )
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(result)
    _print_result(screen, result)
    if len(result["seeds"]) > seeds:
        there = ", ".join(map(str, result["seeds"]))
        screen.print(
            f"--seeds {seeds}: {folder} holds the seeds {there}, and this result is of all of them", soft_wrap=True
        )
    if scale == "smoke":
        screen.print("smoke scale: this shows that it runs; verdicts count at --scale paper, and hint at --scale small")
    screen.print(f"written to {folder / 'result.json'} and {folder / 'figures'}", soft_wrap=True)


def whole_name(name: str) -> str:
    """The name itself; an error suggests the experiment whose last part it is, where there is one such.

    >>> whole_name("fig1")
    Traceback (most recent call last):
    ValueError: NAME: there is no 'fig1'; did you mean he2020local/fig1?
    """
    from local_elasticity.papers.runner import EXPERIMENTS

    if name in EXPERIMENTS:
        return name
    meant = [one for one in EXPERIMENTS if one.partition("/")[2] == name]
    if meant:
        raise ValueError(f"NAME: there is no {name!r}; did you mean {' or '.join(meant)}?")
    return name


def _print_result(screen: Any, result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from local_elasticity.report.scoreboard import sentence
    from local_elasticity.report.words import effect, evidence

    cells = Table("row", "column", "paper", "measured", "verdict", title=f"{result['experiment']} ({result['scale']})")
    for cell in result["cells"]:
        spread = f" ± {cell['sd']:.2g}" if cell["sd"] is not None else ""
        paper = "" if cell["paper"] is None else f"{cell['paper']:g}"
        measured = "" if cell["mean"] is None else f"{cell['mean']:.3g}{spread}"
        cells.add_row(cell["row"], cell["column"], paper, measured, cell["verdict"] or "")
    screen.print(cells)
    for claim in result["claims"]:
        screen.print(
            Text.assemble((claim["verdict"], "bold"), f": {sentence(claim)}\n  {effect(claim)}; {evidence(claim)}")
        )
