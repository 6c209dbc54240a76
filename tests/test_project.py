"""`hopgate new`: the project that it writes runs as it is."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import httpx
import pytest
from commands import Ran, one_line
from doubles import by_task
from fake_openai import FakeOpenAI
from langgraph_dev import ROOT, start
from langgraph_sdk import get_client
from mypy import api

from hopgate.nodes.prompts import templates as prompts

FILES = [
    ".env.example",
    ".gitignore",
    "README.md",
    "aegra.json",
    "documents/canteen.md",
    "documents/visitors.md",
    "graph.py",
    "langgraph.json",
    "pyproject.toml",
    "tests/test_graph.py",
]


@pytest.fixture
def project(run: Callable[..., Ran], tmp_path: Path) -> Path:
    folder = tmp_path / "Staff Handbook"
    ran = run("new", folder, "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert (report["folder"], sorted(report["files"])) == (str(folder), FILES)
    assert report["passages"] == 4
    return folder


def test_the_project_has_the_folder_s_name(project: Path) -> None:
    assert 'name = "staff-handbook"' in (project / "pyproject.toml").read_text()
    assert (project / "README.md").read_text().startswith("# staff-handbook\n")
    for file in FILES:
        assert "my-project" not in (project / file).read_text()


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("Chapter 1")
    one_line(run("new", tmp_path), 2, str(tmp_path), "is not empty")
    one_line(run("new", tmp_path / "thesis.txt"), 2, "is a file")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("existed", [True, False])
def test_nothing_is_left_behind_if_the_index_cannot_be_built(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)  # as if it were not installed
    folder = tmp_path / "new"
    if existed:
        folder.mkdir()
    one_line(run("new", folder), 1, "FAISS", "hopgate[cpu]")
    assert folder.exists() == existed
    assert not existed or not any(folder.iterdir())


def test_the_project_s_own_tests_pass_after_a_fresh_clone(project: Path) -> None:
    """Without the index, which git does not keep, with a .env, and with the docs' settings."""
    shutil.rmtree(project / "index")
    shutil.copy(project / ".env.example", project / ".env")
    code = (project / "graph.py").read_text()
    (project / "graph.py").write_text(code.replace('model="auto"', 'gate="always", alpha=0.7'))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_project_s_code_and_the_readme_s_pass_mypy_strict(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    bodies = [f"async def f{n}() -> None:\n{indent(each, '    ')}" for n, each in enumerate(blocks)]
    imports = dict.fromkeys(re.findall(r"^from .* import .*$", "\n".join(blocks), re.MULTILINE))
    (project / "readme.py").write_text("\n".join([*imports, *bodies]))
    monkeypatch.setenv("MYPYPATH", str(project))
    settings = f"--config-file={ROOT / 'pyproject.toml'}"
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"  # without it, this takes minutes
    files = ("graph.py", "readme.py", "tests/test_graph.py")
    given = ["--strict", settings, cache, *(str(project / each) for each in files)]
    out, err, status = api.run(given)
    assert status == 0, out + err


def test_ask_uses_the_graph_of_the_project_and_its_env(
    project: Path,
    fake: FakeOpenAI,
    run: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.answers(by_task(answer="It closes at 14:30 [1]."))
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("OPENAI_MODEL", "")  # so that what .env sets is undone
    monkeypatch.delenv("OPENAI_MODEL")
    (project / ".env").write_text("OPENAI_MODEL=of-the-project\n")
    asked = ["ask", "When does the canteen close?", "--strategy", "single", "--json"]
    for more in ([], ["--thread", "t"]):
        ran = run(*asked, *more)
        assert ran.code == 0, ran.err
        answered = json.loads(ran.out)
        assert answered["decision"]["model"] == "openai:of-the-project"
        assert [each["source"] for each in answered["citations"]] == ["canteen.md"]
    other = json.loads(run(*asked, "--index", "sample").out)
    assert "canteen.md" not in [each["source"] for each in other["citations"]]


async def test_a_real_langgraph_dev_answers_from_the_project_s_documents(
    project: Path, fake: FakeOpenAI
) -> None:
    """The model is the fake endpoint; everything else is real."""
    fake.answers(by_task(gate="[Yes]", answer="It closes at 14:30 [1]."))
    env = {"OPENAI_API_KEY": "sk-project", "OPENAI_BASE_URL": fake.base_url}
    with start(project, config=project / "langgraph.json", env=env) as server:
        question: Any = {"question": "When does the canteen close?"}
        client = get_client(url=server.url)
        result: Any = await client.runs.wait(None, "hopgate", input=question)
        assistants = await client.assistants.search(metadata={"created_by": "system"})
        schemas = await client.assistants.get_schemas(assistants[0]["assistant_id"])
        models = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert "Traceback" not in server.log.read_text()
    assert result["answer"] == "It closes at 14:30 [1]."
    assert [each["source"] for each in result["citations"]] == ["canteen.md"]
    assert result["decision"]["gate"]["retrieve"] is True
    assert result["decision"]["gate"]["mode"] == "coverage"
    (answer,) = fake.prompts
    assert prompts.FULL_GROUNDED in answer
    assert schemas["context_schema"]["page"]["title"] == "Staff handbook"
    assert models[0]["id"] == "staff-handbook"
