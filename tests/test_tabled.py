"""Pages of influences, step checks and settings with several seeds: tables that hold the numbers, and text only."""

import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest
import torch

import local_elasticity as le
from local_elasticity.report.examples import is_picture
from local_elasticity.report.tabled import MOST_TABLES, tabled
from tests.test_compare_seeds import settings
from tests.test_figures import influences
from tests.test_report import HOSTILE


@pytest.fixture(scope="module")
def step_check():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return le.check_step(net, (torch.randn(12, 4), torch.arange(12) % 3), loss="cross_entropy", update=le.SGD(1.0))


def page_of(result, tmp_path, **options):
    return le.write_report(result, tmp_path / "page.html", **options).read_text()


def cells(page):
    """The text of all cells of tables, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    texts = [
        [re.sub(r"<[^>]*>", "", one) for one in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows
    ]
    return [[" ".join(text.split()) for text in row] for row in texts if row]


def test_influences_have_a_table_for_each_target(tmp_path):
    page = page_of(influences(2), tmp_path)
    assert cells(page)[:4] == [
        ["#10", "0", "−0.2", "", "helps"],
        ["#11", "1", "−0.1", "", "helps"],
        ["#12", "2", "0.3", "", "harms"],
        ["#13", "0", "0.05", "", "harms"],
    ]
    assert len(cells(page)) == 8
    assert "The training examples, of 20, that help and harm each of 2 targets most." in page
    assert escape(influences(2).sentences()[1]) in page
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="0" height="10"\s+width="([\d.]+)"', page)[:4]
    assert bars == [
        ("helps", "0.0", "40.0"),
        ("helps", "20.0", "20.0"),
        ("harms", "40.0", "60.0"),
        ("harms", "40.0", "10.0"),
    ]
    assert "It contains: Influences 1: no examples, 8 table rows." in page
    alone = page_of({"digits": influences(1)}, tmp_path)
    assert "Target #0 is helped most by example #10 and harmed most by example #12." in alone
    none = replace(influences(1), _frame=influences(1).frame().head(0))
    assert "which examples help and harm" in page_of(none, tmp_path)


def test_influences_on_many_targets_are_cut(tmp_path):
    found = tabled("many", influences(MOST_TABLES + 3))
    assert len(found.tables) == MOST_TABLES
    assert found.notes == ["Helpers and harmers of the first 100 of 103 targets are listed."]


def test_influences_show_pictures_of_their_examples(tmp_path):
    images = np.random.default_rng(0).random((20, 1, 5, 5))
    page = page_of(influences(2), tmp_path, examples=(images, images[:2]))
    sources = re.findall(r'<img class="picture small" src="([^"]*)" alt="([^"]*)">', page)
    assert [name for _, name in sources[:2]] == ["target #0", "#10"]
    assert len(sources) == 10
    assert all(is_picture(picture) for picture, _ in sources)
    assert "6 examples, 8 table rows" in page
    few = page_of(influences(1), tmp_path, examples=images[:12])
    assert "The given examples are not shown here: 12 do not fit all sources." in few
    carried = replace(influences(1), _frame=influences(1).frame().assign(source_example="a text", target_example=""))
    assert page_of(carried, tmp_path).count('<span class="text">a text</span>') == 4
    assert "a text" not in page_of(carried, tmp_path, examples=False)


def test_a_step_check_has_a_row_for_each_step(step_check, tmp_path):
    page = page_of(step_check, tmp_path)
    rows = cells(page)
    assert [row[0] for row in rows] == [f"{trial.step_size:g}" for trial in step_check.trials]
    assert [row[2] for row in rows] == [trial.verdict for trial in step_check.trials]
    assert {row[0]: row[1] for row in rows}["1"] == "this step"
    assert sum(row[1] == "auto" for row in rows) == 1
    for sentence in step_check.sentences()[1:]:
        assert escape(sentence, quote=False) in page.replace("&#34;", '"')
    assert "StepCheck 1: is the step small?" in page


def test_settings_have_the_numbers_of_their_frames(tmp_path):
    found = le.compare(*settings(np.random.default_rng(0), seeds=3, shift=1))
    page = page_of({"decay": found}, tmp_path)
    rows = cells(page)
    assert [row[0] for row in rows[:2]] == ["times as far within a class as between classes", "median within a class"]
    assert len(rows) == 4 + 9
    assert rows[5][:2] == ["a", "b"]
    plain = [
        [le.as_similarity(np.random.default_rng(seed).random((4, 4))) for seed in side] for side in ((0, 1), (2, 3))
    ]
    assert len(cells(page_of(le.compare(*plain), tmp_path))) == 1


def test_a_page_holds_tables_beside_other_results(step_check, tmp_path):
    S = le.as_similarity(np.random.default_rng(0).random((6, 6)), source_labels=list("aabbcc"), measure="relative")
    page = page_of({"S": S, "step": step_check, "bars": influences(1)}, tmp_path)
    assert 'href="#table-1">step</a>' in page
    assert 'href="#table-2">bars</a>' in page
    assert 'id="matrix"' in page


def hostile():
    """Influences whose every name is an attack."""
    frame = influences(2).frame()
    names = [HOSTILE[place % len(HOSTILE)] for place in range(len(frame))]
    columns = {"source_file": names, "source_class": names[::-1], "target_file": HOSTILE[0], "effect": HOSTILE[2]}
    return replace(influences(2), _frame=frame.assign(**columns))


def test_hostile_names_are_only_text(step_check, tmp_path):
    several = {HOSTILE[0]: hostile(), HOSTILE[2]: replace(step_check, measure=HOSTILE[0], cause=HOSTILE[2])}
    page = page_of(several, tmp_path, title=HOSTILE[2], command=HOSTILE[0], examples=[*HOSTILE] * 4)
    assert "<img src=x" not in page
    assert "<script" not in page
    assert "&lt;img src=x" in page
    assert len(page) < 1e6
    labels = np.repeat(HOSTILE[:3], 6)
    sides = [
        [S.assign_coords(source_class=("source", labels), target_class=("target", labels)) for S in side]
        for side in settings(np.random.default_rng(1))
    ]
    page = page_of({HOSTILE[0]: le.compare(*sides)}, tmp_path)
    assert "<img src=x" not in page
    assert "<script" not in page


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_tables_open_without_complaint(browser, step_check, tmp_path, width):
    sides = le.compare(*settings(np.random.default_rng(1)))
    file = le.write_report([hostile(), step_check, sides], tmp_path / "page.html", examples=[*HOSTILE] * 4)
    context = browser.new_context(viewport={"width": width, "height": 800})
    page, complaints = context.new_page(), []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"file://{file}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("section.tabled").count() == 3
    assert not complaints
    context.close()
