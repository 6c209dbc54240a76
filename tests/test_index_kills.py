"""Writers that are killed at any moment, and readers during changes.

HOPGATE_WIDE=100 makes a hundred kills of each kind in place of a few.
"""

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest
from indexing import (
    STEPS,
    HashEncoder,
    State,
    files,
    keep_reading,
    keep_stepping,
    stamped,
    start,
    states,
    texts,
)

from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import add_passages, build_from_passages
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.verifying import verify

WIDE = int(os.environ.get("HOPGATE_WIDE", "0"))
FIRST = 5
"""The number of a build."""


class Killed:
    """An index whose writers are killed, and what it should hold.

    Attributes:
        changed: In how many kills the change was there.
        during: The kinds of changes that were killed.
    """

    def __init__(self, folder: Path) -> None:
        self.index, self.docs = folder / "index", folder / "docs"
        self.docs.mkdir()
        self.encoder = HashEncoder()
        build_from_passages(stamped(0), self.index, self.encoder)
        self.state: State = {each["source"]: each["text"] for each in stamped(0)}
        self.changed = 0
        self.during: set[str] = set()

    def kill(self, *, at_call: int = 0, changes: int = 1, seconds: float = 0) -> None:
        """Kill a writer at a call, or some time after a change began."""
        writer, begun = start(keep_stepping, self.index, self.docs, FIRST, at_call)
        last = FIRST
        if not at_call:
            for _ in range(changes):
                last = begun.recv()
            time.sleep(seconds)
            writer.kill()
        writer.join(timeout=60)
        assert writer.exitcode == -signal.SIGKILL
        while begun.poll():
            try:
                last = begun.recv()
            except EOFError:
                break
        self._check(last)

    def _check(self, last: int) -> None:
        """The index is as before the change or after it, and the next one works."""
        old, new = list(itertools.islice(states(FIRST, self.state), last - FIRST + 2))[-2:]
        found = texts(self.index, self.encoder)
        assert found in (sorted(old.values()), sorted(new.values())), STEPS[last % len(STEPS)]
        assert verify(self.index, self.encoder).problems == []
        self.state = new if found == sorted(new.values()) else old
        self.changed += self.state == new != old
        self.during.add(STEPS[last % len(STEPS)])
        add_passages([make_passage("T", f"extra {last}", "extra.txt")], self.index, self.encoder)
        self.state = self.state | {"extra.txt": f"extra {last}"}
        assert texts(self.index, self.encoder) == sorted(self.state.values())
        assert files(self.index).keys() == info(self.index)["files"].keys() | {"manifest.json"}


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path)


def test_a_writer_killed_at_any_time_leaves_the_old_index_or_the_new(killed: Killed) -> None:
    chance = random.Random(6)
    for _ in range(WIDE or 4):
        killed.kill(changes=chance.randint(1, 6), seconds=chance.uniform(0, 0.05))


@pytest.mark.parametrize("call", range(1, WIDE + 1) if WIDE else (9, 13, 18, 23))
def test_a_writer_killed_before_a_call_leaves_the_old_index_or_the_new(
    killed: Killed, call: int
) -> None:
    killed.kill(at_call=call)


def test_readers_in_another_process_never_see_half_a_change(tmp_path: Path) -> None:
    index, encoder = tmp_path / "index", HashEncoder()
    build_from_passages(stamped(0), index, encoder)
    reader, seen = start(keep_reading, index)
    reported = [seen.recv()]
    for stamp in range(1, WIDE or 10):
        add_passages(stamped(stamp, 5 + stamp % 3), index, encoder)
        build_from_passages(stamped(stamp), index, encoder, replace=True)
    while seen.poll():
        reported.append(seen.recv())
    reader.kill()
    reader.join()
    while seen.poll():
        try:
            reported.append(seen.recv())
        except EOFError:
            break
    assert len(reported) > 3
    for found, seconds in reported:
        assert not isinstance(found, str), found
        assert len({text.split()[1] for text in found}) == 1, found
        assert 5 <= len(found) <= 7
        assert seconds < 5
