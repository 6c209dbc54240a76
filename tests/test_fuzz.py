"""Command lines that nobody would write: one line each, never a traceback."""

import random
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from commands import Ran
from fake_openai import FakeOpenAI

from hopgate.cli import cli

ENDLESS = ("serve", "mcp")  # they wait for clients
OPEN = ("watch", "help", "debug", "version")
VALUES = [
    "", " ", "-1", "0", "1e999", "nan", "no-such-file", ".", "/dev/null",
    "a\udc80b", "\x1b[2J",
    "x" * 5_000, "{}", "[1", "null", "source=x", "=", "sample", "web:", "openai:", "local:x", "-",
    "--", "--alpha", "ä\u202eb", "docs.jsonl", "%s%n", "$(id)",
]  # fmt: skip
LINES = 150


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        elif command is not None and name not in ENDLESS:
            found.append(((*path, name), command))
    return found


def lines() -> list[list[str]]:
    chance = random.Random(18)
    known = commands(cli)
    found = []
    for number in range(LINES):
        path, command = known[number % len(known)]
        line = [*path]
        for _ in range(chance.randint(0, 4)):
            option = chance.choice(command.get_params(click.Context(command)))
            named = isinstance(option, click.Option)
            if named and option.name not in OPEN:
                line += [
                    chance.choice(option.opts),
                    *([] if option.is_flag else [chance.choice(VALUES)]),
                ]
            elif not named:
                line.append(chance.choice(VALUES))
        found.append(line)
    return found


def test_no_command_line_ends_in_a_traceback(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("docs.jsonl").write_text('{"id": "1", "title": "a", "text": "b"}\n\x00{')
    for line in lines():
        ran = run(*line)
        shown = f"{line!r:.300}: {ran.err[-500:]}"
        assert ran.code in (0, 1, 2), shown
        assert "Traceback" not in ran.err + ran.out, shown
        assert "--debug for the traceback" not in ran.err, shown
        if ran.code:
            assert ran.err.startswith("hopgate"), shown
