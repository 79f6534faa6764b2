"""`report`: results on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli.app import Quiet, app, as_typed


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
    no_examples: Annotated[
        bool, typer.Option("--no-examples", help="Leave out all examples, also those that results carry.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Show results on one page that opens offline: matrix, examples, curves over training, clusters, papers' claims."""
    from local_elasticity.report.write import read_examples, write_report

    if no_examples and examples is not None:
        raise ValueError("--no-examples: it leaves out what --examples names; give one of them")
    if not out.parent.is_dir() and not out.parent.exists():
        raise FileNotFoundError(f"--out: there is no folder {out.parent}; make it first, or choose another")
    shown = False if no_examples else None if examples is None else read_examples(examples)
    verb = "replaced" if out.exists() else "wrote"
    page = write_report([str(run) for run in runs], out, examples=shown, title=title, command=as_typed())
    if not quiet:
        typer.echo(f"{verb} {page} ({page.stat().st_size / 1e6:.1f} MB): open it in a browser")
