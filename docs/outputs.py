"""Run the Python blocks of pages and put what they print, and the figures that they end with, below them.

    python docs/outputs.py docs/tutorial.md docs/how-to/influence.md
    python docs/outputs.py                  # every page that shows outputs

The blocks of a page run one after another in one namespace, in an empty folder. What a block prints follows it in a
block of the language `output`. Where the last line is an expression that gives a Matplotlib figure, a picture follows.
Readers of the repository see the same as readers of the site, and building the site runs nothing.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures" / "outputs"
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```output\n(?P<shown>.*?)^```\n)?(?:\n!\[(?P<words>[^\]]*)\]\((?P<file>[^)]*outputs/[^)]*)\)\n)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
CLOSE, NEAR_ZERO = 0.05, 0.02
"""How far a number may be from the one that a page shows: a share of it, or so much."""


@dataclass(frozen=True)
class Block:
    """A block of a page after it ran: where it is in the text, what it printed, the figure that it ended with."""

    found: re.Match[str]
    printed: str
    figure: Any


def run(text: str, names: dict[str, Any]) -> Iterator[Block]:
    """The blocks of a page, run one by one; `names` is what they leave."""
    for found in BLOCK.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            last = execute(found["code"], names)
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        yield Block(found, "\n".join(lines).rstrip(), last if hasattr(last, "savefig") else None)


def execute(code: str, names: dict[str, Any]) -> Any:
    """Run code; the value of its last line where that is an expression."""
    lines = ast.parse(code)
    last = lines.body.pop() if lines.body and isinstance(lines.body[-1], ast.Expr) else None
    exec(compile(lines, "page", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "page", "eval"), names)


def shows_outputs(text: str) -> bool:
    return "\n```output\n" in text


def updated(page: Path) -> str:
    """The page with all outputs made again; pictures are written beside the others."""
    text, pieces, at, pictures = page.read_text(), [], 0, 0
    for block in run(text, {}):
        pieces += [text[at : block.found.start()], f"```python\n{block.found['code']}```\n"]
        if block.printed:
            pieces.append(f"\n```output\n{block.printed}\n```\n")
        if block.figure is not None:
            pictures += 1
            file = PICTURES / f"{page.stem}-{pictures}.png"
            file.parent.mkdir(exist_ok=True)
            block.figure.savefig(file, dpi=160, metadata={"Software": None})
            where = Path(os.path.relpath(file, page.parent)).as_posix()
            pieces.append(f"\n![{block.found['words'] or 'The figure that the code above draws'}]({where})\n")
        at = block.found.end()
    return "".join([*pieces, text[at:]])


def agree(shown: str, printed: str) -> bool:
    """Whether two outputs say the same: equal words, and numbers that are close. Seconds may differ."""
    timed = re.compile(rf"{NUMBER.pattern} (?:s|ms)\b")
    shown, printed = (" ".join(timed.sub("", text).split()) for text in (shown, printed))
    if NUMBER.split(shown) != NUMBER.split(printed):
        return False
    pairs = zip(map(float, NUMBER.findall(shown)), map(float, NUMBER.findall(printed)), strict=True)
    return all(abs(one - other) <= max(CLOSE * abs(one), NEAR_ZERO) for one, other in pairs)


def main() -> None:
    given = [Path(name).resolve() for name in sys.argv[1:]]
    pages = given or [page for page in sorted(DOCS.rglob("*.md")) if shows_outputs(page.read_text())]
    for page in pages:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            page.write_text(updated(page))


if __name__ == "__main__":
    main()
