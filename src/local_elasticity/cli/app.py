"""The command: its options, and what all commands share. Everything heavy is imported inside the commands, so that
`--help` answers at once."""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import sys
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="local-elasticity",
    help="If a network took one step on this example, whose predictions would move, and how far?",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
INTERRUPTED = 130
USERS_MISTAKE = 2
PIPED_WIDTH = 200
"""Columns where the output is no terminal, so that a program reads whole lines."""
USERS_MISTAKES = (ValueError, OSError, ImportError)
"""An OSError is a file that cannot be read or written; an ImportError is an extra that is not installed."""

ARGUMENT = re.compile(r"[a-zA-Z_-]+: ")
"""How a TypeError of ours begins: with the argument that is wrong."""

SAID_IN_PYTHON = (
    ('pass update=le.SGD("auto") or approximate=True', "pass --step-size auto"),
    ("; to measure this very step, ignore le.LargeStepWarning", ""),
    ("update: the step is", "--step-size: the step is"),
    ('take le.SGD("auto")', "pass --update sgd --step-size auto"),
    ('le.SGD("auto") takes', "--step-size auto takes"),
    ("virtual=steps, max_virtual=steps", "pass --virtual as large as --steps"),
    ("Allow more with max_virtual=, or compare with all steps by simulate=True", "Take fewer, or all of --steps"),
    ("pass targets=(inputs, labels)", "add them (y)"),
    ('measure="relative" reads the logits', "--measure relative reads the logits"),
    ("measure in float64, problem.to(torch.float64)", "measure in float64, with a --model that ends with .double()"),
)
"""What messages advise in Python, and what it is here."""


def _device(name: str) -> str:
    from local_elasticity.checks import check_device

    check_device(name, "--device")
    return name


def choices(*names: str) -> dict[str, Any]:
    """Options of `typer.Option` that show the choices in the help, and complete them in a shell.

    >>> choices("sgd", "adam")["metavar"]
    '[sgd|adam]'
    """
    return {"metavar": f"[{'|'.join(names)}]", "autocompletion": lambda: list(names)}


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors; what is written is written.")]

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
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


def console(*, quiet: bool = False) -> Any:
    """Prints what it is given as it stands: brackets and colons in a path or label are no markup and no emoji. In a
    pipe it draws no boxes and breaks no lines; `quiet`, it prints nothing."""
    from rich.console import Console
    from rich.table import Table

    class Plain(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            if not self.is_terminal:
                for table in objects:
                    if isinstance(table, Table):
                        table.box = None
            super().print(*objects, **options)

    piped = not sys.stdout.isatty()
    return Plain(markup=False, emoji=False, quiet=quiet, width=PIPED_WIDTH if piped else None)


def as_typed() -> str:
    """The command that runs, as pages quote it."""
    return shlex.join(["local-elasticity", *sys.argv[1:]])


def print_json(content: Any) -> None:
    """JSON on stdout; numbers that JSON does not know are null."""
    import json

    from local_elasticity.report.payload import as_json

    typer.echo(json.dumps(json.loads(as_json(content)), ensure_ascii=False, indent=1))


def print_frame(to: Any, frame: Any, title: str) -> None:
    from rich.table import Table

    table = Table(*map(str, frame.columns), title=title)
    for row in frame.itertuples(index=False):
        table.add_row(*[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row])
    to.print(table)


def in_options(message: str) -> str:
    """A message on one line, in terms of the options of the command that runs instead of Python's arguments.

    >>> in_options("the steps are small; take a larger step, or\\nmeasure in float64, problem.to(torch.float64)")
    'the steps are small; take a larger step, or measure in float64, with a --model that ends with .double()'
    """
    words = " ".join(message.split())
    for python, option in SAID_IN_PYTHON:
        words = words.replace(python, option)
    name, colon, rest = words.partition(": ")
    option = f"--{name.replace('_', '-')}"
    return f"{option}{colon}{rest}" if colon and option in _options() else words


def _options() -> set[str]:
    """The long options of the command that runs."""
    group = typer.main.get_command(app)
    several = [group.commands[word] for word in sys.argv[1:] if word in group.commands][:1]  # type: ignore[attr-defined]
    return {option for one in several for param in one.params for option in param.opts if option.startswith("--")}


class _OneLine(logging.Formatter):
    """What is logged, as a command says it."""

    def format(self, record: logging.LogRecord) -> str:
        return in_options(super().format(record)) if record.exc_info is None else super().format(record)


def _sentence(error: Exception) -> str:
    """What went wrong on one line, and the file where the system names one."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return in_options(str(error)) or type(error).__name__


def main() -> None:
    """Run the command; a user's mistake is one line and exit status 2."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as cron jobs and daemons may do
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
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
