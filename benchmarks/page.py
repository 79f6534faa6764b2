"""Put the measured figures into docs/performance.md, between its markers; what is not in a result file is not there.

    python benchmarks/page.py

A marker `<!-- verdicts: NAME -->` is followed by the rows of benchmarks/results/NAME.json: what was aimed at, what came
out, pass or miss. `<!-- seconds: NAME -->` is followed by the seconds of each way in an engines file, and
`<!-- kernels: NAME -->` by time, memory and error of the tools in a speed file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
MARKER = re.compile(r"<!-- (\w+): ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def updated(page: str) -> str:
    """The page with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        kind, name = match.groups()
        results = json.loads((HERE / "results" / f"{name}.json").read_text())
        return f"<!-- {kind}: {name} -->\n{TABLES[kind](results)}\n<!-- end -->"

    return MARKER.sub(table, page)


def verdicts(results: dict[str, Any]) -> str:
    rows = [
        [what, "" if math.isnan(value) else f"{value:.3g}", verdict] for what, value, verdict in results["verdicts"]
    ]
    return f"{_machine(results)}\n\n{_table(['aim', 'measured', ''], rows)}"


def seconds(results: dict[str, Any]) -> str:
    names = list(results["results"][0]["seconds"])
    rows = [
        [one["case"], *(f"{one['seconds'][name]:.3g}" for name in names), one["engine"]] for one in results["results"]
    ]
    return f"{_machine(results)}, seconds\n\n{_table(['case', *names, 'auto chose'], rows)}"


def kernels(results: dict[str, Any]) -> str:
    ways = ["ours", "neural-tangents", "opacus", "backpack", "torch.func"]
    rows = [[one["case"], *(_way(one.get(way)) for way in ways)] for one in results["kernels"]]
    return f"{_machine(results)}: seconds, GiB, error of a row\n\n{_table(['case', *ways], rows)}"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {"verdicts": verdicts, "seconds": seconds, "kernels": kernels}


def _way(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if "failed" in found:
        return "does not fit" if "fit" in found["failed"] else "not there"
    return f"{found['seconds']:.3g} s, {found['peak memory GiB']:.2f}, {found['error']:.0e}"


def _machine(results: dict[str, Any]) -> str:
    return f"{results['machine']}, torch {results['torch']}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
