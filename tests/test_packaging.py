"""The content of the wheel. That of a server's image: test_deploy.py."""

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from a copy, because a build leaves folders beside the sources."""
    out, before = tmp_path_factory.mktemp("wheel"), leftovers()
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "*.egg-info")
    source = shutil.copytree(ROOT, out / "source", ignore=ignored)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out)
    run(sys.executable, "-m", "pip", "wheel", *options, source)
    assert leftovers() == before
    (built,) = out.glob("hopgate-*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_the_wheel_holds_one_package_with_its_weights_and_sample(wheel: set[str]) -> None:
    for name in (
        "hopgate/__init__.py",
        "hopgate/py.typed",
        "hopgate/graphs/adaptive.py",
        "hopgate/server/web.py",
        "hopgate/server/static/index.html",
        "hopgate/classifiers/weights/features.onnx",
        "hopgate/classifiers/weights/manifest.json",
        "hopgate/common/weights/minilm.onnx",
        "hopgate/common/weights/minilm.safetensors",
        "hopgate/classifiers/weights/cost-gpt-4o.safetensors",
        "hopgate/retrievers/sample/questions.jsonl",
        "hopgate/retrievers/sample/index/manifest.json",
        "hopgate/retrievers/sample/index/vectors/1.faiss",
        "hopgate/retrievers/sample/index/vectors/1.keys",
    ):
        assert name in wheel
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name} == {"hopgate"}
    for left_out in ("/tests/", "/benchmarks/", "/tools/", "distill"):
        assert not any(left_out in name for name in wheel)
