"""Compare two checkouts of hopgate alternately, each in its own processes.

`this` is the hopgate that Python finds; `beside` is the one at the path given as `--beside`: a
folder that contains a `hopgate` package, such as a site-packages folder. On a busy machine only
such pairs are comparable, and processor time more reliably than wall time.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

_Each = TypeVar("_Each")


class Tree(NamedTuple):
    """A checkout of hopgate; an empty path stands for the one that Python finds."""

    name: str
    path: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment in which Python imports this checkout."""
        if not self.path:
            return dict(os.environ)
        paths = [self.path, *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def trees(path: Path | None) -> list[Tree]:
    """Return `this` and, if a path is given, `beside`."""
    if path is None:
        return [Tree("this")]
    if not (path / "hopgate" / "__init__.py").is_file():
        sys.exit(f"--beside {path} has no hopgate package: give the folder that contains hopgate/")
    return [Tree("this"), Tree("beside", str(path.resolve()))]


def in_turns(items: Sequence[_Each], turn: int) -> Sequence[_Each]:
    """Return the items in order on even turns and in reverse on odd ones: A B, B A, A B."""
    return items if turn % 2 == 0 else items[::-1]


def run_part(tree: Tree, script: str, arguments: Sequence[object]) -> dict[str, Any]:
    """Run a part of a script, which prints one JSON object, in its own process."""
    done = subprocess.run(
        _command(script, arguments),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=tree.environment(),
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _command(script: str, arguments: Sequence[object]) -> list[str]:
    return [sys.executable, script, *map(str, arguments)]


class Subject:
    """A process that answers requests, one JSON object per line; see `serve`.

    Args:
        tree: The checkout it imports.
        script: The script to run.
        arguments: Command-line arguments with which the script calls `serve`.
    """

    def __init__(self, tree: Tree, script: str, arguments: Sequence[object]) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            _command(script, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=tree.environment(),
        )

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for the reply."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        if not (line := stdout.readline()):
            sys.exit(f"{self._process.args!r} ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve(answer: Callable[..., Any]) -> None:
    """Answer the requests of a `Subject` until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def ratio(ones: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median, lowest and highest ratio of pairs measured one after the other."""
    each = [one / other for one, other in zip(ones, others, strict=True)]
    summary = {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}
    return {name: round(value, 3) for name, value in summary.items()}


def ratios(
    ones: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the `ratio` of each figure that is never 0."""
    return {
        name: ratio([each[name] for each in ones], [each[name] for each in others])
        for name in names
        if all(each.get(name) for each in [*ones, *others])
    }


def print_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a Markdown table: a row for each name, a column for each figure."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    print(f"\n**{title}**\n\n| | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for name, row in rows.items():
        print(f"| {name} | {' | '.join(_cell(row.get(column, '')) for column in columns)} |")
    print(end="", flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping) and "median" in value:
        return f"{value['median']:g} ({value['lowest']:g} to {value['highest']:g})"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
