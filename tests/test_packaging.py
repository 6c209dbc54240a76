"""The sdist and the wheel. The content of a server's image: test_deploy.py."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def leftovers() -> dict[str, int]:
    """Build folders in the checkout, with their modification times."""
    found = [ROOT / "build", *ROOT.glob("*.egg-info")]
    return {path.name: path.stat().st_mtime_ns for path in found if path.exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An sdist, and a wheel made of it, from a copy: a build leaves folders beside the sources."""
    out, before = tmp_path_factory.mktemp("built"), leftovers()
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "*.egg-info")
    source = shutil.copytree(ROOT, out / "source", ignore=ignored)
    dist = out / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source)
    assert leftovers() == before
    return sorted(dist.iterdir())


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> set[str]:
    """The names in the wheel."""
    (path,) = (each for each in built if each.suffix == ".whl")
    return set(zipfile.ZipFile(path).namelist())


def test_an_index_of_packages_would_take_both(built: list[Path]) -> None:
    assert [path.name.rsplit(".", 1)[1] for path in built] == ["whl", "gz"]
    report = run(sys.executable, "-m", "twine", "check", "--strict", *built)
    assert report.count("PASSED") == 2


def test_the_wheel_holds_one_package_with_its_weights_and_sample(wheel: set[str]) -> None:
    for name in (
        "hopgate/__init__.py",
        "hopgate/py.typed",
        "hopgate/template/env.example",
        "hopgate/template/tests/test_graph.py",
        "hopgate/template/documents/canteen.md",
        "hopgate/nodes/prompts/demonstrations.toml",
        "hopgate/nodes/texts/vocabulary.toml",
        "hopgate/server/web.py",
        "hopgate/server/static/index.html",
        "hopgate/classifiers/weights/features.onnx",
        "hopgate/classifiers/weights/cost-gpt-4o.safetensors",
        "hopgate/common/weights/minilm.safetensors",
        "hopgate/retrievers/sample/questions.jsonl",
        "hopgate/retrievers/sample/index/manifest.json",
        "hopgate/retrievers/sample/index/vectors/1.keys",
    ):
        assert name in wheel
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name} == {"hopgate"}
    tops = {name.split("/")[1] for name in wheel if name.startswith("hopgate/")}
    assert tops.isdisjoint({"tests", "benchmarks", "docs", "examples", "tools"})
    assert not any("distill" in name for name in wheel)
