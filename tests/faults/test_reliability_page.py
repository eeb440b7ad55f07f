"""docs/reliability.md names a test for every fault, and every test that it names is there."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
FAULTS = 221


def rows() -> dict[int, str]:
    lines = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    cells = (line.strip("|").split("|") for line in lines if re.match(r"\| \d", line))
    return {int(number): tests for number, _, _, tests in cells}


def missing(tests: str) -> list[str]:
    """What a cell names and is not there."""
    named = re.findall(r"\[`(\w+)`\]\(\.\./([\w/.]+)\)", tests)
    assert named
    return [name for name, path in named if f"def {name}(" not in (ROOT / path).read_text()]


def test_every_fault_has_a_test_and_every_test_exists():
    found = rows()
    assert list(found) == list(range(1, FAULTS + 1))
    for number, tests in found.items():
        assert not missing(tests), number


def test_a_test_that_is_gone_is_seen():
    assert missing("[`test_no_such_thing`](../tests/test_imports.py)") == ["test_no_such_thing"]
