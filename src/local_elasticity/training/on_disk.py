"""The store of a history: written while that works, and retried after temporary errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from local_elasticity.engine.guard import raise_of_handler
from local_elasticity.store.history import HistoryStore, OtherWriterError
from local_elasticity.training.failures import first_line, tell

if TYPE_CHECKING:
    from local_elasticity.training.history import Probe

logger = logging.getLogger("local_elasticity")


class OnDisk:
    """Writes probes to a store. Training never fails because of it.

    After an OSError (a full disk, a folder that is gone) probes wait in memory, and every later probe tries again: the
    store only counts probes that were written whole, so writing again is safe. If another monitor writes to the store,
    or its files are not those of a history any more, it is left alone for good.
    """

    def __init__(self, store: HistoryStore) -> None:
        self.store = store
        self.waiting: list[Probe] = []
        self.given_up = False
        self._told = False

    @property
    def whole(self) -> bool:
        """Whether the store holds every probe."""
        return not (self.waiting or self.given_up)

    def append(self, probe: Probe, notes: Mapping[int, str]) -> None:
        """Write the probes that wait, and then this one."""
        if not self._written(notes, probe) and not self.given_up:
            self.waiting.append(probe)

    def flush(self, notes: Mapping[int, str]) -> None:
        """Write the probes that wait, and the notes."""
        self._written(notes, None)

    def keep(self, step: int, count: int) -> None:
        """Keep the first `count` probes, those up to `step`; some of them may be waiting."""
        if not self.given_up:
            self.waiting = [probe for probe in self.waiting if probe.step <= step]
            self.store.keep(count - len(self.waiting))

    def _written(self, notes: Mapping[int, str], probe: Probe | None) -> bool:
        if self.given_up:
            return False
        try:
            self._write(notes, probe)
        except OtherWriterError as error:
            self._give_up("another monitor writes to it", error)
        except Exception as error:
            raise_of_handler(error)
            if isinstance(error, OSError):
                self._tell(f"cannot be written ({first_line(error)})", "every later probe tries the store again", error)
            else:
                self._give_up(f"its files cannot be read ({first_line(error)})", error)
        else:
            return True
        return False

    def _write(self, notes: Mapping[int, str], probe: Probe | None) -> None:
        late = len(self.waiting)
        while self.waiting:
            self._put(self.waiting[0])
            del self.waiting[0]
        if probe is not None:
            self._put(probe)
        self.store.say(notes={str(step): note for step, note in notes.items()})
        if late:
            logger.info("store: %s is written again, with the %d probes that were missing", self.store.path, late)

    def _put(self, probe: Probe) -> None:
        self.store.append(
            probe.step,
            probe.similarity,
            seconds=probe.seconds,
            engine=probe.engine,
            numbers=probe.numbers,
            facts=probe.facts,
            denominators=probe.denominators,
        )

    def _give_up(self, why: str, error: Exception) -> None:
        self.given_up, self.waiting = True, []
        self._tell(f"is not written any more: {why}", "give each monitor its own store", error)

    def _tell(self, what: str, then: str, error: Exception) -> None:
        if not self._told:
            self._told = True
            tell(f"store: {self.store.path} {what}. The history is kept in memory; {then}", error)
