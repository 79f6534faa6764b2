"""What the page's first screen says: one sentence per kind of quantity, and only what the data support."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.report.front import NO_STRUCTURE, front_of
from local_elasticity.report.kinds import kind_of
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.run import Panel, Run, Side
from local_elasticity.statistics.confusion import confusion, rank_agreement
from local_elasticity.training.history import History, Probe
from local_elasticity.words import times

KINDS = np.repeat(["cat", "dog", "fox", "owl", "pig"], 8)
SAME = KINDS[:, None] == KINDS


def front(values, measure="kl", steps=(), classes=KINDS):
    side = Side(np.arange(len(classes)), classes)
    values = np.asarray(values)
    panel = Panel(measure, values if values.ndim == 3 else values[None], tuple(steps))
    run = Run("run", "similarity", (panel,), side, side, True)
    return front_of(run, panel, pairs_of(run, panel))


def noise(seed=0, sigma=0.3, shape=SAME.shape):
    return np.random.default_rng(seed).lognormal(sigma=sigma, size=shape)


def test_the_headline_is_that_of_locality_in_one_direction():
    """How many times as far, from le.locality on the same matrix; of kl, the root."""
    values = np.where(SAME, 1.0, 0.16) * noise()
    found = le.locality(values, KINDS)
    for measure, order in (("kl", 2), ("relative", 1)):
        value, low, high = found.ratio ** (-1 / order), found.high ** (-1 / order), found.low ** (-1 / order)
        said = front(values, measure)
        assert said.headline.startswith(
            f"A step on one example moves other examples of its class {times(value, low, high)}"
        )
        assert said.evidence[0] == "Baseline with permuted class labels: 1.0× (p ≤ 0.005). Verdict: local."
        S = le.as_similarity(values, source_labels=KINDS, measure=measure)
        assert str(le.locality(S)) == f"{said.headline} {said.evidence[0]}"


@pytest.mark.parametrize(
    ("own", "other", "sigma", "words"),
    [(1.0, 0.9, 0.01, "hardly further"), (0.3, 1.0, 0.3, "less far than examples of other classes: 0.30×")],
)
def test_other_verdicts_have_other_headlines(own, other, sigma, words):
    assert words in front(np.where(SAME, own, other) * noise(sigma=sigma), "relative").headline


@pytest.mark.parametrize("measure", ["kl", "relative", "stiffness_cos", "loss", "change of kl", "activation"])
def test_noise_has_no_structure(measure):
    rng = np.random.default_rng(3)
    values = noise(3, 1.0) if kind_of(measure) == "ratio" else rng.normal(size=SAME.shape)
    found = front(values, measure)
    assert found.headline.startswith(NO_STRUCTURE)
    assert found.coupled == ()
    assert found.coupled_words.startswith("No pair of classes is clearly coupled")


def test_signed_measures_speak_of_differences_and_never_of_times():
    rng = np.random.default_rng(0)
    cosine = np.clip(0.3 * SAME + 0.1 * rng.normal(size=SAME.shape), -1, 1)
    cosine[np.ix_(KINDS == "cat", KINDS == "fox")] += 0.4
    found = front(cosine, "stiffness_cos")
    within, between = np.median(cosine[SAME & ~np.eye(40, dtype=bool)]), np.median(cosine[~SAME])
    assert f"is {within:.3g} within a class and {between:.3g} between classes: a difference of" in found.headline
    assert [one["words"][:10] for one in found.coupled] == ["cat → fox:"]
    loss = front(np.where(SAME, -1.0, 0.5) + rng.normal(size=SAME.shape), "loss")
    assert loss.headline.startswith("A step on one example lowers the loss of 8")
    change = front(np.where(SAME, -12.4, 0.5) + rng.normal(size=SAME.shape), "change of relative")
    assert change.headline.startswith("From before to after, the median of change of relative is -12")
    for one in (found, loss, change):
        told = " ".join([one.headline, *one.evidence, *(pair["words"] + pair["coupling"] for pair in one.coupled)])
        assert "×" not in told
        assert "as far" not in told


def test_an_unknown_measure_gets_no_conclusion():
    found = front(np.where(SAME, 1.0, 0.1) * noise(), "my_own")
    assert found.headline == "The page does not know the measure my_own, so it draws no conclusion from it."
    assert found.coupled == ()


def test_the_coupled_pairs_keep_their_direction():
    values = np.where(SAME, 1.0, 0.05) * noise()
    values[np.ix_(KINDS == "fox", KINDS == "cat")] *= 16
    values[np.ix_(KINDS == "cat", KINDS == "fox")] *= 4
    pair, *others = front(values, "relative").coupled
    assert others == []
    assert (pair["from"], pair["to"]) == (2, 0)
    assert pair["words"].startswith("fox → cat: ")
    back = np.median(values[np.ix_(KINDS == "cat", KINDS == "fox")])
    own = np.median(values[np.ix_(KINDS == "cat", KINDS == "cat")][~np.eye(8, dtype=bool)])
    assert f"Back, cat → fox: {100 * back:.0f} %, to its own class {100 * own:.0f} %." in pair["words"]
    three = np.repeat(["a", "b", "c"], 14)[:40]
    assert "from 4 classes on" in front(values, "relative", classes=three).coupled_words


def test_the_development_names_the_change_point_that_phases_gives():
    levels = np.array([0.9, 0.9, 0.88, 0.9, 0.4, 0.3, 0.3, 0.32, 0.3, 0.3])
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    values = np.where(SAME, 1.0, levels[:, None, None]) * noise(0, 0.2, (10, *SAME.shape))
    history = History(["kl"], KINDS.tolist(), KINDS.tolist(), square=True)
    for step, S in zip(steps, values, strict=True):
        history.append(Probe(step, {"kl": S}, 0.1, "looped"))
    phases = history.phases().iloc[0]
    found = front(values, "kl", steps)
    assert phases.change_step == 8
    assert "change point between steps 4 and 8." in found.evidence[1]
    table = history.locality()
    assert found.curve["times"] == pytest.approx(table.ratio.to_numpy() ** -0.5)
    few = front(values[:3], "kl", steps[:3])
    assert "3 probes are too few to say when it changed" in " ".join(few.evidence)
    one = front(values[-1:], "kl", steps[-1:])
    assert one.curve is None


def test_what_cannot_be_compared_is_said():
    assert front(np.full(SAME.shape, np.nan)).headline.startswith("No pair could be resolved, so there is nothing")
    one = front(noise(), classes=np.repeat("cat", 40))
    assert one.headline == "All examples have one class, cat, so there are no other classes to compare with."
    side = Side(np.arange(40))
    run = Run("run", "similarity", (Panel("kl", noise()[None]),), side, side, True)
    assert front_of(run, run.panels[0], None).headline.startswith("Classes are unknown")
    many = front(noise(shape=(300, 300)), classes=np.arange(300).astype(str))
    assert many.headline == "300 classes are more than the page compares with each other (100)."


def test_a_comparison_and_a_forecast_have_their_places(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.arange(24) % 3
    young, old = nn.Linear(4, 3), nn.Linear(4, 3)
    found = le.compare(young, old, sources=(x, y), loss="cross_entropy", measure="kl")
    page = le.write_report({"two nets": found}, tmp_path / "page.html", examples=x).read_text(encoding="utf-8")
    for words in ("kl before", "kl after", "change of kl", "median difference"):
        assert words in page
    assert "how much kl differs, after − before" in page
    assert page.count("Every pair was resolved") == 3  # an example with itself is left out, not unresolved
    forecast = le.forecast(young, (x[:6], (y[:6] + 1) % 3), (x, y), loss="cross_entropy", update=le.SGD(0.1), steps=3)
    check = forecast.check(old)
    page = le.write_report({"a fine-tune": (forecast, check)}, tmp_path / "page.html", examples=x).read_text(
        encoding="utf-8"
    )
    assert "a fine-tune: who is at risk" in page
    assert "What came true" in page
    assert f"AUROC {check.auroc:.3f}" in page
    assert page.count('class="kept"') + page.count('class="lost"') == int(forecast.old.right.sum())


def test_examples_can_be_left_out(tmp_path):
    S = le.as_similarity(noise(), source_labels=KINDS, examples=[f"secret {i}" for i in range(40)], measure="kl")
    with_them = le.write_report({"run": S}, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "40 texts, the labels of 5 classes, 40 × 40 similarities" in with_them
    page = le.write_report({"run": S}, tmp_path / "page.html", examples=False).read_text(encoding="utf-8")
    assert "Examples are left out of this page on request." in page
    assert "run: no examples, the labels of 5 classes" in page
    import base64
    import gzip
    import re

    hidden = gzip.decompress(base64.b64decode(re.search(r'id="payload">([^<]*)<', page)[1])).decode()
    assert "secret" not in hidden


def test_confusions_are_compared_with_similarities(tmp_path):
    """Cats are predicted as foxes, and a step on a fox moves cats; noise has no such agreement."""
    values = np.where(SAME, 1.0, 0.05) * noise()
    values[np.ix_(KINDS == "fox", KINDS == "cat")] *= 10
    predictions = KINDS.copy()
    predictions[:3] = "fox"
    S = le.as_similarity(values, source_labels=KINDS, measure="relative").le.with_predictions(predictions)
    page = le.write_report(S, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "37 of 40 targets (92 %) are predicted as their class." in page
    row = re.search(r'<tr><th scope="row">cat</th>(.*?)</tr>', page, re.DOTALL).group(1)
    assert re.findall(r">\s*([\d·]+)\s*</td>", row) == ["5", "·", "3", "·", "·"]
    counts = confusion(["cat", "dog", "fox"], np.array(["cat", "cat"]), np.array(["fox", "emu"]))
    assert counts.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    several = [
        rank_agreement(np.round(9 * noise(seed, 1.0, (8, 8))), noise(seed + 99, 1.0, (8, 8))) for seed in range(40)
    ]
    assert sum(one.p_value <= 0.05 for one in several) <= 6
    with pytest.raises(ValueError, match="predictions: shape"):
        S.le.with_predictions(["cat"])
