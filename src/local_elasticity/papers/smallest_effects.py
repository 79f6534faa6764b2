"""Every threshold that a verdict rests on, with its reason: the paper's words, or the smallest effect that counts."""

from __future__ import annotations

from local_elasticity.statistics.claims import Effect

ANY = Effect(0.0, "the sentence names a direction and no size")
ANY_RATIO = Effect(1.0, "the sentence names a direction and no size")

ELEVEN_RANKS = 0.009
"""The smallest change of a rank correlation of eleven values."""

EXAMPLE = 0.1
"""Points of accuracy that one example of 1000 makes: the resolution of a cell of the clustering tables."""

ALIKE_POINTS = Effect(
    2.0, "two points, the tolerance within which a cell of the tables agrees; 'very similar behaviors' (fn. 3)"
)
IMPORTANT_POINTS = Effect(2.0, "'important' (A.4) implies a size: more than two points, within which cells agree")
CRUCIAL_POINTS = Effect(5.0, "'crucial' (A.4) implies a size; the paper's own choices differ by 25 and 21 points")
LOCAL_CORRELATION = Effect(-0.8, "'monotonic' (Fig. 1): a straight line explains 64 % of the variance; printed: −0.92")
WEAKER_CORRELATION = Effect(0.2, "'no monotonic relationship is found' (Fig. 1 c): printed gaps are 0.49 and 0.78")
LINEAR_CORRELATION = Effect(
    -0.9, "'linearly' (Fig. 5 a): a straight line explains 81 % of the variance; printed: −0.97"
)
ONE_PERCENT = Effect(0.01, "'≈' (§5): one percent")
HALF = Effect(0.5, "a coin flip: half of the updates")
CONSTANT = Effect(1.25, "'relatively constant' (§2.1): within 25 % of where it began, either way")
MUCH_BEFORE = Effect(0.5, "'much before' (§6): in at most half of the steps")
SAME_NORMS = Effect(0.1, "'essentially indistinguishable' (§2): at most 10 % apart at every pair and time")
NEAR_ONE = Effect(0.05, "'1.00' as read off Figs. 1, 2 and 14: within 5 %")
DOWNWARD = Effect(0.0, "'downward trend' (after Hypothesis 1.1) names a direction and no size")
ORDER_KEPT = Effect(0.5, "the order of the sources is kept: a rank correlation of one half")
MOST_SOURCES = Effect(0.5, "most sources: more than half")
NOT_FALLING = Effect(0.95, "'non-decreasing' (Hypothesis 1.2b): it falls by less than 5 %")
FLOW_CLOSE = Effect(0.1, "hardly depends on the rate: median relative difference below 10 %")
ALL_THREE = Effect(2.5, "all three of the paper's classes: between two and three")
UNEXPLAINED = Effect(0.01, "theory gives the curve: at most 1 % of the variance is left over")
CURVES_ALIKE = Effect(
    0.05, "'emergence condition … are identical' (abstract): rise curves within a twentieth of their range"
)
TENTH = Effect(1.1, "a tenth: to within it either way, or by more than it")
NO_RISE = Effect(
    0.02, "a change of Recall@1 or accuracy below 0.02 is none: one standard error at 400 points a class is 0.016"
)
NULL_SHARE = Effect(0.1, "a control shows less than a tenth of the true effect")
KERNEL_RECALL = Effect(0.03, "the same Recall@1: within 0.03, two standard errors at 400 points a class")
EXPONENT = Effect(0.1, "an exponent is the predicted one within 0.1")
AT_MOST_ONE = Effect(1.0, "a bound holds where the ratio is at most 1")
TIGHT = Effect(0.5, "of the right size: never more than twice what it bounds")
VISIBLY = Effect(1.05, "visibly: by more than 5 %")
TWICE = Effect(2.0, "at least twice as much")
SMALL_GAP = Effect(0.05, "'The sharp resemblance' (Figs 12, 13): within 5 %")
REACHED = Effect(1e-6, "the paper's number: ‖w − w*‖ < 1e-6")
PRACTICAL = Effect(1e-3, "'for all practical purposes': ‖w − w*‖ below 1e-3, a thousandth of ‖w*‖ and less")
AT_LEAST = Effect(1 - 1e-6, "at least the bound, to one part in a million")
PLOTTED = Effect(0.05, "read off the published plot to within 0.05")
COUNT_CLOSE = Effect(1.25, "a number of losses is useful if it is right to within a quarter, either way")
LEARNED_ALIKE = Effect(0.05, "as well: within five points of the share of new examples that are learned")
NEVER = Effect(1e-3, "'For all (x, x′)' (Fig. 12): at most one pair in a thousand")

__all__ = [name for name, value in list(globals().items()) if isinstance(value, Effect)]
"""Name by name, as the documentation lists them."""
