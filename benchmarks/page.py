"""Put the measured figures into docs/performance.md and docs/compared.md, between their markers, and draw the charts.

    python benchmarks/page.py

A marker `<!-- measured: NAME -->` is followed by the rows of benchmarks/results/NAME.json, `<!-- seconds: NAME -->` by
the seconds of each way in an engines file, `<!-- kernels: NAME -->` by time, memory and error of the tools in a speed
file, `<!-- modern: NAME -->` and `<!-- small: NAME -->` by the networks of a modern file, and `<!-- tracin: NAME -->`
by the tools of a tracin file. What no result file holds is not on the pages; tools that did not run are left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = (DOCS / "performance.md", DOCS / "compared.md")
MARKER = re.compile(r"<!-- (\w+): ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def updated(page: str) -> str:
    """The page with every marked table made again."""

    def table(match: re.Match[str]) -> str:
        kind, name = match.groups()
        return f"<!-- {kind}: {name} -->\n{TABLES[kind](_results(name))}\n<!-- end -->"

    return MARKER.sub(table, page)


AIM = re.compile(r"[,:]? (?:at least|at most|within a factor of|under) [^,:]*$")
UNITS = {
    "closed form under a second": "closed form, seconds",
    "design II under 15 s of one core": "design II, seconds of one core",
    "11769 images, 40960 units, landmarks: at most 300 s": "11769 images, 40960 units, landmarks, seconds",
    "60000 images, 40960 units, landmarks: at most 60 s": "60000 images, 40960 units, landmarks, seconds",
}
"""Rows of result files that need more than their aim taken off."""


def measured(results: dict[str, Any]) -> str:
    known = [(what, value) for what, value, _ in results["verdicts"] if not math.isnan(value)]
    rows = [[UNITS.get(what) or AIM.sub("", what), f"{value:.3g}"] for what, value in known]
    return f"{_machine(results)}\n\n{_table(['what', 'measured'], rows)}"


def seconds(results: dict[str, Any]) -> str:
    names = list(results["results"][0]["seconds"])
    rows = [
        [one["case"], *(f"{one['seconds'][name]:.3g}" for name in names), one["engine"]] for one in results["results"]
    ]
    return f"{_machine(results)}, seconds\n\n{_table(['case', *names, 'auto chose'], rows)}"


def kernels(results: dict[str, Any]) -> str:
    ways = [way for way in KERNEL_WAYS if any("seconds" in one.get(way, {}) for one in results["kernels"])]
    rows = [[one["case"], *(_way(one.get(way)) for way in ways)] for one in results["kernels"]]
    return f"{_machine(results)}: seconds, GiB, error of a row\n\n{_table(['case', *ways], rows)}"


def modern(results: dict[str, Any]) -> str:
    head = [
        "network",
        "loop, s",
        "auto, s",
        "first call, s",
        "loop / auto",
        "linearized, s",
        "with AdamW",
        "worst pair",
        "median",
    ]

    def told(found: dict[str, Any], key: str, form: str) -> str:
        return format(found[key], form) if key in found else ""

    rows = []
    for name, found in results["networks"].items():
        seconds = [told(found, key, ".3g") for key in ("loop_s", "auto_s", "first_s", "loop / auto", "linearized_s")]
        adamw = told(found.get("adamw", {}), "loop / auto", ".3g")
        rows.append([name, *seconds, adamw, *(told(found, key, ".0e") for key in ("worst", "median"))])
    return f"{results['machine']}, torch {results['versions']['torch']}\n\n{_table(head, rows)}"


def small(results: dict[str, Any]) -> str:
    head = ["network", "good loop, s", "naive loop, s", "passes alone, s", "auto, s", "naive / auto"]
    rows = []
    for name, found in results["networks"].items():
        measured = [f"{found[key]:.3g}" for key in ("loop_s", "naive_s", "passes_s", "auto_s", "naive / auto")]
        rows.append([name, *measured])
    return f"{results['machine']}, torch {results['versions']['torch']}\n\n{_table(head, rows)}"


def tracin(results: dict[str, Any]) -> str:
    names = {
        way: f"{way} {results['versions'].get(way, '')}".strip() for case in results["cases"].values() for way in case
    }
    rows = [
        [case, *(f"{found[way]['seconds']:.3g} s, {found[way]['error']:.0e}" if way in found else "" for way in names)]
        for case, found in results["cases"].items()
    ]
    about = f"{results['machine']}, torch {results['torch']}; {results['job']}: seconds, error of the worst row"
    return f"{about}\n\n{_table(['network', *names.values()], rows)}"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "measured": measured,
    "seconds": seconds,
    "kernels": kernels,
    "modern": modern,
    "small": small,
    "tracin": tracin,
}

KERNEL_WAYS = ("ours", "neural-tangents", "opacus", "backpack", "torch.func")


def _way(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if "failed" in found:
        return "does not fit" if "fit" in found["failed"] else ""
    return f"{found['seconds']:.3g} s, {found['peak memory GiB']:.2f}, {found['error']:.0e}"


def _machine(results: dict[str, Any]) -> str:
    return f"{results['machine']}, torch {results['torch']}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


OURS = "local_elasticity"
COLOURS = {
    OURS: "#0072B2",
    "careful loop": "#D55E00",
    "naive loop": "#F0E442",
    "loop as the papers' code": "#E69F00",
    "neural-tangents": "#009E73",
    "opacus": "#CC79A7",
    "backpack": "#56B4E9",
    "torch.func": "#999999",
}
Bars = dict[str, dict[str, float]]
"""Seconds by job and tool."""


def responses(device: str) -> Bars:
    """One exact step on each example, all pairs: the loops of the papers and of a careful researcher, and ours; then
    modern networks, those that nothing was tuned for last."""
    rows = _results(f"engines-{device}")["results"]
    names = {"released": "loop as the papers' code", "good": "careful loop", "auto": OURS}
    bars = {one["case"]: {name: one["seconds"][key] for key, name in names.items()} for one in rows}
    loops = {"loop_s": "careful loop", "naive_s": "naive loop", "auto_s": OURS}
    for file in ("modern-cpu",) if device == "cpu" else ("modern-cuda", "unseen-cuda"):
        for name, one in _results(file)["networks"].items():
            if "loop_s" in one:
                job = name.replace("100 000", "100 000 parameters")
                bars[job] = {tool: one[key] for key, tool in loops.items() if key in one}
    return bars


def tangent_kernels(device: str) -> Bars:
    rows = _results(f"speed-{device}")["kernels"]
    return {
        one["case"]: {
            OURS if way == "ours" else way: one[way]["seconds"] for way in KERNEL_WAYS if "seconds" in one.get(way, {})
        }
        for one in rows
    }


def chart(device: str, path: Path) -> None:
    """Seconds on a logarithmic axis, a group of bars for each job, a colour for each tool."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": path.name, "font.size": 8, "svg.fonttype": "none"})
    from matplotlib import pyplot as plt

    parts = {
        "one exact step on each example, all pairs": responses(device),
        "neural tangent kernel, all pairs": tangent_kernels(device),
    }
    counts = [sum(len(bars) + 1 for bars in jobs.values()) for jobs in parts.values()]
    figure, panels = plt.subplots(
        2, 1, figsize=(7, 0.135 * sum(counts) + 1.4), height_ratios=counts, layout="constrained"
    )
    tools = {tool for jobs in parts.values() for bars in jobs.values() for tool in bars}
    colours = {tool: colour for tool, colour in COLOURS.items() if tool in tools}
    for axes, (title, jobs) in zip(panels, parts.items(), strict=True):
        _bars(axes, jobs, colours)
        axes.set_title(title, loc="left", fontsize=9)
    panels[-1].set_xlabel("seconds (logarithmic), shorter is faster")
    handles = [mpl.patches.Patch(color=colour, label=tool) for tool, colour in colours.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _bars(axes: Any, jobs: Bars, colours: dict[str, str]) -> None:
    place, ticks = 0.0, []
    for job, bars in jobs.items():
        ticks.append((place + (len(bars) - 1) / 2, job))
        for tool, taken in sorted(bars.items(), key=lambda one: one[1]):
            axes.barh(place, taken, color=colours[tool], height=0.9)
            axes.text(taken * 1.08, place, f"{taken:.2g} s", va="center", fontsize=6)
            place += 1
        place += 0.8
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.set(xscale="log", ylim=(place - 1, -0.8))
    axes.set_xlim(min(min(bars.values()) for bars in jobs.values()) / 2, axes.get_xlim()[1] * 2)
    axes.spines[["top", "right"]].set_visible(False)


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(updated(page.read_text()))
    for device in ("cpu", "cuda"):
        chart(device, DOCS / "pictures" / f"performance-{device}.svg")
