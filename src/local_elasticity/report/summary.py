"""A run in a few sentences, for readers who do not know local elasticity."""

from __future__ import annotations

import numpy as np

from local_elasticity.measures.loss import LOSS
from local_elasticity.measures.registry import is_ratio, words_of
from local_elasticity.report.distance import MOST_PAIRS
from local_elasticity.report.embedding import Matched
from local_elasticity.report.examples import is_picture
from local_elasticity.report.pairs import Pairs, locality_of
from local_elasticity.report.run import Panel, Run, Side, in_order
from local_elasticity.report.words import number, percent
from local_elasticity.statistics.change_point import FEWEST
from local_elasticity.statistics.locality import LOCAL, Locality

CLUSTERS_NAMED = 12
"""Clusters whose sizes are listed."""

VERDICTS = {
    "local": "Learning is local.",
    "hardly local": "Learning is hardly local.",
    "not local": "Other classes move more than its own: learning is not local.",
    "no structure found": "Permuted classes give such a ratio too: no class structure was found.",
    "undecided": "Whether learning is local is undecided: more examples would narrow the interval.",
}
"""The sentence for each `Locality.verdict`."""


def tell(run: Run, panel: Panel, pairs: Pairs | None, half: float | None) -> list[str]:
    """What one measure found; `half` is the step by which half of the change to the late ratio had happened."""
    sentences = [
        f"One step was taken on each of {len(run.sources):,} examples, and {len(run.targets):,} predictions were read. "
        f"The number for a pair, {panel.measure}, says {panel.words or words_of(panel.measure)}."
    ]
    if not np.isfinite(panel.values).any():
        return [*sentences, "No pair could be resolved. The diagnostics say why."]
    if pairs is None:
        return [*sentences, "Classes are unknown, so pairs are not compared by class. Pass source_labels= for that."]
    if panel.measure == LOSS.name:
        return [*sentences, *_influence(panel, pairs)]
    local = False
    if len(pairs.classes) > 1:
        found = locality_of(run, panel) if is_ratio(panel.measure) else None
        local = found is not None and found.verdict == "local"
        sentences += [_within_and_between(pairs) if found is None else _locality(found), *_closest(pairs)]
    return [*sentences, *_development(panel, pairs, half, local=local)]


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
        f"Clusters found without the classes are right for {match.accuracy:.1%} of the examples once they are named "
        f"after them ({called}); {wrong} {'is' if wrong == 1 else 'are'} wrong.",
    ]


def tell_missing(run: Run) -> list[str]:
    """What the page would show of the examples, had it been given."""
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


def _influence(panel: Panel, pairs: Pairs) -> list[str]:
    """What a step does to the loss of others, by the signs of the medians."""
    values = panel.values[-1][np.isfinite(panel.values[-1])]
    told = [f"At the last matrix, {(values < 0).mean():.0%} of the pairs help: the step lowers the target's loss."]
    if len(pairs.classes) < 2:
        return told
    within, between = pairs.within[-1], pairs.between[-1]
    return [
        *told,
        f"The median change of the loss is {number(within)} within a class and {number(between)} between classes.",
    ]


def _within_and_between(pairs: Pairs) -> str:
    within, between = number(pairs.within[-1]), number(pairs.between[-1])
    return f"Pairs of one class have {within}, pairs of different classes {between} (medians)."


def _locality(found: Locality) -> str:
    text = (
        f"A step on one example moves other examples of its class {percent(found.within)} as far as itself, and "
        f"examples of other classes {percent(found.between)} (medians over pairs)."
    )
    if not np.isfinite(found.ratio):
        return text
    interval = f"95 % interval {number(found.low)} to {number(found.high)}"
    balanced = f"{number(found.balanced_low)} to {number(found.balanced_high)} where all classes count alike"
    baseline = f"{number(found.baseline)} with permuted classes, p = {found.p_value:.2g}"
    ratio = f"The ratio of the two is {number(found.ratio)} ({interval}; {balanced}; {baseline})."
    return f"{text} {ratio} {VERDICTS[found.verdict]}"


def _closest(pairs: Pairs) -> list[str]:
    found = pairs.closest()
    if not found or len(pairs.classes) < 3:
        return []
    named = ", ".join(f"{a} and {b} ({number(value)})" for a, b, value in found)
    return [
        f"Most alike to this network: {named}. In brackets: how far a step on one class moves the other, "
        "as a share of how far it moves its own."
    ]


def _development(panel: Panel, pairs: Pairs, half: float | None, *, local: bool) -> list[str]:
    """How the ratio changed; `local` says whether the last one supports that learning is local."""
    steps, ratio = panel.steps, pairs.ratio
    known = np.flatnonzero(np.isfinite(ratio))
    if len(steps) < 2 or len(known) < 2:
        return []
    first, last = known[0], known[-1]
    text = (
        f"the ratio of other classes to its own went from {number(ratio[first])} at step {steps[first]} to "
        f"{number(ratio[last])} at step {steps[last]}"
    )
    if len(known) < FEWEST:
        return [f"{text[0].upper()}{text[1:]}; {len(known)} probes are too few to conclude how learning developed."]
    if not local or ratio[last] >= LOCAL or ratio[last] >= ratio[first]:
        return [f"{text[0].upper()}{text[1:]}."]
    drop = "" if half is None or not np.isfinite(half) else f", and half of the drop had happened by step {half:.0f}"
    if ratio[first] < LOCAL:
        return [f"Learning was local from the first probe on, and became more so: {text}{drop}."]
    since = known[np.flatnonzero(ratio[known] >= LOCAL)[-1] + 1]
    return [f"Learning became local by step {steps[since]} (below {LOCAL} from there on): {text}{drop}."]
