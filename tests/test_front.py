"""What the page's first screen says: one sentence per kind of quantity, and only what the data support."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import local_elasticity as le
from local_elasticity.report.front import NO_STRUCTURE, front_of
from local_elasticity.report.kinds import kind_of
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.run import Panel, Run, Side, chosen_rows
from local_elasticity.statistics.confusion import confusion, rank_agreement
from local_elasticity.training.history import History, Probe
from local_elasticity.words import number, percent, times

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


@pytest.mark.parametrize("measure", ["kl", "relative", "stiffness_cos", "loss", "activation"])
def test_noise_has_no_structure(measure):
    rng = np.random.default_rng(3)
    values = noise(3, 1.0) if kind_of(measure) == "ratio" else rng.normal(size=SAME.shape)
    found = front(values, measure)
    assert found.headline.startswith(NO_STRUCTURE)
    assert found.named.pairs == found.named.framed == ()
    assert found.named.words.startswith("No coupled pair of classes was found: none")
    assert found.named.words.endswith("There are 8 examples a class.")
    assert found.brief.words.endswith("no structure found")


def test_signed_measures_speak_of_differences_and_never_of_times():
    rng = np.random.default_rng(0)
    cosine = np.clip(0.3 * SAME + 0.1 * rng.normal(size=SAME.shape), -1, 1)
    cosine[np.ix_(KINDS == "cat", KINDS == "fox")] += 0.4
    found = front(cosine, "stiffness_cos")
    within, between = np.median(cosine[SAME & ~np.eye(40, dtype=bool)]), np.median(cosine[~SAME])
    assert f"is {within:.3g} within a class and {between:.3g} between classes." in found.headline
    assert [one["head"][:10] for one in found.named.pairs] == ["cat ↔ fox:"]
    loss = front(np.where(SAME, -1.0, 0.5) + rng.normal(size=SAME.shape), "loss")
    assert loss.headline.startswith("A step on one example lowers the loss of 8")
    change = front(np.where(SAME, -12.4, 0.5) + rng.normal(size=SAME.shape), "change of relative")
    assert change.evidence[0].startswith("Median over pairs: within a class it changes by −12")
    for one in (found, loss, change):
        told = " ".join([one.headline, *one.evidence, *one.named.sentences])
        assert "×" not in told
        assert "as far" not in told


def test_an_unknown_measure_gets_no_conclusion():
    found = front(np.where(SAME, 1.0, 0.1) * noise(), "my_own")
    assert found.headline == "The page does not know the measure my_own, so it draws no conclusion from it."
    assert found.named.pairs == ()


def test_the_coupled_pairs_keep_their_direction():
    values = np.where(SAME, 1.0, 0.05) * noise()
    values[np.ix_(KINDS == "fox", KINDS == "cat")] *= 16
    values[np.ix_(KINDS == "cat", KINDS == "fox")] *= 4
    named = front(values, "relative").named
    (pair,) = named.pairs
    assert (pair["from"], pair["to"]) == (2, 0)
    assert named.framed == ((2, 0), (0, 2))
    there, back = (np.median(values[np.ix_(a == KINDS, b == KINDS)]) for a, b in (("fox", "cat"), ("cat", "fox")))
    assert pair["head"] == f"fox → cat: {100 * there:.0f} %,"
    own = np.median(values[np.ix_(KINDS == "fox", KINDS == "fox")][~np.eye(8, dtype=bool)])
    assert pair["more"] == f"Within fox: {100 * own:.0f} %. Back, cat → fox: {100 * back:.0f} %, coupled too."
    three = np.repeat(["a", "b", "c"], 14)[:40]
    assert "among 4 or more classes, not 3" in front(values, "relative", classes=three).named.words


def test_a_card_points_in_the_direction_that_is_coupled():
    """Foxes move cats more than row and column suggest. A step on a cat moves every class far, which is no coupling."""
    values = np.where(SAME, 1.0, 0.05) * noise(sigma=0.1)
    values[KINDS == "cat"] *= 14
    values[np.ix_(KINDS == "fox", KINDS == "cat")] *= 12
    named = front(values, "relative").named
    (pair,) = named.pairs
    cats, foxes = KINDS == "cat", KINDS == "fox"
    there, back = (np.median(values[np.ix_(*one)]) for one in ((foxes, cats), (cats, foxes)))
    assert back > there
    assert (pair["from"], pair["to"], named.framed) == (2, 0, ((2, 0),))
    assert pair["head"] == f"fox → cat: {100 * there:.0f} %,"
    assert "what row fox and column cat suggest (" in pair["words"]
    assert f"Back, cat → fox: {100 * back:.0f} %." in pair["more"]
    assert named.larger.startswith("Large but not coupled: cat → ")
    assert "its row and column suggest" in named.larger
    long = {kind: f"{kind}, which has a name that is far too long for a card" for kind in np.unique(KINDS)}
    (pair,) = front(values, "relative", classes=np.array([long[kind] for kind in KINDS])).named.pairs
    assert len(pair["head"] + pair["words"]) < 150


def coupled_digits():
    """Ten classes as text, so that their order matters, with three coupled pairs."""
    classes = np.repeat([str(i) for i in range(11)], 6)
    values = 0.1 * noise(shape=(66, 66))
    for a, b, factor in (("2", "10", 9), ("4", "5", 6), ("10", "1", 7)):
        values[np.ix_(classes == a, classes == b)] *= factor
    np.fill_diagonal(values, 1)
    return classes, values


@pytest.mark.parametrize("measure", ["relative", "kl", "kernel"])
def test_the_page_shows_the_pairs_that_python_gives(tmp_path, measure):
    classes, values = coupled_digits()
    S = le.as_similarity(values, source_labels=classes, measure=measure)
    found = S.le.coupled()
    _, payload = hidden(le.write_report(S, tmp_path / "page.html"))
    (panel,) = payload["runs"][0]["panels"]
    named, names = panel["front"]["named"], panel["pairs"]["classes"]
    assert names == [str(i) for i in range(11)]
    frame = found.frame().query("coupled")
    assert [[names[a], names[b]] for a, b in named["framed"]] == frame[["source_class", "target_class"]].values.tolist()
    assert frame.target_class.tolist() == ["10", "1", "5"]
    said = [f"{one['head']} {one['words']}" for one in named["pairs"]]
    assert said == str(found).splitlines()
    medians = S.le.classes(resamples=0).set_index(["source_class", "target_class"]).value
    assert frame.value.tolist() == pytest.approx(
        [medians[a, b] for a, b in zip(frame.iloc[:, 0], frame.iloc[:, 1], strict=True)]
    )


def test_measures_that_disagree_about_pairs_are_said(tmp_path):
    classes, values = coupled_digits()
    other = values.copy()
    other[np.ix_(classes == "4", classes == "5")] /= 6
    other[np.ix_(classes == "7", classes == "8")] *= 6
    several = {"relative": values, "kl": other**2}
    S = xr.Dataset({name: le.as_similarity(one, source_labels=classes, measure=name) for name, one in several.items()})
    _, payload = hidden(le.write_report(S, tmp_path / "page.html"))
    parts = "4 → 5 is coupled only by relative, not by √kl; 7 → 8 only by √kl, not by relative"
    said = f"The measures disagree: {parts}."
    assert [panel["front"]["named"]["words"] for panel in payload["runs"][0]["panels"]] == [said, said]
    S["kl"] = S["kl"].copy(data=values**2)
    _, payload = hidden(le.write_report(S, tmp_path / "page.html"))
    assert [panel["front"]["named"]["words"] for panel in payload["runs"][0]["panels"]] == ["", ""]


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
    assert f"It is helped most by a step on {left_out[0] % 4} · #{left_out[0]}: −3." in text
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
    assert found.when == "clearly above 1.25× from step 8 on; change point between steps 4 and 8"
    assert found.evidence[1].startswith(f"Over training: {found.when} (where two levels fit best); 1.")
    assert re.fullmatch(
        r"From step 0 to 256, own class: .* of how far .*; other classes: 9\d % → 5\d %\.", found.evidence[2]
    )
    assert found.more[0].startswith("Half of the rise to the late level (1.8×, the median of the last quarter of the")
    last = le.locality(values[-1], KINDS, measure="kl").further()
    assert [found.curve[name][-1] for name in ("times", "low", "high")] == pytest.approx(last)
    table = history.locality()
    assert found.curve["times"] == pytest.approx(table.ratio.to_numpy() ** -0.5)
    few = front(values[:3], "kl", steps[:3])
    assert "3 probes are too few to say when it changed" in " ".join(few.evidence)
    one = front(values[-1:], "kl", steps[-1:])
    assert one.curve is None


def test_what_cannot_be_compared_is_said():
    assert front(np.full(SAME.shape, np.nan)).headline.startswith("No pair could be resolved, so there is nothing")
    one = front(noise(), classes=np.repeat("cat", 40))
    assert one.evidence[-1] == "All examples have one class, cat, so classes are not compared."
    assert one.headline.startswith("A step on one example moves the prediction for another example ")
    many = front(noise(shape=(300, 300)), classes=np.arange(300).astype(str))
    assert many.evidence[-1] == "Classes are not compared: 300 are more than a page can show (100)."


def without_classes(values, measure, examples=None, square=True):
    values = np.asarray(values, dtype=float)
    sides = [Side(np.arange(size), examples=examples) for size in values.shape]
    run = Run("run", "similarity", (Panel(measure, values[None]),), *sides, square)
    return front_of(run, run.panels[0], None)


@pytest.mark.parametrize(("measure", "order"), [("relative", 1), ("kl", 2)])
def test_texts_without_classes_have_a_headline(measure, order):
    """How far a step moves another text, its spread, and the strongest pairs, each once."""
    values = 0.1 * noise(shape=(12, 12))
    np.fill_diagonal(values, 1)
    values[3, 8], values[8, 3], values[5, 1] = 0.9, 0.7, 0.6
    found = without_classes(values**order, measure, [f"text {i}" for i in range(12)])
    others = values[~np.eye(12, dtype=bool)]
    quarter, middle, most = np.quantile(others, [0.25, 0.5, 0.75])
    assert found.headline.startswith(f"A step on one text moves the prediction for another text {percent(middle)} (")
    assert found.headline.endswith(") as far as its own.")
    assert f"the 132 pairs lies between {percent(quarter)} and {percent(most)}." in found.evidence[0]
    assert found.evidence[-1].startswith("There are no class labels.")
    assert [(one["source"], one["target"]) for one in found.named.pairs][:2] == [(3, 8), (5, 1)]
    assert found.named.pairs[0]["head"] == "#3 → #8: 90 %."
    assert found.named.pairs[0]["words"] == "Back: 70 %."
    assert len(found.named.pairs) == 3
    assert "unknown" not in " ".join([found.headline, *found.evidence])


def test_other_quantities_without_classes_have_their_sentences():
    rng = np.random.default_rng(0)
    signed = without_classes(rng.normal(size=(9, 9)), "stiffness_cos")
    assert signed.headline.startswith("The median of stiffness_cos over all pairs is ")
    assert "95 % interval" in signed.headline
    wide = without_classes(np.abs(rng.normal(size=(9, 4))), "relative", square=False)
    assert "moves the prediction for a target example" in wide.headline
    assert all(one["words"] == "" for one in wide.named.pairs)
    alone = without_classes([[1.0]], "relative")
    assert alone.headline == "No pair of two different examples could be resolved."
    assert without_classes(rng.normal(size=(9, 9)), "my_own").headline.startswith("The page does not know the measure")


def compared(change, sigma=0.02, seed=0):
    """Two models whose similarities differ by `change` and noise."""
    rng = np.random.default_rng(seed)
    before = 0.5 * noise(sigma=0.2)
    after = before + change + sigma * rng.normal(size=before.shape)
    return le.compare(*(le.as_similarity(one, source_labels=KINDS, measure="relative") for one in (before, after)))


def test_a_comparison_names_what_rose_and_what_fell(tmp_path):
    """From its own frame, the largest change first; a pair that is above its row and column is not a change."""
    change = np.zeros(SAME.shape)
    for a, b, by in (("cat", "owl", 0.3), ("pig", "dog", -0.4), ("dog", "dog", 0.1)):
        change[np.ix_(a == KINDS, b == KINDS)] += by
    found = compared(change)
    text, payload = hidden(le.write_report({"two": found}, tmp_path / "page.html"))
    front = payload["runs"][0]["panels"][2]["front"]["named"]
    frame = found.frame("classes").set_index(["source_class", "target_class"])
    heads = [one["head"] for one in front["pairs"]]
    row = frame.loc["pig", "dog"]
    assert heads[0] == f"pig → dog fell by {number(-row.difference)}"
    assert front["pairs"][0]["words"] == (
        f"({number(-row.high)} to {number(-row.low)}) in the median of the pairs' differences."
    )
    assert front["pairs"][0]["more"] == f"Medians over pairs: {number(row.before)} before, {number(row.after)} after."
    assert heads[1] == f"cat → owl rose by {number(frame.loc['cat', 'owl'].difference)}"
    assert heads[2].startswith("dog → dog rose by 0.0")
    assert len(heads) == 3
    assert front["words"].startswith("3 of 25 pairs of classes changed clearly: 2 rose, 1 fell (p < 0.05 after")
    names = payload["runs"][0]["panels"][2]["pairs"]["classes"]
    assert [[names[a], names[b]] for a, b in front["framed"]] == [["pig", "dog"], ["cat", "owl"], ["dog", "dog"]]
    assert "coupled" not in json.dumps(front)
    before, after = (times(*le.locality(one).further()) for one in (found.before, found.after))
    assert f"A step moves its own class {before} as far as other classes before, and {after} after." in text
    assert payload["runs"][0]["panels"][2]["own"] is None


def test_a_comparison_of_noise_names_nothing(tmp_path):
    found = compared(np.zeros(SAME.shape))
    text, payload = hidden(le.write_report({"two": found}, tmp_path / "page.html"))
    named = payload["runs"][0]["panels"][2]["front"]["named"]
    assert named["pairs"] == named["framed"] == []
    assert named["words"] == "No pair of classes changed clearly (p < 0.05 after correction for 25 pairs of classes)."
    assert "No clear change of relative over all pairs: a pair changes by " in text
    few = le.compare(*(one[:10:3, :10:3] for one in (found.before, found.after)))
    text, payload = hidden(le.write_report({"two": few}, tmp_path / "page.html"))
    assert "a test needs five examples of each class" in payload["runs"][0]["panels"][2]["front"]["named"]["words"]


def test_a_comparison_without_classes_names_the_pairs_that_changed_most(tmp_path):
    values = noise(shape=(8, 8))
    after = values + 0.01
    after[2, 6] += 3
    found = le.compare(*(le.as_similarity(one, measure="relative", square=True) for one in (values, after)))
    text, payload = hidden(le.write_report({"two": found}, tmp_path / "page.html"))
    named = payload["runs"][0]["panels"][2]["front"]["named"]
    assert named["title"] == "Largest changes"
    assert named["pairs"][0]["head"] == "#2 → #6: 3.01."
    assert "From before to after, relative rises by 0.01 (0.01 to 0.01) in the median pair" in text


def test_a_list_of_runs_has_the_number_of_each(tmp_path):
    values = np.where(SAME, 1.0, 0.16) * noise()
    runs = {
        "local": le.as_similarity(values, source_labels=KINDS, measure="relative"),
        "signed": le.as_similarity(np.log(values), source_labels=KINDS, measure="kernel"),
        "texts": le.as_similarity(values, examples=[f"text {i}" for i in range(40)], measure="relative", square=True),
        "change": compared(np.zeros(SAME.shape)),
    }
    _, payload = hidden(le.write_report(runs, tmp_path / "page.html"))
    first = {run["name"]: run["panels"][-1]["front"]["brief"] for run in payload["runs"]}
    found = le.locality(runs["local"])
    assert first["local"]["words"] == f"{times(*found.further())}, local"
    assert first["local"]["times"] == pytest.approx(found.further())
    assert first["signed"]["words"].startswith("within − between classes: 1.")
    assert first["texts"]["words"].endswith("as far as its own")
    assert first["change"]["words"].startswith("no clear change, ")
    assert [one["times"] is None for one in first.values()] == [False, True, True, True]


def test_a_comparison_and_a_forecast_have_their_places(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(24, 4), torch.arange(24) % 3
    young, old = nn.Linear(4, 3), nn.Linear(4, 3)
    found = le.compare(young, old, sources=(x, y), loss="cross_entropy", measure="kl")
    page = le.write_report({"two nets": found}, tmp_path / "page.html", examples=x).read_text(encoding="utf-8")
    for words in ("kl before", "kl after", "change of kl", "median difference"):
        assert words in page
    before, after = (float(np.median(one.values[~np.eye(24, dtype=bool)])) for one in (found.before, found.after))
    assert f"its median over pairs is {number(before)} before and {number(after)} after." in page
    assert "how much kl differs, after − before" in page
    assert page.count("Every pair was resolved") == 3  # an example with itself is left out, not unresolved
    forecast = le.forecast(young, (x[:6], (y[:6] + 1) % 3), (x, y), loss="cross_entropy", update=le.SGD(0.5), steps=9)
    check = forecast.check(old)
    page = le.write_report({"a fine-tune": (forecast, check)}, tmp_path / "page.html", examples=x).read_text(
        encoding="utf-8"
    )
    assert "a fine-tune: which examples are at risk" in page
    gone = forecast.old.right & (forecast.old.margin_after <= 0)
    lost, right = int(gone.sum()), int(forecast.old.right.sum())
    assert f"{lost} of {right} correct examples ({percent(lost / right)}) are forecast to be lost." in page
    most = np.bincount(y.numpy()[gone])
    assert f"{most.max()} of these {lost} have the label {most.argmax()}, the most of any label." in page
    assert f"The real fine-tune: {str(check).splitlines()[0]}." in page
    assert "What came true" in page
    assert f"AUROC {check.auroc:.3f}" in page
    assert page.count('class="kept"') + page.count('class="lost"') == right


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
    with pytest.raises(ValueError, match="^predictions: expected classes by name, as 'cat', got numbers"):
        S.le.with_predictions(np.zeros(len(KINDS), dtype=int))
    names = sorted(set(KINDS))
    numbers = [names.index(kind) for kind in KINDS]
    assert S.le.with_predictions(numbers, class_names=names)["target_prediction"].values.tolist() == list(KINDS)


def test_cards_say_when_a_pair_was_coupled(tmp_path):
    """What it was of what its row and column suggested, at every step; its last value is that of the coupling."""
    classes, values = coupled_digits()
    plain = np.exp(np.random.default_rng(1).normal(-2, 0.3, size=values.shape))
    history = History(["relative"], classes.tolist(), classes.tolist(), square=True)
    for step, one in ((0, plain), (10, values)):
        history.append(Probe(step, {"relative": one}, 0.1, "looped"))
    _, payload = hidden(le.write_report(history, tmp_path / "page.html"))
    card = payload["runs"][0]["panels"][0]["front"]["named"]["pairs"][0]
    found = le.coupling(values, classes, measure="relative")
    excess = found.excess[found.coupled()[0]]
    assert card["over"][1] == pytest.approx(excess, rel=1e-3)
    assert card["over"][0] < 1.5 < card["over"][1]
    assert card["since"] == "Clearly coupled at step 10, not for good before."
    assert card["cell"][1] == pytest.approx(found.value[found.coupled()[0]], rel=1e-3)
    assert card["suggested"][1] == pytest.approx(found.expected[found.coupled()[0]], rel=1e-3)
