"""Fill the pages of docs/api: a table of names with one sentence each, and what Sphinx reads their docstrings from.

    python docs/reference.py

A page lists names by hand, `<!-- names: MODULE: NAME NAME ... -->`; what follows up to `<!-- end -->` is written here.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

API = Path(__file__).parent / "api"
MARKER = re.compile(r"<!-- names: (\S+): (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def updated(page: str) -> str:
    """The page with every marked list made again."""
    return MARKER.sub(listed, page)


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
    for page in sorted(API.glob("*.md")):
        page.write_text(updated(page.read_text()))
