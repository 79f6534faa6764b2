"""Marked texts in Chromium: readable in both schemes, reached by keys, harmless, and narrow enough for a phone."""

import re

import numpy as np
import pandas as pd
import pytest

import local_elasticity as le
from tests.test_first_screen_browser import contrast
from tests.test_report_browser import PHONE, Reader

pytestmark = pytest.mark.browser
TOKENS = [
    ["the ", "cat ", "<img src=x onerror=window.broken=1>", "\n", "sat"],
    [f"word{i} " for i in range(400)],
]


def token_page(tmp_path):
    """Three texts; two pairs have marks."""
    texts = ["the dog ran", "".join(TOKENS[0]), "a long one"]
    rows = [
        (0, 1, place, token, change)
        for place, (token, change) in enumerate(zip(TOKENS[0], [None, 0.2, -0.4, None, 0.1], strict=True))
    ]
    rows += [(2, 0, place, token, (place - 200) / 1000) for place, token in enumerate(TOKENS[1])]
    frame = pd.DataFrame(rows, columns=["source", "target", "place", "token", "change"])
    S = le.as_similarity(np.eye(3) + 0.1, source_labels=list("abc"), examples=texts, measure="relative")
    return le.write_report({"texts": S.le.with_token_changes(frame), "plain": S}, tmp_path / "texts.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_are_marked_readable_and_reached_by_keys(browser, tmp_path, scheme):
    reader = Reader(browser, token_page(tmp_path), color_scheme=scheme)
    reader.page.evaluate("byId('tokens').scrollIntoView()")
    tokens = reader.page.locator("#marked-pair .token")
    assert tokens.count() == 5
    assert tokens.nth(2).text_content() == TOKENS[0][2]
    grounds = tokens.evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert len(set(grounds)) == 4  # two have no mark
    assert grounds[0] == grounds[3] == "rgba(0, 0, 0, 0)"
    for place in (1, 2, 4):
        style = "(one) => { const s = getComputedStyle(one); return [s.color, s.backgroundColor]; }"
        ink, ground = (
            "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour))
            for colour in tokens.nth(place).evaluate(style)
        )
        assert contrast(ink, ground) >= 4.5
    edges = tokens.evaluate_all("(all) => all.map((one) => getComputedStyle(one).borderBottomStyle)")
    assert [edges[place] for place in (1, 2, 4)] == ["solid", "dotted", "solid"]
    assert "less likely: its log-probability changes by −0.1 over 3 tokens" in reader.text("#marked-words")
    assert "less likely −0.4" in reader.text("#marked-pair .scale")
    assert tokens.evaluate_all("(all) => all.filter((one) => one.tabIndex === 0).length") == 1
    tokens.first.focus()
    for _ in range(2):
        reader.page.keyboard.press("ArrowRight")
    reader.settle("byId('token-words').textContent.includes('log-probability −0.4, 0.67 times as likely')")
    reader.page.select_option("#marked", "1")
    reader.settle("document.querySelectorAll('#marked-pair .token').length === 400")
    assert reader.page.evaluate("[chosen.source, chosen.target, chosen.marked]") == [2, 0, 1]
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "marked=1" in reader.page.evaluate("location.hash")
    reader.page.evaluate("pick({ source: 0, target: 1 })")
    reader.settle("chosen.marked === 0 && document.querySelectorAll('#marked-pair .token').length === 5")
    assert reader.page.locator("#pair .token").count() == 5
    reader.page.select_option("#run", "1")
    reader.settle("byId('tokens').hidden")
    assert reader.page.locator("nav a[href='#tokens']").is_hidden()
    assert not reader.page.evaluate("Boolean(window.broken)")
    reader.close()


def test_marked_text_fits_a_phone(browser, tmp_path):
    reader = Reader(browser, token_page(tmp_path), viewport=PHONE, has_touch=True, is_mobile=True)
    reader.page.select_option("#marked", "1")
    reader.settle("document.querySelectorAll('#marked-pair .token').length === 400")
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    left, right = reader.page.evaluate(
        "[...byId('marked-pair').children].map((one) => one.getBoundingClientRect().left)"
    )
    assert left == right  # one below the other
    reader.close()
