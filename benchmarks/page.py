"""Put the measured figures into docs/performance.md, between its markers; what is not in a result file is not there.

    python benchmarks/page.py

A marker `<!-- verdicts: NAME -->` is followed by the rows of benchmarks/results/NAME.json: what was aimed at, what came
out, pass or miss. `<!-- seconds: NAME -->` is followed by the seconds of each way in an engines file, and
`<!-- kernels: NAME -->` by time, memory and error of the tools in a speed file. `<!-- modern: NAME -->` is followed by
the networks of a modern file; docs/pictures/NAME.svg shows the same. `<!-- small: NAME -->` is followed by a CPU's.
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
    """The page with every marked table made again."""

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


def modern(results: dict[str, Any]) -> str:
    head = [
        "network",
        "loop, s",
        "auto, s",
        "first call, s",
        "loop / auto",
        "aim",
        "linearized, s",
        "with AdamW",
        "worst pair",
        "median",
    ]
    rows = []
    for name, found in results["networks"].items():
        aim = AIMS.get(name)
        measured = [f"{found[key]:.3g}" for key in ("loop_s", "auto_s", "first_s", "loop / auto")]
        errors = [f"{found[key]:.0e}" for key in ("worst", "median")]
        adamw = f"{found['adamw']['loop / auto']:.3g}" if "adamw" in found else ""
        aim = "" if aim is None else f"{aim:g}"
        rows.append([name, *measured, aim, f"{found['linearized_s']:.3g}", adamw, *errors])
    return f"{results['machine']}, torch {results['versions']['torch']}\n\n{_table(head, rows)}"


def small(results: dict[str, Any]) -> str:
    head = ["network", "good loop, s", "naive loop, s", "auto, s", "naive / auto", "aim", "auto chose"]
    rows = []
    for name, found in results["networks"].items():
        measured = [f"{found[key]:.3g}" for key in ("loop_s", "naive_s", "auto_s", "naive / auto")]
        rows.append([name, *measured, "1.2" if name.startswith(("ViT", "GPT")) else "0.95", found["engine"]])
    return f"{results['machine']}, torch {results['versions']['torch']}\n\n{_table(head, rows)}"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "verdicts": verdicts,
    "seconds": seconds,
    "kernels": kernels,
    "modern": modern,
    "small": small,
}

AIMS = {
    "ResNet-50": 1.7,
    "ViT-B/16": 2,
    "ConvNeXt-T": 2,
    "EfficientNet-B0": 2,
    "MobileNetV3-S": 4,
    "ViT-tiny, CIFAR": 10,
    "GPT-2 124M": 4,
    "BERT-base": 5,
    "Llama 30M": 8,
}
"""How many times as fast as a good loop `auto` is meant to be."""


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


def chart(results: dict[str, Any], path: Path) -> None:
    """How many times as fast as a good loop `auto` is on each network, and what was aimed at."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = path.name
    from matplotlib import pyplot as plt

    networks = list(results["networks"].items())[::-1]
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(networks) + 1.2), layout="constrained")
    places = range(len(networks))
    axes.hlines(places, 1, [found["loop / auto"] for _, found in networks], color="#9ab8d4", linewidth=6)
    axes.plot([found["loop / auto"] for _, found in networks], places, "o", color="#1f5f99", label="measured")
    axes.plot([AIMS[name] for name, _ in networks], places, "|", color="#b3541e", markersize=14, label="aim")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(places, [name for name, _ in networks])
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_xlabel("times as fast as a good hand-written loop")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
    for name in MARKER.findall(PAGE.read_text()):
        if name[0] == "modern":
            found = json.loads((HERE / "results" / f"{name[1]}.json").read_text())
            chart(found, PAGE.parent / "pictures" / f"{name[1]}.svg")
