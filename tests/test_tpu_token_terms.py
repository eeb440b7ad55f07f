"""The TPU engine on what reads tokens' states or pairs, meets vectors of distances or caps scores.

It gives what the dense engine gives; the kernels run interpreted.
"""

import functools

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax.engines.kernels import query_chunks
from pe_jax.engines.kernels.tpu import engine, operands
from tests.test_gpu_token_terms import PACKED, PLANE, assert_dense
from tests.util import DIMS, B, E, H, noise

KERNELS = functools.partial(engine.attend, block=16, interpret=True)
T5 = "t5(num_buckets=6,max_distance=9)"
ELSEWHERE = np.arange(7, 217, 3)
ALL = {"causal": False}
DISTANCES = "deberta(buckets=4,max_distance=7)+shaw(clip=3)+clipped(clip=2)"
PAGE = np.stack([np.arange(70), *np.divmod(np.arange(70), 10)], axis=-1)
CASES = {
    "fox, far": ("fox", {"length": 128, "sharp": 0.1}),
    "fox, all, packed": ("fox", {"q_segments": PACKED, **ALL}),
    "fox, elsewhere": ("fox", {"q_positions": ELSEWHERE}),
    "fox, cable, a table": (f"fox+cable+{T5}", {}),
    "fox+alibi": ("fox+alibi", {"sharp": 0.1}),
    "tupe, cap": ("tupe(length=80)", {"logit_cap": 1.5}),
    "inkling": ("inkling(extent=20,width=3)", {}),
    "wavlm": ("wavlm(num_buckets=8,max_distance=9)", ALL),
    "shaw, all, packed, cap": (
        "shaw(clip=3)",
        {"logit_cap": 1.5, "q_segments": PACKED, **ALL},
    ),
    "deberta and all": (DISTANCES, ALL),
    "transformer_xl, all, packed": ("transformer_xl", {"q_segments": PACKED, **ALL}),
    # In chunks of 64 queries, or of 32 where there are no more.
    "pairs, packed": ("fire(width=3)", {"q_segments": PACKED}),
    "pairs, a table, vectors, packed": (
        f"fire(width=3)+{T5}+shaw(clip=3)",
        {"q_segments": PACKED, "window": 20},
    ),
    "pairs, fox, cap": ("fox+fire(width=3)+rope", {"logit_cap": 3.0, "q_positions": ELSEWHERE}),
    "pairs, transformer_xl": ("fire(width=3)+transformer_xl", {"length": 128, **ALL}),
    "pairs, a table, elsewhere": (
        f"fire(width=3)+{T5}",
        {"window": 20, "q_segments": PACKED, "q_positions": ELSEWHERE},
    ),
    "two of two axes, packed": (
        "cpb+alibi_2d",
        {"q_positions": PLANE, "q_segments": PACKED, **ALL},
    ),
    "layoutlmv3": ("layoutlmv3", {"q_positions": PAGE[None], **ALL}),
    "t5+alibi, elsewhere": (f"{T5}+alibi", {"q_positions": ELSEWHERE}),
}


@pytest.mark.parametrize("spec, options", CASES.values(), ids=list(CASES))
def test_tpu_equals_dense_and_so_does_every_gradient(spec, options):
    assert_dense(spec, KERNELS, **options)


def test_later_groups_of_chunks_meet_more_keys(monkeypatch):
    monkeypatch.setattr(query_chunks, "BLOCKS", 1)  # 5 chunks of 16 queries, the last one of 6
    monkeypatch.setattr(query_chunks, "GROUPS", 2)
    assert_dense("fire(width=3)", KERNELS, q_segments=PACKED, q_positions=ELSEWHERE)


@pytest.mark.parametrize(
    "name", ["fox, elsewhere", "inkling", "pairs, packed", "pairs, transformer_xl"]
)
def test_half_precision_differs_from_dense_as_rounding_does(name):
    spec, options = CASES[name]
    assert_dense(spec, KERNELS, tol=3e-2, **options, dtype="bfloat16")


def test_keys_that_have_faded_are_not_visited():
    """FoX's gates are near 1/2: 43 tokens weigh nothing. Nor are those of other documents."""
    ends = []

    def attend(spec, terms, q, k, v):
        plan = engine.counted(engine.make_plan(spec, terms, q, 16))

        @jax.jit
        def found(*call):
            x = operands.make_arrays(plan, *call)
            both = [operands.make_schedule(plan, x, by_keys) for by_keys in (False, True)]
            return [(schedule.first, schedule.last) for schedule in both]

        ends.extend(jax.tree.map(np.asarray, found(terms, q, k, v)))
        return v, None

    length, encoding = 320, pe_jax.make("fox")
    q, k, v, x = (0.01 * noise(B, length, n, E) for n in (H, H, H, H))
    params, ids = encoding.init(jax.random.key(0), DIMS), np.arange(length)[None] // 32
    given = {"encoding": encoding, "params": params, "x": x.reshape(B, length, -1)}
    pe_jax.attention(q, k, v, **given, implementation=attend)
    assert (ends[0][0][:, :, -1] > 12).all() and (ends[0][1] == np.arange(20)).all()
    assert (ends[1][0] == np.arange(20)).all() and (ends[1][1][:, :, 0] < 7).all()
    pe_jax.attention(q, k, v, **given, implementation=attend, q_segments=np.tile(ids, (B, 1)))
    assert (ends[2][0] == np.arange(20) // 2 * 2).all()
