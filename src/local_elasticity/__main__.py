"""The command. Everything heavy is imported inside the commands, so that `--help` answers at once."""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="local-elasticity",
    help="If a network took one step on this example, whose predictions would move, and how far?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
data_app = typer.Typer(help="Datasets on this machine.", no_args_is_help=True)
app.add_typer(data_app, name="data")

INTERRUPTED = 130
USERS_MISTAKE = 2
USERS_MISTAKES = (ValueError, OSError, ImportError)
"""An OSError is a file that cannot be read or written; an ImportError is an extra that is not installed."""

ARGUMENT = re.compile(r"[a-zA-Z_-]+: ")
"""How a TypeError of ours begins: with the argument that is wrong."""


def _device(name: str) -> str:
    from local_elasticity.papers.runner import check_device

    check_device(name)
    return name


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, …", callback=_device)]


def _show_version(wanted: bool) -> None:
    if wanted:
        from local_elasticity import __version__

        typer.echo(f"local-elasticity {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is decided, and show tracebacks.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the figure and the results.")] = Path("demo")) -> None:
    """Train a small net on real digits and measure its local elasticity (under a minute)."""
    import torch

    from local_elasticity.demo import run_demo

    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out: {out} is a file; choose a folder")
    torch.set_num_threads(1)  # so small a net is many times slower with threads that wait for each other
    run_demo(out, _console())


@app.command(name="list")
def list_experiments() -> None:
    """The papers' experiments that can be run."""
    from rich.table import Column, Table

    from local_elasticity.papers.runner import EXPERIMENTS, find_experiment

    table = Table(Column("name", no_wrap=True), "what", "scales", "readings")
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        table.add_row(name, experiment.title, " ".join(experiment.scales), " ".join(experiment.readings))
    _console().print(table)


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
        typer.Option(help="as_defined (the paper's definitions) or as_released (the authors' code); `list` tells."),
    ] = "as_defined",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help='Units on Ray: "local", ray://HOST:10001 or HOST:6379.')
    ] = None,
) -> None:
    """Run an experiment of a paper. Finished parts are kept: the same command goes on after an interruption."""
    from local_elasticity.papers.runner import find_experiment, run_experiment
    from local_elasticity.scale.workers import workers

    console = _console()
    experiment = find_experiment(name)
    folder = out or Path("runs") / f"{name.replace('/', '-')}-{scale}-{reading}"

    def report(unit: Any, done: int, total: int, how: str) -> None:
        console.print(f"[{done}/{total}] {unit.part}, seed {unit.seed}: {how}")

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
            f"\ninterrupted; what is finished is kept in {folder}: the same command goes on from there", err=True
        )
        raise typer.Exit(INTERRUPTED) from None
    _print_result(console, result)
    if len(result["seeds"]) > seeds:
        there = ", ".join(map(str, result["seeds"]))
        console.print(
            f"--seeds {seeds}: {folder} holds the seeds {there}, and this result is of all of them", soft_wrap=True
        )
    if scale == "smoke":
        console.print(
            "smoke scale: this shows that it runs; verdicts count at --scale paper, and hint at --scale small"
        )
    console.print(f"written to {folder / 'result.json'} and {folder / 'figures'}", soft_wrap=True)


@app.command()
def verify(
    write_errata: Annotated[
        Path | None, typer.Option(help="Also write the page of errata, for example to docs/errata.md.")
    ] = None,
) -> None:
    """Hold every theorem, lemma and equation of the papers against an independent route (seconds)."""
    from rich.table import Table
    from rich.text import Text

    from local_elasticity.certificates.verify import certificates, errata, measured
    from local_elasticity.store.whole import check_file, write_whole

    if write_errata:
        check_file(write_errata, "--write-errata")
    console, made = _console(), []
    for section, some in certificates():
        table = Table("statement", "checked against", "trials", "worst error", "verdict", title=section)
        for one in some:
            for row in measured(one):
                table.add_row(*row, style=None if one.green else "bold red")
            table.add_section()
        console.print(table)
        for one in some:
            if one.counterexample:
                console.print(Text.assemble((one.statement, "bold"), f": {one.counterexample}"))
        made.append((section, some))
    red = [one.statement for _, some in made for one in some if not one.green]
    total = sum(len(some) for _, some in made)
    if red:
        typer.echo(f"{len(red)} of {total} certificates are red: {'; '.join(red)}", err=True)
        raise typer.Exit(1)
    if write_errata:
        write_whole(write_errata, errata(made).encode(), "--write-errata")
    console.print(f"all {total} certificates are green: each statement has the verdict that its numbers support")


