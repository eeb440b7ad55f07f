"""The TPU engine on what reads tokens' states, meets vectors of distances or caps scores.

It gives what the dense engine gives; the kernels run interpreted.
"""

import numpy as np
import pytest

from pe_jax.engines.tpu.hops import Kernels
from tests.test_gpu_token_terms import PACKED, run
from tests.util import assert_close

KERNELS = Kernels(block=16, interpret=True)
T5 = "t5(num_buckets=6,max_distance=9)"
ALL = {"causal": False}
CASES = {
    "fox": ("fox", {}),
    "fox, far": ("fox", {"length": 128, "sharp": 0.1}),
    "fox, all, packed": ("fox", {"q_segments": PACKED, **ALL}),
    "fox, elsewhere": ("fox", {"q_positions": np.arange(7, 217, 3)}),
    "fox, cable, a table": (f"fox+cable+{T5}", {}),
    "fox+alibi": ("fox+alibi", {"sharp": 0.1}),
    "tupe, cap": ("tupe(length=80)", {"logit_cap": 1.5}),
    "alibi, cap": ("alibi", {"logit_cap": 1.5}),
    "t5, cap, window": (T5, {"logit_cap": 1.5, "window": 40}),
    "inkling": ("inkling(extent=20,width=3)", {}),
    "wavlm": ("wavlm(num_buckets=8,max_distance=9)", ALL),
    "shaw": ("shaw(clip=3)", {}),
    "shaw, all, packed, cap": (
        "shaw(clip=3)",
        {"logit_cap": 1.5, "q_segments": PACKED, **ALL},
    ),
    "deberta": ("deberta(buckets=None,max_distance=20)", {}),
    "deberta and all": ("deberta(buckets=4,max_distance=7)+shaw(clip=3)+clipped(clip=2)", ALL),
}


@pytest.mark.parametrize("spec, options", CASES.values(), ids=list(CASES))
def test_tpu_equals_dense_and_so_does_every_gradient(spec, options):
    assert_close(run(spec, KERNELS, **options), run(spec, "dense", **options))


@pytest.mark.parametrize("name", ["fox", "inkling", "deberta"])
def test_half_precision_differs_from_dense_as_rounding_does(name):
    spec, options = CASES[name]
    half = {**options, "dtype": "bfloat16"}
    assert_close(run(spec, KERNELS, **half), run(spec, "dense", **half), 3e-2)
