"""Names of encodings in folders and tables: short, safe, and no two alike."""

import re

import pytest

from experiments.running.files.run_names import find, short_names
from experiments.running.files.run_names import folder as folder_of
from pe_jax.validation import ConfigError


# 72
@pytest.mark.parametrize(
    "names",
    [
        {"rope": "rope", "t5(num_buckets=8)": "t5", "alibi": "alibi"},
        {"t5(num_buckets=8)": "t5 num_buckets 8", "t5(num_buckets=4)": "t5 num_buckets 4"},
        {"t5": "t5", "t5(num_buckets=8)": "t5 num_buckets 8"},
        {"rope": "rope", "t5+rope": "t5+rope", "t5,rope": "t5,rope", "rope*3,nope": "rope*3,nope"},
        {
            "rope": "rope",
            "rope(scaling=yarn(factor=4,original_length=64))": "yarn ×4",
            "rope(scaling=yarn(factor=8,original_length=64))": "yarn ×8",
            "rope(scaling=linear(factor={factor}))": "linear",
        },
        {"rope_2d(scaling=(ntk(factor=2),None))": "rope_2d", "rope": "rope"},
        {
            "rope_2d(scaling=(ntk(factor=2),None))": "rope_2d scaling (ntk(factor=2), None)",
            "rope_2d(scaling=(ntk(factor=3.0),None))": "rope_2d scaling (ntk(factor=3), None)",
        },
        {"rope(base=1e4)*3,rope(base=1e6)": "rope(base=1e4)*3,rope(base=1e6)", "rope": "rope"},
        {"rope(base=5e5)": "rope base 5e5", "rope(base=0.5)": "rope base 0.5"},
        {"rope@window=64": "rope window 64", "rope": "rope", "nope@window=64": "nope window 64"},
        {"rope@window=64*3,nope": "rope@window=64*3,nope", "rope*3,nope": "rope*3,nope"},
        {"rope(base=5e5)": "rope(base=5e5)", "rope(base=500000.0)": "rope(base=500000.0)"},
    ],
)
def test_short_names_tell_variants_apart(names):
    assert short_names([*names]) == names
    assert len({folder_of(spec) for spec in names}) == len(names)


def test_a_reference_is_a_spec_or_a_short_name():
    specs = "rope(scaling=yarn(factor=4))", "rope(scaling=yarn(factor=8))"
    assert find("reference", "", specs) == find("reference", "yarn ×4", specs) == specs[0]
    assert find("reference", specs[1], specs) == specs[1]
    with pytest.raises(ConfigError, match="reference='yarn': pass one of the encodings: yarn ×4"):
        find("reference", "yarn", specs)


# 59
@pytest.mark.parametrize("spec", ["<script>", r"$\frac{", "../x", "/etc", "...", "", "a" * 99, "é"])
def test_a_folder_is_never_named_by_anything_harmful(spec):
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", folder_of(spec))
