"""Every scheme against what other people's code once answered (`tests/oracles/golden`)."""

import numpy as np
import pytest

from pe_jax import ENCODINGS
from tests.oracles import replay
from tests.oracles.cases import GOLDEN, PACKAGES

# np.digitize and the paper's clip (tests/encodings/test_buckets), math.dist (test_alibi_2d)
NO_ORACLE = {"buckets", "clipped", "alibi_2d"}


@pytest.mark.parametrize("name", [name for name, _, _ in GOLDEN])
def test_ours_equals_the_oracles_stored_answer(name):
    replay.compare(replay.load(replay.GOLDEN / f"{name}.npz"))


def test_the_golden_files_are_those_that_the_cases_name():
    assert {p.stem for p in replay.GOLDEN.glob("*.npz")} == {name for name, _, _ in GOLDEN}
    for name, case, settings in GOLDEN:
        record = replay.load(replay.GOLDEN / f"{name}.npz")
        others = {package for ending, package in PACKAGES.items() if case.endswith(ending)}
        assert (record.case, record.settings) == (case, settings)
        assert set(record.versions) == {"torch", "transformers"} | others


def test_every_scheme_of_tier_1_has_an_oracle():
    tier_1 = set("nope sinusoidal learned shaw transformer_xl t5 deberta rope alibi".split())
    assert tier_1 | NO_ORACLE <= set(ENCODINGS)
    for scheme in tier_1:
        assert any(case.startswith(scheme) for _, case, _ in GOLDEN), scheme


def test_a_wrong_answer_is_noticed():
    record = replay.load(replay.GOLDEN / "alibi_bloom-0.npz")
    wrong = {name: x.copy() for name, x in record.outputs.items()}
    wrong["weights"][0, 0, -1, 0] += 2e-5
    with pytest.raises(AssertionError, match="alibi_bloom weights: off by 2e-05"):
        replay.compare(record._replace(outputs=wrong))
    wrong["weights"][0, 0, -1, 0] = np.nan
    with pytest.raises(AssertionError, match="off by nan"):
        replay.compare(record._replace(outputs=wrong))
