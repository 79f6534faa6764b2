"""A run in a few sentences, for readers who do not know local elasticity."""

from __future__ import annotations

import numpy as np

from local_elasticity.measures.registry import known_measure, words_of
from local_elasticity.report.distance import MOST_PAIRS
from local_elasticity.report.embedding import Matched
from local_elasticity.report.examples import is_picture
from local_elasticity.report.front import Front
from local_elasticity.report.kinds import CHANGE
from local_elasticity.report.listed import LISTED_EXAMPLES
from local_elasticity.report.run import Panel, Run, Side, in_order
from local_elasticity.words import percent

CLUSTERS_NAMED = 12
"""Clusters whose sizes are listed."""


def tell(run: Run, panel: Panel, front: Front) -> list[str]:
    """What was measured, and what the first screen says of it."""
    words = panel.words or words_of(panel.measure)
    if front.kind == "change":
        words = f"how much {panel.measure.removeprefix(CHANGE)} differs, after − before"
    known = known_measure(panel.measure.removeprefix(CHANGE))
    done = (
        f"One step was taken on each of {len(run.sources):,} examples, and {len(run.targets):,} predictions were read."
        if known is None or known.needs == "response"
        else f"{len(run.sources):,} sources were compared with {len(run.targets):,} targets; no step was taken."
    )
    sentences = [f"{done} The number for a pair, {panel.measure}, says {words}."]
    if front.order > 1:
        sentences.append(
            f"{panel.measure} grows with the square of a change, so the page shows its root, √{panel.measure}: 50 % is "
            "half as far."
        )
    if run.marked:
        sentences.append(
            f"For {len(run.marked)} {'pair' if len(run.marked) == 1 else 'pairs'}, the change of each token's "
            "log-probability was measured: see Tokens."
        )
    return [*sentences, front.headline, *front.evidence, *front.more, *front.named.sentences]


def tell_clusters(side: Side, match: Matched | None) -> list[str]:
    """How large clusters are, and how well they agree with the classes."""
    if side.clusters is None:
        return []
    names, counts = np.unique(side.clusters, return_counts=True)
    size = dict(zip(names, counts, strict=True))
    listed = ", ".join(f"cluster {name} with {size[name]:,}" for name in in_order(list(names))[:CLUSTERS_NAMED])
    more = f" and {len(names) - CLUSTERS_NAMED} more" if len(names) > CLUSTERS_NAMED else ""
    sizes = f"{len(side):,} examples fall into {len(names)} clusters: {listed}{more}."
    if match is None:
        return [sizes]
    wrong = int(match.wrong.sum())
    called = ", ".join(f"cluster {cluster} is {name}" for cluster, name in match.names.items())
    return [
        sizes,
        f"Each cluster is matched with a class ({called}). The match is right for {percent(match.accuracy)} of the "
        f"examples; {wrong} {'is' if wrong == 1 else 'are'} wrong.",
    ]


def tell_content(run: Run) -> str:
    """What a page with this run contains of the user's data."""
    sides = (run.sources,) if run.square else (run.sources, run.targets)
    texts = [one for side in sides for one in side.examples or ()]
    kept = [one for one in texts if one]
    pictures = sum(is_picture(one) for one in kept)
    vectors = sum(one.startswith("[") for one in kept)
    counts = {"pictures": pictures, "vectors": vectors, "texts": len(kept) - pictures - vectors}
    named = [f"{count:,} {word}" for word, count in counts.items() if count]
    marked = len({one.target for one in run.marked})
    named += [f"the tokens of {marked} {'text' if marked == 1 else 'texts'}"] * bool(marked)
    lists = [panel.listed for panel in run.panels if panel.listed and len(panel.listed.sources) > len(run.sources)]
    more = max((min(LISTED_EXAMPLES, len(one.used)) for one in lists if one.sources.examples is not None), default=0)
    named += [f"up to {more} more in the lists of helpers and harmers"] * bool(more)
    classes = run.classes
    labels = "no class labels" if classes is None else f"the labels of {len(classes):,} classes"
    return f"{' and '.join(named) or 'no examples'}, {labels}, {len(run.sources):,} × {len(run.targets):,} similarities"


def tell_missing(run: Run, *, left_out: bool = False) -> list[str]:
    """What the page would show of the examples, had it been given; `left_out` where examples were not wanted."""
    if left_out:
        return ["Examples are left out of this page on request."]
    if run.sources.examples is None or run.targets.examples is None:
        whose = " for the targets" if run.sources.examples is not None else ""
        return [
            f"No examples were given{whose}, so pairs have numbers but no pictures; give examples= to le.similarity or "
            "le.write_report, or --examples to the command."
        ]
    drawn = any(is_picture(one) or one.startswith("[") for one in run.sources.examples)
    if drawn and run.apart is None:
        return [
            "Distances between the examples are not known: what is kept of an example is too short for them, and those "
            f"of the whole ones are kept only where all are of one shape and up to {MOST_PAIRS:,} pairs."
        ]
    return []
