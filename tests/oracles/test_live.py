"""Every scheme against the oracles themselves, over grids of settings: `make oracles`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import replay
from tests.oracles.cases import CASES, GOLDEN, GRIDS

pytestmark = pytest.mark.oracles
LENGTHS = (2, 13, 150)


@pytest.mark.parametrize("case", CASES)
def test_ours_equals_the_oracle(live, case):
    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(GRIDS[case], st.sampled_from(LENGTHS), st.integers(0, 2**31))
    def law(values, length, seed):
        record = live.run(case, values, length, seed)
        for implementation in ("dense", "tiled"):
            replay.compare(record, implementation)

    law()


@pytest.mark.parametrize("name, case, values", GOLDEN)
def test_the_golden_file_is_what_the_oracle_answers(live, name, case, values):
    stored, fresh = replay.load(replay.GOLDEN / f"{name}.npz"), live.run(case, values)
    assert stored.versions == fresh.versions, "run python -m tests.oracles.write"
    for before, now in ((stored.inputs, fresh.inputs), (stored.outputs, fresh.outputs)):
        assert before.keys() == now.keys()
        for array in before:
            np.testing.assert_allclose(now[array], before[array], rtol=0, atol=1e-6)
