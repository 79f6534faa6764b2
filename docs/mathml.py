"""Formulas become MathML when the site is built, so that pages need no script for them; this is a hook of MkDocs."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(mathml, content)


def mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found.group(2)), display="block" if found.group(1) == "div" else "inline")
