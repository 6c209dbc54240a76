"""README and docs: links lead somewhere, commands and code exist, and the site builds offline."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from hopgate.cli import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(ROOT / name for name in ("classifiers/weights/README.md", "app/template/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
by_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def inline(page: Path, kind: str) -> Iterator[Token]:
    for token in tokens(page):
        yield from (child for child in token.children or [] if child.type == kind)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for token in tokens(page):
        if (token.type == "fence" and token.info in languages) or (
            token.type == "code_block" and "" in languages
        ):
            yield token.content


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    parsed = tokens(page)
    texts = [
        "".join(child.content for child in parsed[at + 1].children or [])
        for at, token in enumerate(parsed)
        if token.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@by_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [str(each.attrs["href"]) for each in inline(page, "link_open")]
    links += [str(each.attrs["src"]) for each in inline(page, "image")]
    wrong = []
    for link in links:
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    left = [ROOT / "README.md"]
    while left:
        page = left.pop()
        seen.add(page)
        for link in inline(page, "link_open"):
            target = (page.parent / str(link.attrs["href"]).partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in seen:
                left.append(target)
    unreachable = {page for page in PAGES if page not in seen}
    assert {page.relative_to(ROOT).parts[:2] for page in unreachable} <= {
        ("docs", "reference"),  # only on the site
        ("app", "template"),
    }


# Commands


class Command(NamedTuple):
    """A command of hopgate that a page names: its words, and whether a shell could run it."""

    words: list[str]
    whole: bool


def commands(page: Path) -> Iterator[Command]:
    for block in blocks(page, "sh", ""):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:&&|\||;)\s", line.removeprefix("$ ")):
                if part.strip().startswith("hopgate "):
                    yield Command(shlex.split(part, comments=True)[1:], whole=True)
    for code in inline(page, "code_inline"):
        if code.content.startswith("hopgate "):
            yield Command(code.content.split()[1:], whole=False)


@by_page
def test_every_command_exists_with_its_options(page: Path) -> None:
    wrong = []
    for words, whole in commands(page):
        try:
            _parse(words, whole)
        except click.ClickException as error:
            wrong.append(f"hopgate {' '.join(words)}: {error.format_message()}")
    assert wrong == []


def _parse(words: list[str], whole: bool) -> None:
    """Parse a command line as hopgate does; of one in running text, only names and options."""
    context, left = click.Context(cli, info_name="hopgate"), words
    while isinstance(context.command, click.Group) and left and re.match(r"[a-z]", left[0]):
        found = context.command.get_command(context, left[0])
        if found is None:
            raise click.UsageError(f"there is no command {left[0]}")
        context, left = click.Context(found, context, left[0]), left[1:]
    if whole:
        context.command.parse_args(context, list(left))
        return
    known = {option for each in context.command.get_params(context) for option in _options(each)}
    for word in left:
        if word.startswith("-") and word.partition("=")[0] not in known | {"--debug"}:
            raise click.NoSuchOption(word)


def _options(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def all_options(command: click.Command = cli) -> set[str]:
    context = click.Context(command)
    found = {option for each in command.get_params(context) for option in _options(each)}
    if isinstance(command, click.Group):
        commands = (command.get_command(context, name) for name in command.list_commands(context))
        found |= {option for each in commands if each for option in all_options(each)}
    return found


OTHERS = {
    "--no-deps",  # pip
    *("--n-jobs-per-worker", "--allow-blocking"),  # langgraph
    "--cut",  # benchmarks/languages.py
    "--timeout-graceful-shutdown",  # uvicorn
}


@by_page
def test_every_option_in_running_text_exists(page: Path) -> None:
    given = {
        word.partition("=")[0].strip("…,.")
        for code in inline(page, "code_inline")
        if not re.match(r"(pip|python|langgraph|docker|curl) ", code.content)
        for word in code.content.split()
        if re.match(r"--[a-z]", word)
    }
    assert given - OTHERS <= all_options()


@by_page
def test_every_make_target_and_script_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [*blocks(page, "sh", ""), *(code.content for code in inline(page, "code_inline"))]
    for text in texts:
        assert set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE)) <= targets
        for script in re.findall(r"\b(?:benchmarks|examples|tools|tests)/\w+\.py", text):
            assert (ROOT / script).is_file(), script


# Code

MADE_UP = "hopgate.retrievers.grep"  # docs/architecture.md says how to write it
PARSED = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@by_page
def test_python_blocks_are_valid_and_import_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        tree = compile(_complete(block), str(page), "exec", PARSED)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module == MADE_UP:
                continue
            if str(node.module).partition(".")[0] == "hopgate":
                module = import_module(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name), f"{node.module}.{name.name}"


def _complete(block: str) -> str:
    """Return a block that Python can parse: `…` leaves something out, `elif` begins a part."""
    block = re.sub(r"(?<![\"'\w ])…|^( *)…", r"\1...", block, flags=re.MULTILINE)
    return f"if ...:\n    ...\n{block}" if block.startswith("elif") else block


@by_page
def test_json_blocks_are_valid(page: Path) -> None:
    for block in blocks(page, "json"):
        try:
            json.loads(block)
        except ValueError:
            for line in block.splitlines():
                json.loads(line)


@by_page
def test_every_extra_exists(page: Path) -> None:
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(project["project"]["optional-dependencies"])
    named = re.findall(r"(?:'\.|hopgate)\[([a-z,]+)\]", page.read_text(encoding="utf-8"))
    assert {extra for each in named for extra in each.split(",")} <= extras


# The site


def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=\"?(https?:)?//", html), (
            page
        )
    reference = (tmp_path / "reference/graph.html").read_text(encoding="utf-8")
    for name in ("build_graph", "max_evidence_tokens", "HopEvent", "fork"):
        assert name in reference
    shown = (tmp_path / "source/nodes/run/context.py.html").read_text(encoding="utf-8")
    assert "Settings of one request" in shown
