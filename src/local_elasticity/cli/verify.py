"""`verify`: the theory checked against independent routes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from local_elasticity.cli.app import app, console


@app.command()
def verify(
    write_errata: Annotated[
        Path | None, typer.Option(help="Also write the page of errata, for example to docs/errata.md.")
    ] = None,
) -> None:
    """Hold every theorem, lemma and equation of the papers against an independent route (seconds)."""
    from rich.table import Table
    from rich.text import Text

    from local_elasticity.papers.certificates.verify import certificates, errata, measured
    from local_elasticity.store.atomic import check_file, write_whole

    if write_errata:
        check_file(write_errata, "--write-errata")
    screen, made = console(), []
    for section, some in certificates():
        table = Table("statement", "checked against", "trials", "worst error", "verdict", title=section)
        for one in some:
            for row in measured(one):
                table.add_row(*row, style=None if one.green else "bold red")
            table.add_section()
        screen.print(table)
        for one in some:
            if one.counterexample:
                screen.print(Text.assemble((one.statement, "bold"), f": {one.counterexample}"))
        made.append((section, some))
    red = [one.statement for _, some in made for one in some if not one.green]
    total = sum(len(some) for _, some in made)
    if red:
        typer.echo(f"{len(red)} of {total} certificates are red: {'; '.join(red)}", err=True)
        raise typer.Exit(1)
    if write_errata:
        write_whole(write_errata, errata(made).encode(), "--write-errata")
    screen.print(f"all {total} certificates are green: each statement has the verdict that its numbers support")
