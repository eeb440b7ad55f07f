"""The user's own code is part of what results are of: a change between runs is an error."""

import importlib
import sys

import pytest

import pe_jax
from experiments.running.files import own_code
from pe_jax.training.checkpoint import check_same, difference

CLASS = """
import dataclasses, json
import pe_jax
from {helper} import slope
from mine_package.mine_helper import bend

@dataclasses.dataclass(frozen=True)
class Mine(pe_jax.Encoding):
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user's with an encoding, which uses another file of theirs; and a stranger."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine_helper", "mine_unused"):
        (tmp_path / f"{name}.py").write_text("def slope(): return 2.0\n")
    (tmp_path / "mine_package").mkdir()
    (tmp_path / "mine_package" / "mine_helper.py").write_text("def bend(): return 1.0\n")
    (tmp_path / "mine_scheme.py").write_text(CLASS.format(helper="mine_helper"))
    importlib.import_module("mine_unused")
    module = importlib.import_module("mine_scheme")
    monkeypatch.setitem(pe_jax.ENCODINGS, "mine", module.Mine)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("mine_")]:
        sys.modules.pop(name, None)


def test_the_files_that_an_encoding_uses_are_found(mine):
    assert own_code.digests(["rope", "t5+alibi*2,nope", "rope@window=8"]) == {}
    found = own_code.digests(["mine+rope*2,nope"])
    assert [*found] == ["mine_helper.py", "mine_scheme.py"]
    assert own_code.digests(["alibi", "mine@window=4"]) == found
    (mine / "mine_helper.py").write_text("def slope(): return -2.0\n")
    changed = own_code.digests(["mine"])
    assert changed["mine_scheme.py"] == found["mine_scheme.py"] and changed != found
    (mine / "mine_package" / "mine_helper.py").write_text("def bend(): return 3.0\n")
    assert own_code.digests(["mine"]) not in (found, changed)  # another file of the same name


@pytest.mark.parametrize(
    "line",
    [
        "from mine_numbers.rates import RATE",
        "from mine_numbers import *",
        "def terms(): from mine_numbers.late import RATE",
        "from functools import partial; import mine_numbers.rates as r; f = partial(r.slope)",
        "import mine_numbers",
    ],
)
def test_numbers_of_another_file_and_imports_in_functions_are_found(mine, monkeypatch, line):
    """A number does not know where it is from."""
    (mine / "mine_numbers").mkdir()
    lines = {"__init__": "from .rates import RATE", "rates": "RATE = 2.0\ndef slope(): return 1"}
    for name, text in (lines | {"late": "from . import rates\nRATE = rates.RATE"}).items():
        (mine / "mine_numbers" / f"{name}.py").write_text(text)
    (mine / "mine_other.py").write_text(f"import pe_jax\n{line}\nclass Other(pe_jax.Encoding): ...")
    monkeypatch.setitem(pe_jax.ENCODINGS, "other", importlib.import_module("mine_other").Other)
    found = own_code.digests(["other"])
    assert {*found} - {"late.py"} == {"__init__.py", "mine_other.py", "rates.py"}
    (mine / "mine_numbers" / "rates.py").write_text("RATE = -2.0")
    assert own_code.digests(["other"])["rates.py"] != found["rates.py"]


def test_a_change_between_runs_is_an_error_and_an_encoding_more_is_none():
    saved = {"code": {"mine.py": "old"}}
    for now in ({"code": {"mine.py": "old", "more.py": "new"}}, {"code": {}}, {}):
        assert difference(saved, now, ("code",)) is None
        assert difference(now, saved, ("code",)) is None
    said = r"mine\.py changed since the first results here, .*; restore it, or use a new workdir"
    with pytest.raises(ValueError, match=said):
        check_same(saved, {"code": {"mine.py": "new"}}, ("code",))
