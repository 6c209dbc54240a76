"""Writers that are killed at any moment, and readers during changes.

HOPGATE_WIDE=1 kills them before every call that changes the disk in place of a few.
"""

import os
import shutil
from pathlib import Path

import pytest
from indexing import KINDS, HashEncoder, change, files, keep_reading, stamped, start, texts

from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import add_passages, build_from_passages, delete
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.verifying import verify

WIDE = int(os.environ.get("HOPGATE_WIDE", "0"))
MOST_CALLS = 100
"""More calls that change the disk than any change makes."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_writer_leaves_the_old_index_or_the_new(tmp_path: Path, kind: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "s.txt").write_text("stamp of a file")
    built, encoder = tmp_path / "built", HashEncoder()
    build_from_passages(stamped(0), built, encoder)
    delete(built, ["4.txt"])
    change(kind, finished := Path(shutil.copytree(built, tmp_path / "finished")))
    possible, kills = (texts(built, encoder), texts(finished, encoder)), 0
    for call in range(1, MOST_CALLS) if WIDE else range(8 + KINDS.index(kind), MOST_CALLS, 10):
        index = Path(shutil.copytree(built, tmp_path / str(call)))
        writer, _ = start(change, kind, index, call)
        writer.join(timeout=60)
        found = texts(index, encoder)
        assert found in possible
        assert verify(index, encoder).problems == []
        add_passages([make_passage("T", "extra", "extra.txt")], index, encoder)
        assert texts(index, encoder) == sorted([*found, "extra"])
        assert files(index).keys() == info(index)["files"].keys() | {"manifest.json"}
        if writer.exitcode == 0:  # it makes no further calls
            break
        kills += 1
    assert kills


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
