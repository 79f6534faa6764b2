"""What the page's first screen says: one sentence per kind of quantity, and only what the data support."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.report.front import NO_STRUCTURE, front_of
from local_elasticity.report.kinds import kind_of
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.run import Panel, Run, Side, chosen_rows
from local_elasticity.statistics.confusion import confusion, rank_agreement
from local_elasticity.training.history import History, Probe
from local_elasticity.words import number, times

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


def test_a_card_points_in_the_stronger_direction():
    """Foxes move cats more than the rest of both suggests, but a step on a cat moves every class far."""
    values = np.where(SAME, 1.0, 0.05) * noise(sigma=0.1)
    values[KINDS == "cat"] *= 14
    values[np.ix_(KINDS == "fox", KINDS == "cat")] *= 12
    (pair,) = front(values, "relative").coupled
    cats, foxes = KINDS == "cat", KINDS == "fox"
    there, back = (np.median(values[np.ix_(*one)]) for one in ((cats, foxes), (foxes, cats)))
    assert there > back
    assert (pair["from"], pair["to"], pair["clear"]) == (0, 2, [[2, 0]])
    assert pair["words"].startswith(f"cat → fox: {100 * there:.0f} %, to its own class ")
    assert f"Back, fox → cat: {100 * back:.0f} %" in pair["words"]
    assert pair["coupling"].startswith("fox → cat is ")
    long = {kind: f"{kind}, which has a name that is far too long for a card" for kind in np.unique(KINDS)}
    (pair,) = front(values, "relative", classes=np.array([long[kind] for kind in KINDS])).coupled
    assert len(pair["words"]) < 150


def test_the_headline_of_a_history_says_its_step():
    values = np.where(SAME, 1.0, 0.16) * noise(0, 0.3, (2, *SAME.shape))
    assert front(values, "kl", [3, 70]).headline.startswith("At training step 70, a step on one example moves other")
    signed = np.where(SAME, 0.4, 0.0) + 0.1 * np.random.default_rng(0).normal(size=values.shape)
    assert front(signed, "stiffness_cos", [3, 70]).headline.startswith("At training step 70, the median of stiffness")
    assert front(values[:1], "kl", [3]).headline.startswith("A step on one example moves")


def tall(n=1300):
    """A change of loss for one target whose three strongest helpers and harmers the page's sample leaves out."""
    values = np.random.default_rng(0).normal(scale=0.01, size=(n, 1))
    left_out = np.setdiff1d(np.arange(n), chosen_rows(np.arange(n) % 4, n, 1000))[:6]
    values[left_out, 0] = [-3, -2, -1, 3, 2, 1]
    return values, left_out


def hidden(page):
    text = page.read_text(encoding="utf-8")
    return text, json.loads(gzip.decompress(base64.b64decode(re.search(r'id="payload">([^<]*)<', text)[1])))


@pytest.mark.parametrize("stored", [False, True])
def test_helpers_and_harmers_are_those_of_all_sources(tmp_path, stored):
    """Also of a store, of which the page reads a part."""
    values, left_out = tall()
    texts = [f"text {i}" for i in range(len(values))]
    S = le.as_similarity(
        values, source_labels=np.arange(len(values)) % 4, target_labels=[1], examples=(texts, ["it"]), measure="loss"
    )
    results = S.le.save(tmp_path / "run.zarr") if stored else {"run": S}
    text, payload = hidden(le.write_report(results, tmp_path / "page.html"))
    (run,) = payload["runs"]
    assert len(run["sources"]["places"]) == 1000
    listed = run["panels"][0]["listed"]
    for end, rows in (("helps", left_out[:3]), ("harms", left_out[3:])):
        found = listed[end][0]
        assert [listed["sources"]["places"][k] for k, _ in found[:3]] == rows.tolist()
        assert [listed["sources"]["examples"][k] for k, _ in found[:3]] == [texts[row] for row in rows]
        assert [value for _, value in found[:3]] == pytest.approx(values[rows, 0].tolist())
        assert len(found) == 10
    lowered = int((values < 0).sum())
    assert f"Steps on {lowered} of 1,300 examples ({100 * lowered / 1300:.0f} %) lower the loss of the target." in text
    assert f"It is helped most by a step on {left_out[0] % 4} · #{left_out[0]}: -3." in text
    assert "The page shows 1,000 of 1,300 sources and 1 target, drawn at random." in text
    assert "helpers and harmers are listed of all sources" in text
    assert "up to 20 more in the lists of helpers and harmers" in text
    text, payload = hidden(le.write_report(results, tmp_path / "page.html", examples=False))
    assert payload["runs"][0]["panels"][0]["listed"]["sources"]["examples"] is None


def test_an_example_is_not_its_own_helper(tmp_path):
    """Square, with targets in the order of the sample."""
    rng = np.random.default_rng(0)
    values = rng.normal(scale=0.01, size=(1100, 1100))
    np.fill_diagonal(values, -5)
    S = le.as_similarity(values, source_labels=np.arange(1100) % 4, measure="loss")
    _, payload = hidden(le.write_report(S, tmp_path / "page.html"))
    run = payload["runs"][0]
    listed, targets = run["panels"][0]["listed"], run["targets"]["places"]
    np.fill_diagonal(values, 0)
    for place in (0, 517, 999):
        best = [listed["sources"]["places"][k] for k, _ in listed["helps"][place]]
        assert best == np.argsort(values[:, targets[place]])[:10].tolist()


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
    before, after = (float(np.median(one.values[~np.eye(24, dtype=bool)])) for one in (found.before, found.after))
    assert f"Over all pairs, the median of kl is {number(before)} before and {number(after)} after; a pair" in page
    assert "how much kl differs, after − before" in page
    assert page.count("Every pair was resolved") == 3  # an example with itself is left out, not unresolved
    forecast = le.forecast(young, (x[:6], (y[:6] + 1) % 3), (x, y), loss="cross_entropy", update=le.SGD(0.1), steps=3)
    check = forecast.check(old)
    page = le.write_report({"a fine-tune": (forecast, check)}, tmp_path / "page.html", examples=x).read_text(
        encoding="utf-8"
    )
    assert "a fine-tune: who is at risk" in page
    lost = int((forecast.old.right & (forecast.old.margin_after <= 0)).sum())
    assert f"{lost} of {int(forecast.old.right.sum())} examples that are right now" in page
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
    kept = gzip.decompress(base64.b64decode(re.search(r'id="payload">([^<]*)<', page)[1])).decode()
    assert "secret" not in kept


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
