"""The papers' experiments: `list` and `run`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from local_elasticity.cli.app import INTERRUPTED, Device, app, console


@app.command(name="list")
def list_experiments() -> None:
    """The papers' experiments that can be run."""
    from rich.table import Column, Table

    from local_elasticity.papers.runner import EXPERIMENTS, find_experiment

    table = Table(Column("name", no_wrap=True), "what", "scales", "readings")
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        table.add_row(name, experiment.title, " ".join(experiment.scales), " ".join(experiment.readings))
    console().print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment, as `local-elasticity list` shows it.")],
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes on 2 cores) or paper (the published setting).")
    ] = "small",
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, …")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default runs/NAME-SCALE-READING.")
    ] = None,
    device: Device = "cpu",
    reading: Annotated[
        str,
        typer.Option(
            help="as_defined (the paper's definitions) or as_released (the authors' code); `list` shows which."
        ),
    ] = "as_defined",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help='Units on Ray: "local", ray://HOST:10001 or HOST:6379.')
    ] = None,
) -> None:
    """Run an experiment of a paper. Finished parts are kept: the same command resumes after an interruption."""
    from local_elasticity.papers.runner import find_experiment, run_experiment
    from local_elasticity.scale.workers import workers

    screen = console()
    experiment = find_experiment(name)
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
    _print_result(screen, result)
    if len(result["seeds"]) > seeds:
        there = ", ".join(map(str, result["seeds"]))
        screen.print(
            f"--seeds {seeds}: {folder} holds the seeds {there}, and this result is of all of them", soft_wrap=True
        )
    if scale == "smoke":
        screen.print("smoke scale: this shows that it runs; verdicts count at --scale paper, and hint at --scale small")
    screen.print(f"written to {folder / 'result.json'} and {folder / 'figures'}", soft_wrap=True)


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
