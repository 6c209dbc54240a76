"""`make demo`'s command, on the real embedded model."""

import asyncio
import re

import pytest

from hopgate import demo


def test_the_demo_takes_each_of_the_three_paths_and_names_sources(
    embedded: str, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    asyncio.run(demo.run())
    head, none, single, multi = re.split(r"^.*\? ─+$", capfd.readouterr().out, flags=re.MULTILINE)
    assert "tiny" in head
    assert "gate    no" in none
    assert "route" not in none
    assert "0 retrievals" in none
    assert re.search(r"gate    yes \(coverage\)[^│]*\nroute   B at α = 0.7 \(A 0\.\d\d  B", single)
    assert "1 retrievals" in single
    assert "hop 2" not in single
    assert re.search(r"gate    yes \(coverage\)[^│]*\nroute   C at α = 0.7", multi)
    assert "hop 2" in multi
    assert "stopped " in multi
    for path in (single, multi):  # a citation follows the answer's box
        assert re.search(r"╯\n  [A-Z][\w ]+ \(passages\.jsonl\): ", path)
