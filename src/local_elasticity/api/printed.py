"""Results that print as sentences, in a terminal and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape


class Printed(ABC):
    """A result that prints as sentences."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """What it found, the most important first."""

    def __repr__(self) -> str:
        return "\n".join(self.sentences())

    def _repr_html_(self) -> str:
        head, *rest = self.sentences()
        return f"<b>{escape(head)}</b>" + "".join(f"<br>{escape(line)}" for line in rest)
