"""All certificates, and the page of errata made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from local_elasticity.papers.certificates import (
    definitions,
    diagonal,
    homogeneous,
    penalised,
    relu_gate,
    symmetric_pair,
    two_layer,
)
from local_elasticity.papers.certificates.certificate import Certificate, Check

SECTIONS: dict[str, Callable[[], list[Certificate]]] = {
    "Definitions (Dan et al. §1)": definitions.certificates,
    "Penalised features (Dan et al. §3)": penalised.certificates,
    "ReLU gate (Dan et al. §4)": relu_gate.certificates,
    "Homogeneous features (Dan et al. §5)": homogeneous.certificates,
    "Diagonal quadratic features (Dan et al. Theorem 5.2)": diagonal.certificates,
    "Symmetric pair (Dan et al. Theorem 5.3)": symmetric_pair.certificates,
    "Two-layer ReLU net (He & Su §2.3, A.3)": two_layer.certificates,
}
"""By model, in the order of the papers."""

OPENING = """# Errata of the papers' theory

Every theorem, lemma and numbered equation of Dan et al. §§3–5 and He & Su §2.3 was checked with an independent
method: numerical integration of the gradient flow, an explicit step of autograd, limits, orders of convergence, and
random trials of every inequality. `local-elasticity verify --write-errata docs/errata.md` writes this page.
[The results](results/dan2021dynamics-theory.md) show the figures for each reading of the text.
"""


REMARKS = """## Read fairly

* Hypotheses 1.1 and 1.2 of Dan et al. begin "there exist learning situations". The counterexamples above refute
  only the general reading, for all pairs and models. They do not refute the existence of such situations.
* "At all times S_rel decreases as x gets farther away from x′" (Fig. 11) and "For all (x, x′)" (Fig. 12) are headings.
  The paragraphs below them say that there is a t̃ after which S_rel decreases, and "for certain pairs". Late times do
  not mend Fig. 11: as t grows S_rel tends to 1.0505 at z = 1 and to 1.0545 at z = 2.
* He & Su offer eq. 2.4 as intuition (§2.3), under conditions of Li & Liang that they cite but do not print.

## Smaller slips, without a certificate

* He & Su, Algorithm 1: line 16 sets a row of S and belongs inside the `if` of line 6. As printed, after an auxiliary
  example i and s_t have the values of an earlier step.
* He & Su, the cross-entropy loss −y log f leaves out (1 − y) log(1 − f): as printed, auxiliary examples have no loss.
* He & Su, A.3: the bars of x̄ are missing in part of the proof; with them the proof is correct.
* Dan et al., Theorem 4.3: t* depends on the pair (x, x′), through w*·x, w*·x′ and the initial weights. There is
  no common t*.
* Dan et al., §3.1: "Whereas for inter-class" is printed where the intra-class pairs are described.
"""


def certificates() -> Iterator[tuple[str, list[Certificate]]]:
    """The certificates of each model, made when they are asked for.

    >>> section, made = next(certificates())
    >>> section, all(one.green for one in made)
    ('Definitions (Dan et al. §1)', True)
    """
    for section, make in SECTIONS.items():
        yield section, make()


def errata(made: Sequence[tuple[str, Sequence[Certificate]]]) -> str:
    """The page as Markdown. Measured errors vary with the machine and are left out; what is allowed is given."""
    parts = [OPENING, "## What is wrong as printed\n"]
    parts += [_erratum(one) for _, some in made for one in some if one.verdict != "holds"]
    parts += [REMARKS, "## Every statement\n"]
    for section, some in made:
        parts += [f"### {section}\n", "| statement | says | checked against | verdict |", "|---|---|---|---|"]
        parts += [_row(one) for one in some] + [""]
    return "\n".join(parts)


def _row(one: Certificate) -> str:
    cells = (one.statement, one.says, "; ".join(describe(check) for check in one.standing), one.verdict)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _erratum(one: Certificate) -> str:
    lines = [f"### {one.paper}, {one.statement}: {one.verdict}\n", f"Says: {one.says}.\n"]
    if one.correction:
        lines.append(f"Correction: {one.correction}.\n")
    lines += [f"Counterexample: {one.counterexample}.\n"]
    return "\n".join(lines)


def measured(one: Certificate) -> list[tuple[str, str, str, str, str]]:
    """Rows of a table: statement, checked against, trials, worst error, verdict; one row for each check.

    >>> from local_elasticity.papers.certificates.certificate import Certificate, Check
    >>> measured(Certificate("He & Su", "eq. 0", "1 + 1 = 2", "holds", [Check("arithmetic", 1, 0.0)]))
    [('eq. 0', 'arithmetic', '1', '0', 'holds')]
    """
    kinds = [("as printed: " if one.corrected else "", check) for check in one.printed]
    kinds += [("corrected: ", check) for check in one.corrected]
    verdict = one.verdict if one.green else f"RED: {one.verdict}, expected: {one.expected}"
    return [
        (
            one.statement if place == 0 else "",
            kind + check.against,
            str(check.trials),
            f"{check.worst:.2g}",
            verdict if place == 0 else "",
        )
        for place, (kind, check) in enumerate(kinds)
    ]


def describe(check: Check) -> str:
    """A check in words, with its trials and what it allows."""
    return f"{check.against} ({check.trials} trials, at most {check.allowed:g})"
