"""The page's first screen in Chromium: what is on it without scrolling, whether it can be read, chosen and saved."""

import csv
import itertools
import re

import numpy as np
import pytest

import local_elasticity as le
from local_elasticity.training.history import History, Probe
from local_elasticity.words import percent, times
from tests.test_front import tall
from tests.test_report_browser import PHONE, WIDE, Reader

pytestmark = pytest.mark.browser
STEPS = (0, 2, 5, 10, 20, 40, 80, 160, 320)
LONG = [f"a rather long name of class number {i}" for i in range(10)]
BOXES = """(selector) => [...document.querySelectorAll(selector)].map((one) => {
  const box = one.getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom];
}).filter(([left, top, right, bottom]) => right > left && bottom > top)"""


def history(names, per=6):
    """A history whose learning becomes local at step 40, with 1 → 3 coupled, on small pictures."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(names, per)
    number = np.repeat(np.arange(len(names)), per)
    same, coupled = number[:, None] == number, (number[:, None] == 1) & (number == 3)
    found = History(["kl", "relative_l1"], kinds.tolist(), kinds.tolist(), square=True)
    for step in STEPS:
        level = 0.9 if step < 40 else 0.05
        S = np.where(same, 1.0, np.where(coupled, 0.8, level)) * rng.lognormal(sigma=0.4, size=same.shape)
        np.fill_diagonal(S, 1)
        facts = {"source_loss": 2.0 / (1 + step), "source_accuracy": min(0.9, 0.1 + step / 100), "nonlinearity": 0.002}
        found.append(
            Probe(step, {"kl": S.astype("f4"), "relative_l1": np.sqrt(S).astype("f4")}, 0.1, "looped", {}, facts)
        )
    return found, rng.random((len(kinds), 8, 8))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    found, pictures = history([str(i) for i in range(10)])
    return le.write_report({"digits": found}, tmp_path_factory.mktemp("first") / "page.html", examples=pictures)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    found, _ = history(LONG)
    return le.write_report({"long": found}, tmp_path_factory.mktemp("long") / "page.html")


@pytest.fixture
def reader(browser, page):
    made = Reader(browser, page)
    yield made
    made.close()


def boxes(reader, selector):
    return reader.page.evaluate(BOXES, selector)


def apart(several, slack=0.5):
    """No two boxes overlap."""
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in itertools.combinations(several, 2):
        assert min(r1, r2) - max(l1, l2) <= slack or min(b1, b2) - max(t1, t2) <= slack, (l1, t1, l2, t2)


def test_the_first_screen_holds_the_answer_without_scrolling(reader):
    for selector in (
        ".front:not([hidden]) .headline",
        ".class-table",
        "#frame-words",
        ".pair-card",
        ".sparkline",
        "#curve-plot svg",
        "#state-plot svg",
    ):
        found = boxes(reader, selector)
        assert found, selector
        for left, top, right, bottom in found:
            assert left >= 0, selector
            assert top >= 0, selector
            assert right <= WIDE["width"], selector
            assert bottom <= WIDE["height"], selector
    assert len(boxes(reader, ".class-table button")) == 100
    said = reader.text(".front:not([hidden]) .headline")
    assert said.startswith("At training step 320, a step on one example moves other examples of its class 4.")
    assert "change point between steps 20 and 40" in reader.text(".front:not([hidden]) .evidence")
    (pair,) = reader.page.locator(".pair-card").all()
    assert re.search(r"1\s→\s3: \d\d\s%, .*× \(.*×\) what row 1 and column 3 suggest", pair.text_content())
    assert pair.locator("img").count() == 2
    (framed,) = reader.page.locator(".class-table button.clear").all()
    assert framed.get_attribute("aria-label").startswith("step on 1, moves 3:")
    assert reader.text("#frame-words").strip() == (
        "Click a cell for its pairs. A frame means clearly above what its row and column suggest, not a large number."
    )
    pair.click()
    reader.settle("!byId('behind').hidden && byId('behind').textContent.startsWith('1 → 3')")


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_a_click_brings_its_pairs_into_view(browser, page, viewport):
    """And a search marks no cell, which nobody chose."""
    reader = Reader(browser, page, viewport=viewport, reduced_motion="reduce")
    reader.page.fill("#search", "7")
    reader.page.keyboard.press("Enter")
    reader.settle("chosen.cell === 'row' && document.querySelector('.class-table th.row.chosen')")
    assert reader.text(".class-table th.row.chosen") == "7"
    assert reader.page.locator(".class-table button[aria-pressed=true]").count() == 0
    reader.page.click(".class-table button[data-a='1'][data-b='3']")
    reader.settle("!byId('behind').hidden && byId('behind').getBoundingClientRect().top < 0.7 * innerHeight")
    (cell,) = reader.page.locator(".class-table button[aria-pressed=true]").all()
    assert (cell.get_attribute("data-a"), cell.get_attribute("data-b")) == ("1", "3")
    reader.page.click("#behind >> text=Close")
    assert reader.page.locator(".class-table button[aria-pressed=true]").count() == 0
    (box,) = boxes(reader, ".class-table button[data-a='1'][data-b='3']")
    assert 0 <= box[1] < box[3] <= viewport["height"]
    reader.close()


def test_all_views_have_the_headlines_interval(reader):
    """At the last step the curve, and so Compare, has the interval of the headline."""
    curve, brief = reader.page.evaluate("[panel().front.curve, panel().front.brief.times]")
    assert [curve[name][-1] for name in ("times", "low", "high")] == pytest.approx(brief)
    assert "√kl at step 320: same class" in reader.text("#compare-words")
    assert times(*brief) in reader.text("#compare-words")
    assert times(*brief) in reader.text(".front:not([hidden]) .headline")


def test_a_phone_shows_headline_and_matrix_first(browser, page):
    reader = Reader(browser, page, viewport=PHONE, has_touch=True, is_mobile=True)
    for selector in (".front:not([hidden]) .headline", ".class-table"):
        for left, top, right, bottom in boxes(reader, selector):
            assert left >= 0
            assert top >= 0
            assert right <= PHONE["width"]
            assert bottom <= PHONE["height"]
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    apart([*boxes(reader, "h1"), *boxes(reader, "#theme")])
    for selector in (".lead", "#measure", "#when"):  # what was measured, and the controls, come before the headline
        (box,) = boxes(reader, selector)
        assert 0 < box[3] <= boxes(reader, ".front:not([hidden]) .headline")[0][1]
    assert reader.text("#frame-words").startswith("Tap a cell")
    hint = "getComputedStyle(document.querySelector('nav'), '::after').visibility"
    assert reader.page.evaluate(hint) == "visible"
    reader.page.evaluate("document.querySelector('nav').scrollTo(9999, 0)")
    reader.settle(f"{hint} === 'hidden'")
    reader.page.evaluate("byId('map').scrollIntoView()")
    reader.settle("byId('map-plot').data.length > 10")
    assert reader.page.evaluate("byId('map-plot').data[0].marker.size") <= 12
    reader.close()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_ten_long_names_never_overprint(browser, long_names, viewport):
    reader = Reader(browser, long_names, viewport=viewport)
    apart(boxes(reader, ".class-table th"))
    apart(boxes(reader, ".class-table button"))
    rows = reader.page.locator(".class-table th.row")
    assert len(set(rows.all_text_contents())) == len(LONG)  # shortened, but still apart
    assert all(rows.evaluate_all("(several) => several.map((one) => one.scrollWidth <= one.clientWidth + 1)"))
    reader.page.evaluate("byId('matrix').scrollIntoView()")
    for axis in ("x", "y"):
        ticks = boxes(reader, f"#matrix-plot .{axis}tick text")
        assert len(ticks) == 10
        apart(ticks)
    apart(boxes(reader, "#curve-plot text"))
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    reader.close()


DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
"""Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB."""


def linear(colour):
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / np.array([0.9505, 1, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    bright, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def as_hex(colour):
    """What a browser writes as rgb(1, 2, 3)."""
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)[:3])


def test_ten_colours_differ_also_under_deuteranopia(reader):
    on_white, on_black = reader.page.evaluate("[ON_WHITE, ON_BLACK]")
    assert len(on_white) == len(on_black) == 10
    for one, other in (*itertools.combinations(on_white, 2), *itertools.combinations(on_black, 2)):
        for seen in (np.eye(3), DEUTERANOPIA):
            a, b = (lab(np.clip(seen @ linear(c), 0, 1)) for c in (one, other))
            assert np.linalg.norm(a - b) > 30, (one, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, page, scheme):
    """WCAG AA, 4.5, for text, and for the numbers in the cells."""
    reader = Reader(browser, page, color_scheme=scheme)
    names = ("paper", "card", "ink", "soft", "link", "good", "careful", "bad")
    style = "(name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    colour = {name: reader.page.evaluate(style, name) for name in names}
    for ground, text in itertools.product(("paper", "card"), names[2:]):
        assert contrast(colour[ground], colour[text]) >= 4.5, (ground, text)
    for at in np.linspace(-3, 1, 30):
        ground = reader.page.evaluate(f"shade(panel().scale, {10**at})")
        assert contrast(ground, reader.page.evaluate(f"inkOn('{ground}')")) >= 4.5
    reader.close()


def test_the_colours_are_logarithmic_with_an_anchor_at_one(reader):
    ask = reader.page.evaluate
    assert ask("panel().scale.log")
    assert ask("shade(panel().scale, 1)") == "#fde725"
    assert ask("shade(panel().scale, 1.5)") != "#fde725"
    assert ask("byId('matrix-plot').data[0].colorbar.ticktext[0]").startswith("≤ ")
    assert ask("byId('matrix-plot').data[0].colorbar.ticktext.at(-1)").startswith("≥ ")
    assert "100 %" in ask("byId('matrix-plot').data[0].colorbar.ticktext")
    assert "% of the pairs lie beyond the ends of the colours" in reader.text("#matrix-note")


def test_a_cell_is_chosen_everywhere_and_kept_in_the_address(reader, page):
    reader.page.click(".class-table button[data-a='1'][data-b='3']")
    reader.settle("chosen.cell === 'open' && !byId('behind').hidden && !stale.has('matrix')")
    assert reader.page.evaluate("[classOf(run().sources, chosen.source), classOf(run().targets, chosen.target)]") == [
        "1",
        "3",
    ]
    assert "1 → 3: 36 pairs of examples at step 320" in reader.text("#behind h3")
    assert reader.page.locator("#behind img").count() == 24
    frame = reader.page.evaluate("byId('matrix-plot').layout.shapes.at(-1)")
    assert (frame["x0"], frame["x1"], frame["y0"], frame["y1"]) == (17.5, 23.5, 5.5, 11.5)
    reader.page.evaluate("byId('map').scrollIntoView()")
    reader.settle("!stale.has('map')")
    opacity = reader.page.evaluate("byId('map-plot').data.slice(0, 10).map((d) => d.marker.opacity)")
    assert [place for place, one in enumerate(opacity) if one > 0.5] == [1, 3]
    address = reader.page.evaluate("location.href")
    reader.open(address)
    assert "1 → 3: 36 pairs" in reader.text("#behind h3")
    assert reader.page.locator(".class-table button[aria-pressed=true]").get_attribute("data-a") == "1"
    reader.page.click("#behind >> text=Close")
    assert reader.page.evaluate("byId('behind').hidden")


def test_the_keyboard_has_one_stop_for_the_matrix_and_one_for_the_gallery(reader):
    reader.page.evaluate("document.activeElement.blur()")
    stops = []
    for _ in range(40):
        reader.page.keyboard.press("Tab")
        stops.append(reader.page.evaluate("document.activeElement.closest('#class-table, #moved')?.id || ''"))
    assert stops.count("class-table") == 1
    assert stops.count("moved") == 1
    reader.page.locator(".class-table button[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        reader.page.keyboard.press(key)
    reader.settle("!byId('behind').hidden")
    assert "1 → 3" in reader.text("#behind h3")


def test_search_finds_classes_examples_and_texts(reader, browser, tmp_path):
    reader.page.fill("#search", "7")
    found = reader.page.locator("#found li").all_text_contents()
    assert found[0] == "class 7"
    assert "1 · #7" in found
    reader.page.keyboard.press("ArrowDown")
    reader.page.keyboard.press("Enter")
    reader.settle("run().sources.places[chosen.source] === 7")
    texts = [f"the {word} sat" for word in ("cat", "dog", "owl", "<b>fox</b>")]
    S = le.as_similarity(np.eye(4) + 0.1, source_labels=list("abcd"), examples=texts, measure="kl")
    other = Reader(browser, le.write_report(S, tmp_path / "texts.html"))
    other.page.fill("#search", "<B>fox")
    assert other.page.locator("#found li").all_text_contents() == ["d · #3: the <b>fox</b> sat"]
    other.page.keyboard.press("Enter")
    other.settle("chosen.source === 3 && byId('pair').textContent.includes('<b>fox</b>')")
    other.page.fill("#search", "nowhere")
    assert other.text("#found") == "nothing found"
    other.close()


def test_drawings_and_tables_can_be_saved(reader, tmp_path):
    def saved(selector):
        with reader.page.expect_download() as download:
            reader.page.click(selector)
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path.read_bytes()

    def table(selector):
        return list(csv.DictReader(saved(selector).decode().splitlines()))

    rows = table("[aria-label='Save class matrix as CSV']")
    assert len(rows) == 100
    shown = reader.page.evaluate("panel().pairs.median.at(-1)[1][3]")
    (row,) = [one for one in rows if (one["source_class"], one["target_class"]) == ("1", "3")]
    assert float(row["median"]) == pytest.approx(shown)
    curve = table("[aria-label='Save locality over training as CSV']")
    assert [int(one["step"]) for one in curve] == list(STEPS)
    whole = table("[aria-label='Save matrix as CSV']")
    assert len(whole) == 60 * 60
    assert saved("[aria-label='Save matrix as PNG']")[:4] == b"\x89PNG"
    assert b"<svg" in saved("[aria-label='Save matrix as SVG']")[:200]
    assert b"<svg" in saved("[aria-label='Save locality over training as SVG']")[:200]


def test_two_steps_are_compared_and_targets_can_be_normalised(reader):
    reader.page.evaluate("byId('compare').scrollIntoView()")
    reader.page.select_option("#second", "0")
    reader.page.select_option("#first_step", "0")
    reader.settle("byId('compare-words').textContent.includes('at step 0') && byId('compare-plot').data.length === 3")
    assert "digits, √kl at step 320" in reader.text("#compare-words")
    before = reader.page.locator(".class-table button").first.text_content()
    reader.page.select_option("#per", "target")
    reader.settle("chosen.per === 'target' && byId('class-table').textContent.length > 0")
    assert reader.page.locator(".class-table button").first.text_content() != before
    assert "relative to the usual source of that column" in reader.text("#classes-title")
    assert reader.page.evaluate("byId('matrix-plot').data[0].colorbar.title.text") == "√kl ÷ its target's usual value"
    reader.page.select_option("#second", "1")
    reader.settle("byId('compare-plot').data.length === 2")
    assert "one colour means two numbers" in reader.text("#compare-words")
    titles = reader.page.evaluate("byId('compare-plot').data.map((one) => one.colorbar.title.text)")
    assert titles == ["√kl", "relative_l1"]


def test_the_slider_moves_the_first_screen(reader):
    reader.page.locator("#when").focus()
    reader.page.keyboard.press("Home")
    reader.settle("byId('classes-title').textContent.includes('at step 0')")
    shown = reader.page.locator(".class-table button[data-a='0'][data-b='1']").text_content()
    expected = reader.page.evaluate("panel().pairs.median[0][0][1]")
    assert int(shown) == round(100 * expected)
    times = reader.page.evaluate("panel().front.curve.times[0]")
    said = reader.text(".front:not([hidden]) .headline")
    assert said.startswith("At training step 0, a step on one example moves other examples of its class ")
    assert f"{times:.2f}×" in said or f"{times:.1f}×" in said
    assert reader.text(".front:not([hidden]) .evidence").startswith("At the last step, 320: Baseline")
    assert reader.text("#named .named-title") == "Coupled classes at step 320"
    assert reader.page.locator(".class-table button.clear").count() == 0
    reader.page.select_option("#measure", "1")
    reader.settle("panel().measure === 'relative_l1'")
    assert reader.text(".front:not([hidden]) .headline").startswith("At training step 320, a step on one example")
    assert reader.text(".front:not([hidden]) .evidence").startswith("Baseline")


def test_sentences_write_times_as_the_library_does(reader):
    several = (3.501, 3.23, 3.82), (12.3, 9.2, 16.1), (1.262, 1.214, 1.281), (1.1, 1.02, 1.2), (0.3, 0.2, 99.0)
    for value, low, high in several:
        assert reader.page.evaluate(f"timesWords({value}, {low}, {high})") == times(value, low, high)
    assert reader.page.evaluate("timesWords(1, null, null)") == times(1.0)
    for share in (0.4612, 0.0123, 12.34, 0.1):
        assert reader.page.evaluate(f"percentOf({share})") == percent(share)


def test_lists_beside_percentages_are_in_percent(reader):
    reader.page.click(".class-table button[data-a='1'][data-b='3']")
    reader.settle("!byId('behind').hidden")
    said = reader.page.locator("#behind .behind button").all_text_contents()
    values = [float(re.search(r": ([\d.,]+) %$", one)[1].replace(",", "")) for one in said]
    assert values == sorted(values, reverse=True)
    median = reader.page.evaluate("panel().pairs.median.at(-1)[1][3]")
    assert f"median {percent(median)} (how far" in reader.text("#behind h3")
    reader.settle("byId('moved').textContent.includes('in percent of its own change')")
    assert all(one.count(" %") == 1 for one in reader.page.locator("#moved li").all_text_contents())
    assert "in percent of how far the source itself does" in reader.text("#pair")


def test_labels_of_classes_that_coincide_stand_apart(browser, tmp_path):
    rng = np.random.default_rng(0)
    names = np.repeat([f"class name {i}" for i in range(12)], 4)
    S = le.as_similarity(np.exp(0.01 * rng.normal(size=(48, 48))), source_labels=names, measure="kl")
    reader = Reader(browser, le.write_report(S, tmp_path / "page.html"))
    reader.page.evaluate("byId('map').scrollIntoView()")
    reader.settle("document.querySelectorAll('#map-plot .annotation').length === 12")
    apart(boxes(reader, "#map-plot .annotation-text-g rect.bg"))
    assert reader.page.evaluate(
        "movesApart([{left: 0, right: 9, top: 0, bottom: 9}, {left: 20, right: 29, top: 0, bottom: 9}])"
    ) == [0, 0]
    reader.close()


def test_one_target_has_its_helpers_and_harmers_on_the_first_screen(browser, tmp_path):
    values, left_out = tall()
    pictures = np.random.default_rng(0).random((len(values), 8, 8))
    labels = np.arange(len(values)) % 4
    S = le.as_similarity(
        values, source_labels=labels, target_labels=[1], examples=(pictures, pictures[:1]), measure="loss"
    )
    reader, told = headline(browser, tmp_path, S)
    assert "lower the loss of the target." in told
    lists = reader.page.locator("#influences ul")
    for place, rows in enumerate((left_out[:3], left_out[3:])):
        items = lists.nth(place).locator("li").all_text_contents()
        assert [f"#{row}" in one for row, one in zip(rows, items, strict=True)] == [True] * 3
    assert reader.page.locator("#influences img").count() == 6
    for left, top, right, bottom in boxes(reader, "#influences li"):
        assert left >= 0
        assert top >= 0
        assert right <= WIDE["width"]
        assert bottom <= WIDE["height"]
    assert reader.page.locator(".class-table th.column").all_text_contents() == ["1"]
    assert reader.page.locator(".class-table th.row").count() == 4
    reader.page.locator(".class-table button").first.focus()
    reader.page.keyboard.press("ArrowDown")
    assert reader.page.evaluate("[document.activeElement.dataset.a, document.activeElement.dataset.b]") == ["1", "1"]
    assert reader.page.locator("#run-label").is_hidden()
    assert reader.page.locator("#measure-label").is_hidden()
    reader.close()


def test_small_changes_have_one_unit_and_fit_their_cells(browser, tmp_path):
    rng, kinds = np.random.default_rng(0), np.repeat(np.arange(10), 3)
    values = 10.0 ** rng.uniform(-9, -3, size=(30, 30)) * rng.choice([-1, 1], size=(30, 30))
    reader, _ = headline(browser, tmp_path, le.as_similarity(values, source_labels=kinds, measure="loss"))
    assert re.search(r"in units of 10⁻[⁴⁵]; \+ and − are closer to 0\.$", reader.text("#classes-title"))
    cells = reader.page.locator(".class-table button")
    words = cells.all_text_contents()
    assert all(re.fullmatch(r"[+−]|−?\d(\.\d)?", one) for one in words)
    assert {"+", "−"} <= set(words)
    white, colours = "rgb(247, 247, 247)", cells.evaluate_all("(all) => all.map((one) => one.style.background)")
    assert sum(colour != white for word, colour in zip(words, colours, strict=True) if word in "+−") > 5  # logarithmic
    assert "colours are logarithmic" in reader.text("#class-scale")
    wide = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert reader.page.locator(".class-table button").evaluate_all(wide) == 0
    reader.close()


def headline(browser, tmp_path, S, **options):
    reader = Reader(browser, le.write_report({"run": S}, tmp_path / "page.html", **options))
    told = reader.text(".front:not([hidden])") + reader.text("#named")
    return reader, " ".join(told.split())


def test_two_lines_of_one_axis_have_one_scale_and_numbers_fit_their_cells(browser, tmp_path):
    labels = np.repeat([str(i) for i in range(10)], 3).tolist()
    same = np.equal.outer(labels, labels)
    found = History(["stiffness_cos"], labels, labels, square=True)
    for step in STEPS[:4]:
        found.append(Probe(step, {"stiffness_cos": np.where(same, -0.76, -0.0173).astype("f4")}, 0.1, "looped", {}, {}))
    reader, _ = headline(browser, tmp_path, found)
    names = reader.page.locator("#curve-plot text.named")
    (left, right) = (names.nth(i).bounding_box() for i in range(2))
    assert left["x"] + left["width"] <= right["x"]
    (within, between) = (one.get_attribute("d") for one in reader.page.locator("#curve-plot path[stroke-width]").all())
    height = [float(path.split("L")[0].split()[1]) for path in (within, between)]
    assert height[0] > height[1] + 50  # the lower median is drawn lower
    assert len({box[3] - box[1] for box in boxes(reader, ".class-table td")}) == 1
    wide = "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert reader.page.locator(".class-table button").evaluate_all(wide) == 0
    reader.close()


def test_noise_says_so(browser, tmp_path):
    S = le.as_similarity(
        np.random.default_rng(0).lognormal(size=(60, 60)), source_labels=np.arange(60) % 6, measure="kl"
    )
    reader, told = headline(browser, tmp_path, S)
    assert "No structure found: a step moves other examples of its class 1.0×" in told
    assert "No coupled pair of classes was found: none is clearly above what its row and column suggest." in told
    assert "There are 10 examples a class." in told
    assert reader.page.locator(".pair-card").count() == reader.page.locator(".class-table button.clear").count() == 0
    reader.close()


@pytest.mark.parametrize("measure", ["stiffness_cos", "loss", "change of kl", "my_own"])
def test_signed_and_unknown_quantities_say_sensible_sentences(browser, tmp_path, measure):
    rng, kinds = np.random.default_rng(0), np.arange(40) % 4
    values = 0.5 * (kinds[:, None] == kinds) - 0.2 + 0.1 * rng.normal(size=(40, 40))
    reader, told = headline(browser, tmp_path, le.as_similarity(values, source_labels=kinds, measure=measure))
    assert "as far" not in told
    expected = {
        "stiffness_cos": "between classes.",
        "loss": "lowers the loss of",
        "change of kl": "Median over pairs: within a class it changes by 0.",
        "my_own": "draws no conclusion",
    }[measure]
    assert expected in told
    if measure == "loss":
        reader.settle("byId('moved').textContent.includes('helped most by a step on')")
    reader.close()


def test_pages_of_odd_results_say_what_they_cannot_show(browser, tmp_path):
    one, _ = history(["a", "b", "c", "d"])
    first = History(["kl"], one.source_classes, one.target_classes, square=True)
    first.append(Probe(0, {"kl": one[0].similarity["kl"]}, 0.1, "looped"))
    nothing = le.as_similarity(np.full((6, 6), np.nan), source_labels=list("aabbcc"), measure="kl")
    single = le.as_similarity(np.random.default_rng(0).random((6, 6)), source_labels=["a"] * 6, measure="kl")
    many = le.as_similarity(
        np.random.default_rng(0).random((5000, 3), dtype=np.float32),
        source_labels=np.arange(5000),
        target_labels=[0, 1, 2],
        measure="kl",
    )
    long = le.as_similarity(np.eye(3), source_labels=["x" * 10**7, "y" * 10**7, "z"], measure="kl")
    for S, words in (
        (first, "moves other examples of its class"),
        (nothing, "No pair could be resolved"),
        (single, "All examples have one class, a,"),
        (many, " are more than a page can show (100)."),
        (long, "cannot be compared with other classes"),
    ):
        reader, told = headline(browser, tmp_path, S)
        assert words in told
        reader.close()


def several():
    """A history, a similarity that is less local, one with signs, and texts without classes."""
    found, pictures = history([str(i) for i in range(10)])
    S = found[-1].similarity["kl"].astype(float)
    options = {"source_labels": found.source_classes, "examples": pictures}
    return {
        "digits during training": found,
        "half as local": le.as_similarity(S**0.25, measure="relative", **options),
        "with signs": le.as_similarity(np.log(S), measure="kernel", **options),
        "texts": le.as_similarity(S[:6, :6], examples=[f"text {i}" for i in range(6)], measure="kl", square=True),
    }, pictures


@pytest.fixture(scope="module")
def runs_page(tmp_path_factory):
    runs, pictures = several()
    return le.write_report(runs, tmp_path_factory.mktemp("runs") / "page.html", examples=pictures)


def test_several_runs_are_listed_with_their_numbers_and_one_is_chosen(browser, runs_page):
    reader = Reader(browser, runs_page)
    assert reader.text("#runs > p").startswith("4 runs: how many times as far a step moves its own class as other")
    rows = reader.page.locator(".runs button")
    told = rows.all_text_contents()
    assert re.fullmatch(r"digits during training √kl at step 320\d\.\d× \(\d\.\d–\d\.\d×\), local", told[0])
    assert re.fullmatch(r"half as local relative\d\.\d+× \(.*×\), local", told[1])
    assert told[2].startswith("with signs kernelwithin − between classes: ")
    assert told[3].endswith("as far as its own")
    dots = [float(one.get_attribute("cx")) for one in reader.page.locator(".interval circle").all()]
    axis = float(reader.page.locator(".interval .axis").first.get_attribute("d").split()[0][1:])
    assert axis < dots[1] < dots[0]
    below = ".front:not([hidden]) .headline", ".class-table", ".pair-card", "#curve-plot svg", "#state-plot svg"
    for selector in ("#runs", *below):
        for left, top, right, bottom in boxes(reader, selector):
            assert left >= 0, selector
            assert top >= 0, selector
            assert right <= WIDE["width"], selector
            assert bottom <= WIDE["height"], selector
    rows.nth(1).click()
    reader.settle("run().name === 'half as local' && chosen.measure === 0")
    assert [one.get_attribute("aria-pressed") for one in rows.all()] == ["false", "true", "false", "false"]
    assert reader.page.locator("#run").input_value() == "1"
    assert "run=1" in reader.page.evaluate("location.hash")
    rows.nth(0).click()
    reader.settle("run().name === 'digits during training'")
    reader.page.select_option("#measure", "1")
    reader.settle("panel().measure === 'relative_l1'")
    assert rows.first.text_content().startswith("digits during training relative_l1 at step 320")
    rows.nth(3).focus()
    reader.page.keyboard.press("Enter")
    reader.settle("run().name === 'texts'")
    reader.close()


def test_the_list_of_runs_fits_a_phone_and_many_runs_scroll(browser, runs_page, tmp_path):
    reader = Reader(browser, runs_page, viewport=PHONE, has_touch=True, is_mobile=True)
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    (box,) = boxes(reader, "#runs")
    assert box[3] <= PHONE["height"] / 2 + 60
    reader.close()
    runs, _ = several()
    reader = Reader(browser, le.write_report({f"run {i}": runs["texts"] for i in range(30)}, tmp_path / "page.html"))
    assert reader.text("#runs > p") == "30 runs: their main numbers with 95 % intervals. Choose one:"
    (box,) = boxes(reader, "#runs")
    assert box[3] - box[1] < 260
    reader.close()
    one = Reader(browser, le.write_report({"alone": runs["texts"]}, tmp_path / "page.html"))
    assert one.page.locator("#runs").is_hidden()
    one.close()


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_texts_without_classes_have_a_first_screen(browser, tmp_path, viewport):
    texts = [f"{word} sells {thing}" for word in ("Anna", "Boris", "Clara") for thing in ("bread", "<b>books</b>")]
    values = np.random.default_rng(0).random((6, 6)) * 0.3 + np.eye(6)
    values[0, 4] = 0.8
    S = le.as_similarity(values, examples=texts, measure="relative", square=True)
    reader = Reader(browser, le.write_report({"texts": S}, tmp_path / "page.html"), viewport=viewport)
    assert reader.text(".headline").startswith("A step on one text moves the prediction for another text ")
    cards = reader.page.locator(".pair-card")
    assert cards.count() == 3
    assert cards.first.locator(".text").all_text_contents() == [texts[0], texts[4]]
    assert re.search(r"#0\s→\s#4: 80\s%\.", cards.first.text_content())
    for left, top, right, bottom in boxes(reader, ".pair-card"):
        assert left >= 0
        assert top >= 0
        assert right <= viewport["width"]
        assert bottom <= viewport["height"]
    assert reader.page.locator("#classes").is_hidden()
    reader.page.evaluate("byId('matrix').scrollIntoView()")
    names = reader.page.locator("#matrix-plot .ytick text").all_text_contents()
    assert [one[:4] for one in names] == [text[:4] for text in texts]
    apart(boxes(reader, "#matrix-plot .xtick text"))
    assert "an example with itself" in reader.text("#pair")
    reader.page.evaluate("scrollTo(0, 0)")
    cards.first.click()
    reader.settle("chosen.source === 0 && chosen.target === 4 && byId('pair').textContent.includes('80 %')")
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    reader.close()


def test_a_comparison_speaks_of_differences(browser, tmp_path):
    kinds = np.repeat([str(i) for i in range(11)], 6)
    before = np.random.default_rng(0).lognormal(-1, 0.2, size=(66, 66))
    after = before + 0.01 * np.random.default_rng(1).normal(size=before.shape)
    after[np.ix_(kinds == "2", kinds == "10")] += 0.2
    after[np.ix_(kinds == "10", kinds == "9")] -= 0.1
    found = le.compare(*(le.as_similarity(one, source_labels=kinds, measure="relative") for one in (before, after)))
    reader = Reader(browser, le.write_report({"two": found}, tmp_path / "page.html"))
    assert reader.page.locator(".class-table th.row").all_text_contents() == [str(i) for i in range(11)]
    heads = [" ".join(one.split()) for one in reader.page.locator(".pair-card b").all_text_contents()]
    assert [one[: one.index(" by ")] for one in heads] == ["2 → 10 rose", "10 → 9 fell"]
    assert "2 of 121 pairs of classes changed clearly: 1 rose, 1 fell" in reader.text("#named")
    assert "oupled" not in reader.text("#short")
    assert reader.page.locator(".class-table button.clear").count() == 2
    assert "left out" in reader.text("#pair .big")
    assert "the source itself moved" not in reader.text("#pair")
    assert "rises most, or falls least, for" in reader.text("#moved")
    for scheme in ("light", "dark"):  # a frame stands out from its cell
        reader.page.emulate_media(color_scheme=scheme)
        framed = reader.page.evaluate(  # at once: cells are drawn again
            "[...document.querySelectorAll('.class-table button.clear')].map((one) => getComputedStyle(one))"
            ".map((one) => [one.borderTopColor, one.backgroundColor])"
        )
        assert len(framed) == 2
        for frame, cell in framed:
            assert contrast(as_hex(frame), as_hex(cell)) >= 4.5
    reader.page.select_option("#measure", "0")
    reader.settle("panel().title === 'relative before'")
    assert "rose" not in reader.text("#named")
    reader.close()


def test_cards_show_when_their_pair_came_about(reader):
    """A line over training on each card, whose dot follows the slider; frames are of the last step alone."""
    lines = reader.page.locator("#named .sparkline")
    assert lines.count() == reader.page.locator("#named .pair-card").count() > 0
    assert "framed in the matrix" in reader.text("#named .named-title")
    (card,) = reader.page.evaluate("panel().front.named.pairs")
    said = lines.first.locator("text").all_text_contents()
    assert {"— measured", "╌ suggested", "0", "step 320"} <= set(said)
    numbers = [percent(card[name][at]) for at in (0, -1) for name in ("cell", "suggested")]
    assert [one for one in said if "%" in one] == numbers
    told = reader.text(".pair-card").replace("\xa0", " ")
    assert f"1 → 3: {numbers[2]}," in told  # the curves end at the numbers beside them
    assert f"suggest ({numbers[3]})." in told
    assert "Clearly coupled from step 40 on (4.1× there)." in told
    at = "Number(document.querySelector('#named .sparkline circle').getAttribute('cx'))"
    last = reader.page.evaluate(at)
    reader.page.locator("#when").focus()
    reader.page.keyboard.press("Home")
    reader.settle(f"{at} < {last}")
    assert "framed" not in reader.text("#named .named-title")
    assert "at step 320" in reader.text("#named .named-title")


def test_the_search_opens_below_its_box(reader):
    reader.page.fill("#search", "1")
    left = "document.getElementById('{}').getBoundingClientRect().left"
    assert abs(reader.page.evaluate(f"{left.format('found')} - {left.format('search')}")) < 3