@app.command()
def watch(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINTS...", help="Files that hold a state_dict, or folders of them.")
    ],
    model: Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="What makes the model.")],
    data: Annotated[str, typer.Option(help="A dataset, as `data list` shows it, or an .npz file with x and y.")],
    loss: Annotated[str, typer.Option(help="cross_entropy, mse, half_mse, bce or bce_logits.")] = "cross_entropy",
    measure: Annotated[str, typer.Option(help="Names with commas between: kl,relative,kernel,stiffness_cos, …")] = "kl",
    per_class: Annotated[int, typer.Option(min=1, help="Sources of each class.")] = 20,
    step_size: Annotated[float, typer.Option(help="η of the probing step.")] = 1e-3,
    out: Annotated[Path, typer.Option(help="Folder for the history and the figure.")] = Path("watched"),
    device: Device = "cpu",
) -> None:
    """Local elasticity at saved checkpoints: the same history that a live monitor makes, after the fact."""
    from local_elasticity import SGD
    from local_elasticity.data.points import read_points
    from local_elasticity.outlook import check_checkpoints, check_step_size, made_model
    from local_elasticity.report.figures import save_figure
    from local_elasticity.training.checkpoints import watch as watch_checkpoints

    if (out / "history.zarr").exists():
        raise FileExistsError(f"--out: {out} holds a history already; choose another folder or remove it")
    net = made_model(model, device)
    check_step_size(step_size, net)
    check_checkpoints(checkpoints)
    x, y = read_points(data, per_class)
    monitor = watch_checkpoints(
        checkpoints,
        net,
        (x.to(device), y.to(device)),
        loss=loss,
        measures=tuple(name.strip() for name in measure.split(",")),
        update=SGD(step_size),
        store=out / "history.zarr",
    )
    console = _console()
    _print_frame(console, monitor.phases().round(4), "Phases")
    _print_frame(console, monitor.frame().round(4).tail(12), "The last class pairs")
    files = save_figure(monitor.plot(), out / "curves")
    console.print(f"{len(monitor.history)} probes; written to {out / 'history.zarr'} and {files[0]}", soft_wrap=True)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Stored similarities or histories, or folders of papers' results."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    examples: Annotated[
        Path | None,
        typer.Option(help="Pictures, vectors (.npy, or x of an .npz) or texts (.txt, a line each) of the sources."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Show results on one page that opens offline: matrix, examples, curves over training, clusters, papers' claims."""
    from local_elasticity.explorable.write import read_examples, write_report

    shown = None if examples is None else read_examples(examples)
    command = shlex.join(["local-elasticity", *sys.argv[1:]])
    verb = "replaced" if out.exists() else "wrote"
    page = write_report([str(run) for run in runs], out, examples=shown, title=title, command=command)
    typer.echo(f"{verb} {page} ({page.stat().st_size / 1e6:.1f} MB): open it in a browser")


@app.command()
def estimate(
    model: Annotated[
        str, typer.Option(metavar="MODULE:FACTORY", help="What makes the model; or fnn-40960, linear-…, resnet-…, cnn.")
    ],
    shape: Annotated[str, typer.Option(help="Of one input, with commas between.")] = "1,28,28",
    sources: Annotated[int, typer.Option(min=1, help="n")] = 60_000,
    targets: Annotated[int | None, typer.Option(min=1, help="m; by default the sources.")] = None,
    loss: Annotated[str, typer.Option(help="cross_entropy, mse, half_mse, bce or bce_logits.")] = "mse",
    landmarks: Annotated[int, typer.Option(min=1, help="For the plan that is linear in n.")] = 256,
    workers: Annotated[int, typer.Option(min=1, help="Cores or GPUs like the one that is measured on.")] = 8,
    device: Device = "cpu",
) -> None:
    """What a similarity matrix would take: a few small ones are timed here (about half a minute) and scaled up."""
    from rich.table import Table

    from local_elasticity.outlook import example_problem, outlook
    from local_elasticity.scale.cost import Cost

    problem, pair = example_problem(model, shape, loss, device)
    cost = Cost.measure(problem, pair)
    table = Table("plan", "pairs", "here", f"on {workers} like this", "on disk", title=f"{model}, {cost.engine}")
    for row in outlook(cost, sources, targets or sources, landmarks=landmarks, workers=workers):
        table.add_row(*row)
    console = _console()
    console.print(table)
    console.print(
        f"seconds = {cost.start:.2g} + {cost.per_source:.2g} n + {cost.per_target:.2g} m + {cost.per_pair:.2g} n m, "
        "fitted to responses of at most 256 × 1024 random inputs; docs/scale.md says what is assumed",
    )


@app.command(name="verify-store")
def verify_store(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A store that `le.similarity(..., store=PATH)` wrote.")],
) -> None:
    """Read every block of a stored similarity and compare it with the digest that was written with it."""
    from local_elasticity.store.result import verify

    found = verify(path)
    total = sum(len(blocks) for blocks in found.values())
    typer.echo(f"{len(found['finished'])} of {total} blocks are there and are what was written")
    for state in ("missing", "damaged"):
        if found[state]:
            typer.echo(f"{state}: {' '.join(map(str, found[state][:20]))}{' …' if len(found[state]) > 20 else ''}")
    if found["missing"] or found["damaged"]:
        typer.echo("the same le.similarity(..., store=PATH) computes what is missing or damaged")
        raise typer.Exit(1)


@data_app.command(name="list")
def list_data() -> None:
    """Which datasets are on this machine, and where."""
    from rich.table import Table

    from local_elasticity.data.images import FOLDER, available

    table = Table("dataset", "where")
    for name, place in available().items():
        table.add_row(name, place)
    console = _console()
    console.print(table)
    if not os.environ.get(FOLDER):
        console.print(f"Name a folder of .npz files in {FOLDER} to use your own copies.")


def _console() -> Any:
    """Prints what it is given as it stands: brackets and colons in a path or label are no markup and no emoji."""
    from rich.console import Console

    return Console(markup=False, emoji=False)


def _print_result(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    cells = Table("row", "column", "paper", "measured", "verdict", title=f"{result['experiment']} ({result['scale']})")
    for cell in result["cells"]:
        spread = f" ± {cell['sd']:.2g}" if cell["sd"] is not None else ""
        paper = "" if cell["paper"] is None else f"{cell['paper']:g}"
        measured = "" if cell["mean"] is None else f"{cell['mean']:.3g}{spread}"
        cells.add_row(cell["row"], cell["column"], paper, measured, cell["verdict"] or "")
    console.print(cells)
    for claim in result["claims"]:
        console.print(Text.assemble((claim["verdict"], "bold"), f": {claim['text']}\n  {claim['evidence']}"))


def _print_frame(console: Any, frame: Any, title: str) -> None:
    from rich.table import Table

    table = Table(*map(str, frame.columns), title=title)
    for row in frame.itertuples(index=False):
        table.add_row(*[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row])
    console.print(table)


def _sentence(error: Exception) -> str:
    """What went wrong on one line, and the file where the system names one."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).splitlines()) or type(error).__name__


def main() -> None:
    """Run the command; a user's mistake is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be no text in any encoding
    try:
        app()
    except Exception as error:
        if not isinstance(error, USERS_MISTAKES) and not (isinstance(error, TypeError) and ARGUMENT.match(str(error))):
            raise
        if "--verbose" in sys.argv or "-v" in sys.argv:
            raise
        typer.echo(f"error: {_sentence(error)}", err=True)
        sys.exit(USERS_MISTAKE)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
