"""The encodings in WORKSPACE.md's recipe, as they are printed there: they obey the laws."""

import importlib.util
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import Encoding
from tests import trainers, util
from tests.contract import newcomers

ROOT = Path(__file__).parents[1]
IMPORTS = """
import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings import rope
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import DistanceBias, RelativeKeys, Rotation, State, TokenBias
"""
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "WORKSPACE.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A module of the printed blocks, in a file as step 1 has it, and step 2 done."""
    file = tmp_path_factory.mktemp("recipe") / "yours.py"
    file.write_text("\n\n".join((IMPORTS, *BLOCKS)))
    spec = importlib.util.spec_from_file_location("yours", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setitem(pe_jax.ENCODINGS, name.lower(), getattr(module, name))
        yield module


NAMES = re.findall(r"^class (\w+)\(Encoding\)", "\n".join(BLOCKS), re.MULTILINE)


def test_the_page_shows_a_bias_a_rotation_a_relative_key_and_a_state(recipe):
    kinds = [type(term).__name__ for name in NAMES for term in util.terms(getattr(recipe, name)())]
    assert kinds == ["DistanceBias", "Rotation", "RelativeKeys", "TokenBias"]
    assert all(issubclass(getattr(recipe, name), Encoding) for name in NAMES)
    assert all(len(block.splitlines()) <= 50 for block in BLOCKS)  # a screen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "law",
    newcomers.LAWS,
    ids=lambda law: law.__name__.removeprefix("test_"),
)
def test_it_obeys_the_laws(recipe, name, law):
    law(case=util.Case(name.lower(), getattr(recipe, name)()))


@pytest.mark.parametrize("name", NAMES)
def test_it_trains(recipe, name):
    trainer = trainers.trainer(name.lower())
    before = trainers.start(trainer).params
    state, losses = trainers.steps(trainer, 3)
    assert np.isfinite(losses).all()
    own = [x["blocks"][0]["attention"].get("params", {}) for x in (before, state.params)]
    moved = jax.tree.map(lambda a, b: abs(a - b).max() > 0, *own)
    assert all(jax.tree.leaves(moved))
