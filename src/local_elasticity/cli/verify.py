"""`verify`: the theory, checked with independent methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from local_elasticity.cli.app import Json, Quiet, app, console, print_json

TALLY = {"holds": "supported", "holds with correction": "needs a correction", "false as printed": "false as printed"}
"""What the command calls a verdict, in the order of the tally."""


@app.command()
def verify(
    details: Annotated[bool, typer.Option("--details", help="Print every check and counterexample.")] = False,
    write_errata: Annotated[
        Path | None, typer.Option(help="Also write the page of errata, for example to docs/errata.md.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check every theorem, lemma and equation of He & Su and of Dan et al. with an independent method (seconds).

    What the emergence paper says is tested by its experiments: `local-elasticity list emergence2024`.
    """
    from local_elasticity.papers.certificates.verify import certificates, errata
    from local_elasticity.store.atomic import check_file, write_whole

    if write_errata:
        check_file(write_errata, "--write-errata")
    screen, made = console(quiet=quiet or json), []
    for section, some in certificates():
        if details:
            _print_details(screen, section, some)
        made.append((section, some))
    every = [one for _, some in made for one in some]
    red = [one.statement for one in every if not one.green]
    if json:
        print_json([_facts(section, one) for section, some in made for one in some])
    for section, some in made:
        screen.print(f"{section}: {_tally(some)}", soft_wrap=True)
    if red:
        typer.echo(f"{len(red)} of {len(every)} certificates are red: {'; '.join(red)}", err=True)
        raise typer.Exit(1)
    if write_errata:
        write_whole(write_errata, errata(made).encode(), "--write-errata")
    screen.print(
        f"All {len(every)} statements have the verdict that their numbers support: {_tally(every)}."
        + ("" if details else " Details: --details"),
        soft_wrap=True,
    )


def _tally(some: Any) -> str:
    """How many statements have each verdict."""
    verdicts = [str(one.verdict) for one in some]
    order = dict.fromkeys([*TALLY, *verdicts])
    return ", ".join(f"{TALLY.get(one, one)} {verdicts.count(one)}" for one in order if one in verdicts)


def _facts(section: str, one: Any) -> dict[str, Any]:
    return {
        "section": section,
        "paper": one.paper,
        "statement": one.statement,
        "says": one.says,
        "verdict": TALLY.get(str(one.verdict), str(one.verdict)),
        "green": one.green,
        "correction": one.correction,
        "counterexample": one.counterexample,
        "worst": max((check.worst for check in one.standing), default=None),
    }


def _print_details(screen: Any, section: str, some: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    from local_elasticity.papers.certificates.verify import measured

    table = Table("statement", "checked against", "trials", "worst error", "verdict", title=section)
    for one in some:
        for row in measured(one):
            table.add_row(*row, style=None if one.green else "bold red")
        table.add_section()
    screen.print(table)
    for one in some:
        if one.counterexample:
            screen.print(Text.assemble((one.statement, "bold"), f": {one.counterexample}"))
