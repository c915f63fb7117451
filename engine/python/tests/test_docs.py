"""The examples of the page and of the README run."""

import pathlib
import re
import subprocess
import sys

import iof
import pytest
from conftest import COMMAND

ROOT = pathlib.Path(__file__).parents[3]
PAGES = [ROOT / "docs/src/python.md", ROOT / "docs/src/python-frameworks.md", ROOT / "engine/python/README.md", ROOT / "README.md"]
EXAMPLES = [
    pytest.param(example, id=f"{page.name}-{number}")
    for page in PAGES
    for number, example in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(job, example, tmp_path):
    for package in re.findall(r"^(?:from|import) (\w+)", example, re.M):
        pytest.importorskip(package)
    (tmp_path / "model").write_text("#!/bin/sh\necho $*\n", encoding="ascii")
    (tmp_path / "model").chmod(0o755)
    script = f"for i in 1 2 3; do echo step $i; done; {COMMAND} log --channel stdout note"
    started = job(script, 3, "--stdin-open", "all", "--keep", "60s")
    with iof.attach(started.name, wait=30) as tool:
        next(line for line in tool.lines() if line.logged)
    if "push" not in example:
        started.end()
    script = example.replace('"demo"', repr(started.name))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, text=True, capture_output=True, timeout=60)
    started.end()
    started.process.terminate()
    print(done.stderr)
    assert done.returncode == 0 and done.stderr == ""
    if "print" in example and "resume" not in example:
        assert done.stdout != ""


def test_the_page_has_examples():
    assert len(EXAMPLES) >= 12
