"""Fill the pages of docs/api: a table of names with one sentence each, and what Sphinx reads their docstrings from.
Also the table of functions that the structured engine supports.

    python docs/reference.py

A page lists names by hand, `<!-- names: MODULE: NAME NAME ... -->`; what follows up to `<!-- end -->` is written here,
and so is what follows `<!-- functions -->`.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

API = Path(__file__).parent / "api"
STRUCTURED = Path(__file__).parent / "how-to" / "structured.md"
MARKER = re.compile(r"<!-- names: (\S+): (.*?) -->\n.*?<!-- end -->", re.DOTALL)
FUNCTIONS = re.compile(r"<!-- functions -->\n.*?<!-- end -->", re.DOTALL)
KINDS = {
    "elementwise": "elementwise functions",
    "layers": "layers with weights",
    "products": "products, softmax, attention, norms",
    "shapes": "joining, writing, pooling by maximum",
    "linear": "moving, gathering, averaging",
    "composed": "composed of other functions",
    "in place": "in place",
}
"""How the page calls the kinds of `readable`."""


def pages() -> list[Path]:
    """The pages that are filled."""
    return [*sorted(API.glob("*.md")), STRUCTURED]


def updated(page: str) -> str:
    """The page with every marked list made again."""
    return FUNCTIONS.sub(functions(), MARKER.sub(listed, page)) if FUNCTIONS.search(page) else MARKER.sub(listed, page)


def functions() -> str:
    """A table of the functions that `Structured` supports."""
    found = import_module("local_elasticity.engine.structured").readable()
    rows = [f"| {KINDS[kind]} | {', '.join(f'`{name}`' for name in names)} |" for kind, names in found.items()]
    return "\n".join(["<!-- functions -->", "", "| | functions |", "|---|---|", *rows, "<!-- end -->"])


def listed(found: re.Match[str]) -> str:
    place, names = found[1], found[2].split()
    things = {name: getattr(import_module(place), name) for name in names}
    rows = [f"| [`{name}`](#{place}.{name}) | {sentence(place, name, thing)} |" for name, thing in things.items()]
    table = "\n".join(["| name | what it is |", "|---|---|", *rows])
    entries = "\n".join(entry(place, name, thing) for name, thing in things.items())
    return f"<!-- names: {place}: {found[2]} -->\n{table}\n\n```{{eval-rst}}\n{entries}\n```\n<!-- end -->"


def entry(place: str, name: str, thing: Any) -> str:
    """What Sphinx reads one name's signature and docstring from."""
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
        return f".. auto{kind}:: {place}.{name}"
    if inspect.isfunction(thing):
        return f".. autofunction:: {place}.{name}"
    return f".. py:data:: {place}.{name}\n\n   {sentence(place, name, thing)}.\n"


def sentence(place: str, name: str, thing: Any) -> str:
    """The first sentence of a docstring; for data, of the string below their assignment."""
    text = thing.__doc__ if inspect.isclass(thing) or inspect.isfunction(thing) else below(place, name)
    first = re.split(r"(?<=[.!?])\s|\n\s*\n|:\n| \(He & Su", inspect.cleandoc(text or ""), maxsplit=1)[0]
    return re.sub(r"\s+", " ", first).rstrip(".:").replace("|", r"\|")


def below(place: str, name: str) -> str | None:
    """The string below an assignment, wherever in the package the name is assigned."""
    package = Path(str(import_module(place.split(".")[0]).__file__)).parent
    for file in sorted(package.rglob("*.py")):
        found = re.search(rf'^{name}\b[^\n]*=.*?^"""(.*?)"""', file.read_text(), re.MULTILINE | re.DOTALL)
        if found:
            return found[1]
    return None


if __name__ == "__main__":
    for page in pages():
        page.write_text(updated(page.read_text()))
