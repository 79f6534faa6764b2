"""Examples in docstrings become code blocks of the site; this is an extension of griffe, which reads the docstrings."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\s*$).*)*\n?(?:\n(?=>>> ))?)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences every run of lines that begins with >>>."""

    def on_instance(self, *, obj: griffe.Object, **options: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    return EXAMPLE.sub(lambda found: f"\n```pycon\n{found.group(0).rstrip()}\n```\n", text)
