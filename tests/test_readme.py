"""The README's Python code passes `mypy --strict`."""

import re
from pathlib import Path
from textwrap import indent

from mypy import api

ROOT = Path(__file__).parents[1]


def test_the_readme_s_code_passes_mypy_strict(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) >= 3
    code = "".join(
        f"async def example_{n}() -> None:\n{indent(each, '    ')}\n\n"
        for n, each in enumerate(blocks)
    )
    imports = "\n".join(dict.fromkeys(re.findall(r"^ +(from .* import .*)$", code, re.MULTILINE)))
    file = tmp_path / "readme.py"
    file.write_text(f"{imports}\n\n\n{code}", encoding="utf-8")
    settings = f"--config-file={ROOT / 'pyproject.toml'}"
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"  # without it, this takes a minute
    out, err, status = api.run(["--strict", settings, cache, str(file)])
    assert status == 0, out + err
