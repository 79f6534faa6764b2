"""Every certificate is green, turns red when a formula is broken, and the page of errata is what they say."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from local_elasticity.cli import app
from local_elasticity.papers.certificates import (
    Certificate,
    Check,
    definitions,
    diagonal,
    homogeneous,
    penalised,
    relu_gate,
    symmetric_pair,
    two_layer,
    verify,
)
from local_elasticity.theory import (
    DiagonalQuadratic,
    HomogeneousFeatures,
    PenalisedFeatures,
    ReluGate,
    SymmetricPair,
    TwoLayerRelu,
)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def made():
    return list(verify.certificates())


def test_all_are_green(made):
    assert [one.statement for _, some in made for one in some if not one.green] == []
    assert sum(len(some) for _, some in made) >= 40


def test_definitions_are_checked_without_a_warning(caplog):
    definitions.certificates()
    assert caplog.text == ""


def test_every_numbered_equation_is_there(made):
    said = " ".join(one.statement for _, some in made for one in some)
    for number in (1, 2, 4, 7, 9, 14, 15, 16, 17, 18, 31, 32, 38, 39, 40):
        assert (
            any(f"{kind} {number}" in said for kind in ("eq.", "eqs")) or f", {number}" in said or f"–{number}" in said
        )
    for name in (
        "Theorem 3.1",
        "Theorem 3.2",
        "Theorem 4.1",
        "Lemma 4.2",
        "Theorem 4.3",
        "Theorem 5.1",
        "Theorem 5.2",
        "Theorem 5.3",
        "Lemma C.1",
        "Algorithm 1",
        "eq. 2.4",
        "A.3",
        "Definition 2",
        "Definition 2 in the released notebooks",
    ):
        assert name in said


def test_the_page_of_errata_is_what_they_say(made):
    assert (ROOT / "docs" / "errata.md").read_text() == verify.errata(made)


def test_every_correction_has_its_counterexample(made):
    wrong = [one for _, some in made for one in some if one.verdict != "holds"]
    assert len(wrong) >= 12
    assert all(one.counterexample for one in wrong)
    assert all(one.correction for one in wrong if one.verdict == "holds with correction")


def wrong_decay(self, t):
    values, vectors = self.spectrum
    decay = np.exp(-0.5 * self.rate * np.asarray(t)[..., None] * values)
    return (decay * ((self.star - self.start) @ vectors)) @ vectors.T


right_squares = DiagonalQuadratic.squares


def wrong_squares(self, t):
    return right_squares(self, np.asarray(t) / 2)


def wrong_kernel(self, w, source, target):
    x, v = np.atleast_2d(source), np.atleast_2d(target)
    lift = lambda z: np.concatenate([z, np.ones((len(z), 1))], 1)
    return x @ v.T * ((lift(x) @ w.T >= 0).astype(float) @ (lift(v) @ w.T >= 0).T)


def wrong_mixed(self, terms, first, second):
    return self.alpha**2 * terms.sum(-1) + self.beta**2 * (terms[..., 0] * first + terms[..., 1] * second)


def wrong_moved(self, w, beta, push):
    return self.degree * beta * w[:, None] ** (self.degree - 1)


PLANTED = {
    "ridge without K": (PenalisedFeatures, "ridge", property(lambda self: self.penalty), penalised, "Definition 4"),
    "weights without eigenvectors": (
        PenalisedFeatures,
        "w",
        lambda self, t: np.exp(-self.rate * np.asarray(t)[..., None, None]) * (self.start - self.limit) + self.limit,
        penalised,
        "Theorem 3.1",
    ),
    "half the rate": (ReluGate, "missing", wrong_decay, relu_gate, "Theorem 4.1"),
    "half the power of w": (HomogeneousFeatures, "_moved", wrong_moved, homogeneous, "eqs 29–31"),
    "2θ for 4θ": (DiagonalQuadratic, "squares", wrong_squares, diagonal, "Theorem 5.2, eqs 33–36"),
    "exponentials exchanged": (SymmetricPair, "_mixed", wrong_mixed, symmetric_pair, "eq. 38"),
    "x for x̄": (TwoLayerRelu, "kernel", wrong_kernel, two_layer, "eq. 2.4, η → 0"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_wrong_formula_turns_its_certificate_red(what, monkeypatch):
    kind, name, formula, section, statement = PLANTED[what]
    monkeypatch.setattr(kind, name, formula)
    red = [one.statement for one in section.certificates() if not one.green]
    assert any(statement in one for one in red)


def test_a_verdict_follows_from_its_numbers():
    good, bad, unknown = Check("it", 1, 0.0), Check("it", 1, 1.0), Check("it", 1, float("nan"))
    make = lambda printed, corrected=(), expected="holds": Certificate(
        "He & Su", "eq. 0", "it", expected, printed, corrected, counterexample="here"
    )
    assert make([good]).verdict == "holds"
    assert make([good, bad]).verdict == "false as printed"
    assert make([bad], [good]).verdict == "holds with correction"
    assert make([bad], [bad]).verdict == "not confirmed"
    assert make([unknown]).verdict == make([good], [unknown]).verdict == "not confirmed"
    assert not make([bad]).green
    assert make([bad], expected="false as printed").green
    silent = Certificate("He & Su", "eq. 0", "it", "false as printed", [bad])
    assert not silent.green


def test_the_command_says_so(monkeypatch, tmp_path):
    green = Certificate("He & Su", "eq. 0", "1 + 1 = 2", "holds", [Check("arithmetic", 3, 0.0)])
    red = Certificate("He & Su", "eq. 1", "1 + 1 = 3", "holds", [Check("arithmetic", 3, 1.0)])
    monkeypatch.setattr(verify, "SECTIONS", {"Sums": lambda: [green]})
    page = tmp_path / "errata.md"
    answer = CliRunner().invoke(app, ["verify", "--write-errata", str(page)])
    assert answer.exit_code == 0
    assert "All 1 statements have the verdict that their numbers support: supported 1." in answer.output
    assert "eq. 0" in page.read_text()
    monkeypatch.setattr(verify, "SECTIONS", {"Sums": lambda: [green, red]})
    page.unlink()
    answer = CliRunner().invoke(app, ["verify", "--details", "--write-errata", str(page)])
    assert answer.exit_code == 1
    assert "1 of 2 certificates are red: eq. 1" in answer.output
    assert "RED" in answer.output
    assert not page.exists()
