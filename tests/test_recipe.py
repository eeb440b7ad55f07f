"""A new scheme is one file and one line: those of WORKSPACE.md's recipe, as they are printed there.

They obey the laws, train, and are compared.
"""

import importlib.util
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import pe_jax
from experiments.running.configs.compare import CompareConfig
from experiments.running.files.run_names import short_names
from pe_jax.encodings.base import Encoding
from tests import trainers, util
from tests.contract import test_decoding, test_engines, test_positions, test_settings, test_terms

ROOT = Path(__file__).parents[1]
IMPORTS = """
import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.encodings import rope
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import DistanceBias, RelativeKeys, Rotation, State, TokenBias
"""
LAWS = (  # what a scheme from outside must obey, at the least
    test_engines.test_dense_equals_tiled_at_any_positions_and_segments,
    test_engines.test_dense_equals_tiled_where_positions_are_contiguous,
    test_decoding.test_decoding_with_a_cache_equals_dense,
    test_positions.test_a_relative_scheme_does_not_change_under_a_shift,
    test_positions.test_the_limit_is_where_positions_end,
    test_terms.test_a_tile_of_a_term_is_the_term_of_the_tile,
    test_terms.test_biases_are_float32_and_tokens_keep_their_type,
    test_settings.test_a_scheme_is_frozen_hashable_and_a_static_argument,
)
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
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("test_"))
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


def test_one_that_breaks_a_law_is_caught(recipe):
    class Peeks(recipe.LogBias):
        def terms(self, params, dims):
            return (recipe.DistanceBias(self.bias, params.layer["rate"]),)

        def bias(self, rate, distance):
            return recipe.log_bias(rate, distance + distance.shape[-1])

    with pytest.raises(AssertionError):
        test_terms.test_a_tile_of_a_term_is_the_term_of_the_tile(case=util.Case("peeks", Peeks()))


def test_it_is_made_by_its_name_and_compared(recipe):
    assert pe_jax.make("recentkeys", reach=2) == recipe.RecentKeys(2)
    with pytest.raises(ValueError, match="did you mean 'recentkeys'"):
        pe_jax.make("recentkey")
    config = CompareConfig(encodings=("logbias", "logbias+rope", "rope"), baseline="logbias")
    config.check()
    assert [*short_names(config.encodings).values()] == ["logbias", "logbias+rope", "rope"]
