"""Results that print as sentences, in a terminal and in a notebook."""

from __future__ import annotations

from html import escape


class Printed:
    """A result that says what it found in `_sentences`, the most important one first."""

    def _sentences(self) -> list[str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self._sentences())

    def _repr_html_(self) -> str:
        head, *rest = self._sentences()
        return f"<b>{escape(head)}</b>" + "".join(f"<br>{escape(line)}" for line in rest)
