"""The README says what the code says."""

import re
import subprocess
import sys

import numpy as np

from experiments import schemes


def test_the_table_of_schemes_is_the_generated_one():
    text = schemes.README.read_text()
    assert schemes.insert(text) == text, "run python -m experiments.schemes"


def test_the_import_example_runs_as_written():
    code = re.findall(r"```python\n(.*?)```", schemes.README.read_text(), re.DOTALL)
    assert code
    for example in code:
        subprocess.run([sys.executable, "-c", example], check=True, cwd=schemes.README.parent)


def test_every_file_and_make_target_that_it_names_exists():
    root, text = schemes.README.parent, schemes.README.read_text()
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (root / path).exists(), path
    makefile = (root / "Makefile").read_text()
    for target in np.unique(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
