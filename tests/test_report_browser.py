"""The page in a real browser: Chromium as the distribution packages it, opened from a file, without a network."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import local_elasticity as le
from local_elasticity.report.explorer import SCRIPTS
from local_elasticity.words import percent

pytestmark = pytest.mark.browser
SHOTS = Path(os.environ.get("SCREENSHOTS", "test-artefacts"))
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
HOSTILE = [
    "<img src=x onerror=window.broken=1>",
    "\"'`</script><script>window.broken=1</script>",
    "日本語",
    "z" * 10**7,
]


@pytest.fixture(scope="module")
def digits():
    """A small net watched while it learns three digits, and where it ended, with clusters."""
    torch.manual_seed(0)
    x, y = le.data.load("digits").take([3, 8, 9], 60)
    shown, kinds = le.data.load("digits").take([3, 8, 9], 8, split="test")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    place = lambda names: torch.tensor([{3: 0, 8: 1, 9: 2}[int(one)] for one in names])
    monitor = le.Monitor(
        net,
        (shown, place(kinds)),
        loss="cross_entropy",
        source_labels=kinds,
        measure=("kl", "relative_l1"),
        every=20,
        budget=None,
    )
    labels = place(y)
    for step in range(101):
        monitor.step(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return monitor, shown, kinds


@pytest.fixture(scope="module")
def page_file(digits, tmp_path_factory):
    monitor, shown, kinds = digits
    end = le.as_similarity(monitor.history[-1].similarity["kl"], source_labels=kinds, examples=shown, measure="kl")
    clusters = [int(kind) if i else 9 for i, kind in enumerate(kinds)]
    return le.write_report(
        {"watched": monitor, "end": end, "clusters": end.le.with_clusters(clusters)},
        tmp_path_factory.mktemp("page") / "report.html",
        examples=shown,
    )


class Reader:
    """A page that is open, with everything it complained of."""

    def __init__(self, browser, file, **options):
        self.context = browser.new_context(**{"viewport": WIDE, **options})
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.open(f"file://{file}")

    def open(self, address):
        self.page.goto("about:blank")
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def choice(self, name):
        return self.page.evaluate(f"chosen.{name}")

    def text(self, selector):
        return self.page.text_content(selector)

    def settle(self, condition):
        """Wait until it is so; the page's policy forbids Playwright's own way, which evaluates text inside the page."""
        for _ in range(400):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never came about: {condition}")

    def close(self):
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
        self.context.close()


@pytest.fixture
def reader(browser, page_file):
    made = Reader(browser, page_file)
    yield made
    made.close()


CELL = """([row, column]) => {
  const plot = byId('matrix-plot');
  const box = plot.querySelector('.nsewdrag').getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout;
  return [box.left + xaxis.d2p(column), box.top + yaxis.d2p(row)];
}"""
HOVERS = """async () => {
  const plot = byId('matrix-plot');
  const box = plot.querySelector('.nsewdrag').getBoundingClientRect();
  const took = [];
  for (let i = 1; i < 9; i++) {
    const began = performance.now();
    const place = { clientX: box.left + 40 * i, clientY: box.top + 30 * i, bubbles: true };
    plot.dispatchEvent(new MouseEvent('mousemove', place));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    took.push(performance.now() - began);
  }
  return took;
}"""
SLIDE = """async () => {
  const began = performance.now();
  choose({ when: 3 });
  await draw();
  return performance.now() - began;
}"""


def cell(reader, row, column):
    """Where a cell of the ordered matrix lies on the screen."""
    return reader.page.evaluate(CELL, [row, column])


def test_hovering_shows_the_two_examples_and_the_exact_number(reader, digits):
    reader.page.evaluate("byId('matrix').scrollIntoView()")
    reader.page.mouse.move(*cell(reader, 2, 17))
    reader.settle("byId('pair').textContent.includes('9 · #17')")
    value = digits[0].history[-1].similarity["kl"][2, 17]
    assert reader.text("#pair .big") == percent(float(value) ** 0.5)
    assert reader.page.locator("#pair img").count() == 2
    assert "3 · #2" in reader.text("#pair")


def test_clicking_picks_a_source_and_shows_whom_it_moves(reader, digits):
    reader.page.evaluate("byId('matrix').scrollIntoView()")
    reader.page.mouse.click(*cell(reader, 5, 20))
    reader.settle("chosen.source === 5")
    reader.settle("byId('moved').textContent.includes('A step on 3 · #5')")
    row = digits[0].history[-1].similarity["kl"][5].copy()
    row[5] = -np.inf
    most = int(row.argmax())
    assert f"#{most}" in reader.page.locator("#moved .examples").first.locator("li").first.text_content()
    assert reader.page.locator("#moved img").count() == 21
    reader.page.locator("#moved .examples button").first.click()
    reader.settle(f"chosen.source === {most}")


def test_the_slider_moves_the_matrix_and_the_curves(reader, digits):
    before = reader.page.evaluate("byId('matrix-plot').data[0].z[0][9]")
    reader.page.locator("#when").focus()
    reader.page.keyboard.press("Home")
    reader.settle("chosen.when === 0 && byId('step').textContent === '0'")
    reader.settle(f"byId('matrix-plot').data[0].z[0][9] !== {before}")
    first = digits[0].history[0].similarity["kl"][0, 9]
    shown = 10 ** reader.page.evaluate("byId('matrix-plot').data[0].z[0][9]")
    assert shown == pytest.approx(float(first) ** 0.5, rel=1e-4)
    reader.page.evaluate("byId('time').scrollIntoView()")
    reader.settle("byId('time-plot').layout.shapes[0].x0 === 0")
    reader.page.locator("#when").focus()
    reader.page.keyboard.press("ArrowRight")
    reader.settle("byId('step').textContent === '20'")


def test_curves_have_bands_and_can_be_of_one_class(reader):
    assert reader.page.evaluate("byId('time-plot').data.filter((d) => d.fill === 'tonexty').length") == 2
    assert "medians over all pairs of one class and of different classes" in reader.text("#time-words")
    reader.page.evaluate("byId('time').scrollIntoView()")
    reader.page.select_option("#curves", "times as far as other classes")
    reader.settle("byId('time-plot').layout.yaxis.title.text === 'times as far as other classes'")
    assert "1 where it moves all alike" in reader.text("#time-words")
    reader.page.select_option("#curves", "8")
    reader.settle("byId('time-plot').data.length === 7")
    assert "target 9" in reader.page.evaluate("byId('time-plot').data.map((d) => d.name).join()")
    reader.page.select_option("#measure", "1")
    reader.settle("byId('time-plot').layout.yaxis.title.text.startsWith('relative_l1, % of')")


def test_the_order_follows_class_and_cluster(reader):
    reader.page.select_option("#run", "2")
    reader.settle("run().name === 'clusters' && seen.order === 'class'")
    reader.page.evaluate("byId('map').scrollIntoView()")
    reader.settle("byId('map-words').textContent.includes('Clusters agree')")
    count = reader.page.evaluate("run().sources.cluster.length")
    right = f"{100 * (count - 1) / count:.1f} % of the examples"  # one is in a cluster of its own
    assert f"Clusters agree with the classes for {right}" in reader.text("#map-words")
    reader.page.select_option("#order", "cluster")
    reader.settle("seen.order === 'cluster'")
    reader.page.evaluate("byId('map').scrollIntoView()")
    reader.settle("!stale.has('map')")
    order = reader.page.evaluate("seen.rows.map((i) => run().sources.cluster[i])")
    assert order == sorted(order)
    assert reader.page.evaluate("byId('map-plot').data.find((d) => d.name === 'in a wrong cluster').x.length") == 1


def test_zooming_is_exact_and_can_be_undone(reader):
    reader.page.locator("#matrix-plot").focus()
    reader.page.keyboard.press("+")
    reader.page.keyboard.press("+")
    reader.settle("part !== null && part[1] - part[0] === 6")
    reader.page.keyboard.press("Escape")
    reader.settle("part === null")
    (x0, y0), (x1, y1) = cell(reader, 3, 3), cell(reader, 9, 9)
    reader.page.mouse.move(x0, y0)
    reader.page.mouse.down()
    reader.page.mouse.move(x1, y1, steps=5)
    reader.page.mouse.up()
    reader.settle("part !== null && part[1] - part[0] <= 9 && part[0] >= 2")


def test_the_keyboard_reaches_everything(reader):
    reader.page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(70):
        reader.page.keyboard.press("Tab")
        reached.add(reader.page.evaluate("document.activeElement.id || document.activeElement.getAttribute('href')"))
    assert {
        "theme",
        "run",
        "measure",
        "search",
        "order",
        "per",
        "when",
        "play",
        "matrix-plot",
        "curves",
        "#matrix",
        "#health",
    } <= reached
    reader.page.locator("#matrix-plot").focus()
    start = reader.choice("source")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        reader.page.keyboard.press(key)
    reader.settle(f"chosen.source === {start + 2} && chosen.target === 1")
    reader.settle(f"byId('moved').textContent.includes('#{start + 2}')")
    reader.page.locator("#map-plot").focus()
    reader.page.keyboard.press("ArrowRight")
    reader.settle(f"chosen.source === {start + 3} && byId('spot').textContent.includes('#{start + 3}')")
    reader.page.locator("#distance-plot").focus()
    reader.page.keyboard.press("ArrowRight")
    reader.settle("byId('near').textContent.includes('distance') && dots.some((d) => d.j === chosen.target)")


def test_an_address_leads_back_to_a_view(reader, page_file):
    reader.open(f"file://{page_file}#map?run=2&order=cluster&source=4&target=7")
    assert reader.page.evaluate("[run().name, chosen.order, chosen.source, chosen.target]") == [
        "clusters",
        "cluster",
        4,
        7,
    ]
    assert reader.page.evaluate("Math.abs(byId('map').getBoundingClientRect().top) < 300")
    reader.open(f"file://{page_file}#nowhere?run=99&source=-4&when=x&order=<b>")
    assert reader.page.evaluate("[chosen.run, chosen.source, chosen.view]") == [0, 0, "short"]


def test_two_runs_are_compared(reader):
    assert reader.page.evaluate("[chosen.first, chosen.second]") == [0, 2]
    assert "end, √kl" in reader.text("#compare-words")
    assert "rank correlation is 1. The median over pairs of second − first is 0 percentage points." in reader.text(
        "#compare-words"
    )
    assert reader.page.evaluate("byId('compare-plot').querySelectorAll('.colorbar').length") == 3
    assert reader.page.evaluate("byId('compare-plot').data[2].z.flat().every((v) => v === null || Math.abs(v) < 1e-6)")


def test_two_measures_have_scales_of_their_own_and_are_kept_in_the_address(reader, page_file):
    reader.page.select_option("#second", "1")
    reader.settle("byId('compare-plot').data.length === 2")
    assert "no difference is drawn" in reader.text("#compare-words")
    assert "first=0&second=1" in reader.page.evaluate("location.hash")
    reader.open(f"file://{page_file}#compare?first=2&second=3")
    assert "clusters, √kl" in reader.text("#compare-words")


@pytest.mark.parametrize("classes", [None, np.arange(26) % 25])
def test_runs_without_classes_or_with_many_are_compared_pair_by_pair(browser, tmp_path, classes):
    K = np.random.default_rng(0).random((26, 26))
    runs = {name: le.as_similarity(S, source_labels=classes) for name, S in {"a": K, "b": K + 0.5}.items()}
    reader = Reader(browser, le.write_report(runs, tmp_path / "two.html"))
    assert "rank correlation is 1. The median over pairs of second − first is 0.5." in reader.text("#compare-words")
    assert reader.page.evaluate("byId('compare-plot').data.map((d) => d.z.length)") == [26, 26, 26]
    reader.close()


def test_the_bar_of_views_follows_the_reader(reader):
    current = "document.querySelector('nav a[aria-current=true]').textContent"
    reader.page.click("nav a[href='#health']")
    reader.settle(f"scrollY > 1000 && {current} === 'Believe it?'")
    reader.page.evaluate("scrollTo(0, byId('time').offsetTop)")
    reader.settle(f"{current} === 'Over time' && location.hash.startsWith('#time')")
    reader.page.click("nav a[href='#short']")
    reader.settle(f"scrollY < 300 && {current} === 'In short'")


def test_clusters_without_classes_colour_the_map(browser, tmp_path):
    S = le.as_similarity(np.kron(np.eye(2), np.ones((3, 3))), clusters=[0, 0, 0, 1, 1, 1])
    reader = Reader(browser, le.write_report(S, tmp_path / "clusters.html"))
    assert reader.page.evaluate("byId('map-plot').data.map((d) => d.name)")[:2] == ["cluster 0", "cluster 1"]
    reader.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": PHONE, "has_touch": True, "is_mobile": True}),
        ("phone-dark", {"viewport": PHONE, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}),
    ],
)
def test_it_looks_right_in(browser, page_file, name, options):
    """Screenshots are kept; no part is wider than the screen, and text stands out from its ground."""
    reader = Reader(browser, page_file, **options)
    SHOTS.mkdir(parents=True, exist_ok=True)
    reader.page.screenshot(path=SHOTS / f"report-{name}.png", full_page=True)
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = reader.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark == ("dark" in name)
    assert reader.page.evaluate("byId('matrix-plot').layout.paper_bgcolor") == ("#14171b" if dark else "#ffffff")
    reader.close()


def test_the_theme_can_be_chosen_and_paper_is_white(reader):
    reader.page.click("#theme")
    reader.page.click("#theme")
    reader.settle("byId('matrix-plot').layout.paper_bgcolor === '#14171b'")
    reader.page.emulate_media(media="print")
    reader.settle("byId('matrix-plot').layout.paper_bgcolor === '#ffffff'")
    assert not reader.page.is_visible("nav")
    assert not reader.page.is_visible("#matrix .pointing")
    assert "watched, √kl, ordered by class, training step 100" in reader.page.inner_text("#matrix .which")
    SHOTS.mkdir(parents=True, exist_ok=True)
    reader.page.pdf(path=SHOTS / "report.pdf", format="A4")
    reader.page.emulate_media(media="screen")


def test_touching_picks_a_source_on_a_phone(browser, page_file):
    reader = Reader(browser, page_file, viewport=PHONE, has_touch=True, is_mobile=True)
    reader.page.evaluate("byId('matrix').scrollIntoView()")
    reader.page.touchscreen.tap(*cell(reader, 12, 2))
    reader.settle("chosen.source === 12")
    assert reader.page.is_visible("#matrix .tapping")
    assert not reader.page.is_visible("#matrix .pointing")
    assert 0 < reader.page.evaluate("byId('when').getBoundingClientRect().top") < 120
    reader.close()


def test_hostile_labels_are_harmless(browser, tmp_path):
    S = le.as_similarity(
        np.random.default_rng(0).random((4, 4)), source_labels=HOSTILE, examples=HOSTILE, measure=HOSTILE[0]
    )
    file = le.write_report({HOSTILE[0]: S}, tmp_path / "<b>hostile.html", title=HOSTILE[1])
    reader = Reader(browser, file)
    assert reader.page.evaluate("window.broken") is None
    assert "<img sr…ken=1>" in reader.text("#matrix-plot")
    assert reader.page.locator("img[src=x]").count() == 0
    assert HOSTILE[0] in reader.text("#pair")
    reader.close()


def test_vectors_texts_and_nothing_resolved_are_shown(browser, tmp_path):
    x = np.random.default_rng(0).random((5, 6))
    for name, S in {
        "vectors": le.as_similarity(x @ x.T, examples=x, source_labels=list("aabbb")),
        "texts": le.as_similarity(x @ x.T, examples=["[1 2 3]", "[-]", "", "data:image/png;base64,AAAA", "日本"]),
        "nothing": le.as_similarity(np.full((3, 3), np.nan), source_labels=list("aab")),
        "single": le.as_similarity(np.ones((1, 1))),
        "oblong": le.as_similarity(np.random.default_rng(1).normal(size=(3, 40))),
    }.items():
        reader = Reader(browser, le.write_report({name: S}, tmp_path / f"{name}.html"))
        if name == "vectors":
            assert reader.page.locator("#pair svg.vector").count() == 2
        if name == "texts":
            assert "[1 2 3]" in reader.text("#pair")
            reader.settle("byId('moved').textContent.includes('base64,AAAA')")
        if name == "nothing":
            assert "unresolved" in reader.text("#pair")
        reader.close()


def test_our_own_functions(reader):
    """The pure ones, one by one."""
    ask = reader.page.evaluate
    assert ask("windowOf(Float32Array.from([1, 2, 3, NaN]), 2, [1, 0], [0, 1], [0, 2, 0, 2], 9).z") == [
        [3, None],
        [1, 2],
    ]
    assert ask("windowOf(Float32Array.from([1, 9, 3, NaN]), 2, [1, 0], [0, 1], [0, 2, 0, 2], 1).z") == [[3]]
    assert ask("ranked(Float32Array.from([1, 5, NaN, 3]), 4, 0, true).map((r) => r.target)") == [1, 3]
    assert ask("partOf([4.2, 1.6], [-3, 99], 10, 10)") == [2, 5, 0, 10]
    assert ask("[0, 9, 10, 19, 249].map((place) => blockOf(place, 250, 100))") == [0, 3, 4, 7, 99]
    first, second = np.random.default_rng(0).integers(0, 9, (2, 30)).tolist()
    alike = ask(f"agreementOf(Float32Array.from({first}), Float32Array.from({second}), 6, false)")
    assert alike == pytest.approx(spearmanr(first, second).statistic)
    assert ask("agreementOf(Float32Array.from([9, 2, 3, 9]), Float32Array.from([0, 7, 3, 1]), 2, true)") == -1
    assert ask("differenceOf(Float32Array.from([9, 2, 3, 9]), Float32Array.from([0, 7, NaN, 1]), 2, true)") == 5
    assert ask("upperOf([3, NaN, 7])") == 7
    assert ask("upperOf([])") == 1
    assert ask("digits(0.123456)") == "0.123"
    assert ask("digits(-0.00000552)") == "−5.52 × 10⁻⁶"
    assert ask(
        "[...byTarget(Float32Array.from([9, 2, 4, 9, 6, 8]), 2, false, true)].map((v) => Math.round(100 * v))"
    ) == [
        150,
        25,
        67,
        113,
        100,
        100,
    ]
    assert ask("csvOf([['a,\"b', '=1+1', -2.5, null]])") == '"a,""b",\'=1+1,-2.5,\n'
    assert ask("timesOf([0, 2, 5, 10, 400]).x.map((v) => Math.round(100 * v))") == [0, 30, 54, 78, 230]
    assert ask("digits(NaN)") == "–"
    assert ask("plain('<b>&')") == "&lt;b&gt;&amp;"
    assert ask("fromHash(toHash({view: 'map', run: 2, order: 'as given'}))") == {
        "view": "map",
        "run": "2",
        "order": "as given",
    }
    assert ask("within('3', 4, 0) * 10 + within('4', 4, 0)") == 30
    assert ask("groupsOf({class: [0, 1, 0], classes: ['a', 'b']}, 'class', [0, 2, 1])") == [
        {"name": "a", "start": 0, "end": 2},
        {"name": "b", "start": 2, "end": 3},
    ]


def test_our_javascript_is_typed():
    """Its JSDoc types, checked strictly by TypeScript's compiler."""
    tsc = os.environ.get("TSC") or shutil.which("tsc")
    if tsc is None:
        pytest.skip("TypeScript is not here: npm install -g typescript@5, or name tsc in TSC")
    assets = Path(le.__file__).parent / "report" / "assets"
    options = [
        "--allowJs",
        "--checkJs",
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
    ]
    answer = subprocess.run([tsc, *options, *SCRIPTS], cwd=assets, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


def test_a_thousand_examples_at_fifty_times(browser, tmp_path, caplog):
    """The size that the page is made for. Seconds are written down, not asserted: machines differ."""
    rng = np.random.default_rng(0)
    kinds = np.arange(1000) % 10
    kin = (kinds[:, None] == kinds).astype(np.float32)
    history = le.training.history.History(["kl"], kinds.tolist(), kinds.tolist(), square=True)
    for step in range(50):
        S = (0.5 + kin * step / 50) * rng.random((1000, 1000), dtype=np.float32)
        history.append(le.training.history.Probe(step, {"kl": S}, 0.1, "looped"))
    images = le.data.load("mnist").take(range(10), 100)[0]
    began = time.perf_counter()
    file = le.write_report({"large": history}, tmp_path / "large.html", examples=images)
    built = time.perf_counter() - began
    began = time.perf_counter()
    reader = Reader(browser, file)
    opened = time.perf_counter() - began
    reader.page.evaluate("byId('matrix').scrollIntoView()")
    answers = reader.page.evaluate(HOVERS)
    moved = reader.page.evaluate(SLIDE)
    figures = {
        "megabytes": round(file.stat().st_size / 1e6, 2),
        "seconds to build": round(built, 2),
        "seconds to open": round(opened, 2),
        "milliseconds to answer a hover, slowest of 8": round(max(answers), 1),
        "milliseconds to move the slider": round(moved, 1),
    }
    SHOTS.mkdir(parents=True, exist_ok=True)
    (SHOTS / "report-speed.json").write_text(json.dumps(figures, indent=1) + "\n")
    reader.page.screenshot(path=SHOTS / "report-large.png")
    assert file.stat().st_size < 15e6
    assert "medians of about 10 × 10 pairs" in reader.text("#matrix-note")
    assert "kept at steps 0, 49." in reader.text("#matrix-note")
    reader.close()


def test_the_overview_of_papers_fits_a_phone(browser, tmp_path):
    results = Path(__file__).parents[1] / "docs" / "results" / "he2020local"
    made = le.write_report([results / "table4-as_defined", results / "table4-as_released"], tmp_path / "papers.html")
    page = browser.new_page(viewport=PHONE)
    page.goto(f"file://{made}")
    cells = page.locator("#papers td")
    assert cells.count() == 6
    for cell in cells.all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
    page.close()
