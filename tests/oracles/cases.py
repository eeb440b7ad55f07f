"""Which settings are compared: those of `GOLDEN` are stored, `GRIDS` are drawn from live."""

from hypothesis import strategies as st

CASES = {
    # case: (settings of its golden files, hypothesis strategies of each setting)
    "nope_sdpa": (
        [{"heads": 4, "kv_heads": 2, "causal": True}],
        {"heads": st.just(4), "kv_heads": st.sampled_from([1, 2, 4]), "causal": st.booleans()},
    ),
    "sinusoidal_marian": (
        [{"dim": 16, "layout": "concatenated"}],
        {"dim": st.sampled_from([2, 4, 62, 512]), "layout": st.just("concatenated")},
    ),
    "sinusoidal_fsmt": (
        [{"dim": 16, "layout": "tensor2tensor"}],
        # Its own angles are float32: it errs by 1.1e-5 at 62 channels and position 217.
        {"dim": st.sampled_from([4, 6, 16]), "layout": st.just("tensor2tensor")},
    ),
    "learned_torch": ([{"rows": 9}], {"rows": st.sampled_from([1, 9, 256])}),
    "shaw_wav2vec2_bert": (
        [{"heads": 2, "left": 4, "right": 4}, {"heads": 2, "left": 5, "right": 2}],
        {
            "heads": st.sampled_from([1, 3]),
            "left": st.sampled_from([1, 5, 64]),
            "right": st.sampled_from([1, 8]),
        },
    ),
    "shaw_vits": (  # it gives zeros outside its window: keep every distance inside
        [{"heads": 2, "window": 11}],
        {"heads": st.sampled_from([1, 3]), "window": st.sampled_from([249, 300])},
    ),
    "transformer_xl_xlnet": (
        [
            {"heads": 2, "memory": 0, "causal": False},
            {"heads": 2, "memory": 5, "causal": True},
        ],
        {
            "heads": st.sampled_from([1, 2]),
            "memory": st.sampled_from([0, 5]),
            "causal": st.booleans(),
        },
    ),
    "t5_bucket": (
        [
            {"num_buckets": 32, "max_distance": 128, "bidirectional": False},
            {"num_buckets": 32, "max_distance": 128, "bidirectional": True},
        ],
        {
            "num_buckets": st.sampled_from(range(4, 65, 2)),
            "max_distance": st.integers(33, 600),
            "bidirectional": st.booleans(),
        },
    ),
    "t5_attention": (
        [
            {"heads": 2, "num_buckets": 6, "max_distance": 9, "bidirectional": False},
            {"heads": 2, "num_buckets": 8, "max_distance": 9, "bidirectional": True},
        ],
        {
            "heads": st.sampled_from([1, 3]),
            "num_buckets": st.sampled_from([8, 32]),
            "max_distance": st.sampled_from([20, 128]),
            "bidirectional": st.booleans(),
        },
    ),
    "deberta_bucket": (
        [{"buckets": 128, "max_distance": 512}],
        {"buckets": st.sampled_from(range(4, 129, 2)), "max_distance": st.integers(66, 600)},
    ),
    "deberta_attention": (
        [
            {"heads": 2, "buckets": 4, "max_distance": 9, "shared": False, "causal": False},
            {"heads": 2, "buckets": None, "max_distance": 5, "shared": False, "causal": True},
        ],
        {
            "heads": st.sampled_from([1, 2]),
            "buckets": st.sampled_from([None, 8, 32]),
            "max_distance": st.sampled_from([18, 128]),
            "shared": st.booleans(),
            "causal": st.booleans(),
        },
    ),
    "rope_llama": (
        [{"base": 1e4, "layout": "half"}],
        {"base": st.sampled_from([100.0, 1e4, 5e5, 1e6]), "layout": st.just("half")},
    ),
    "rope_gpt_neox_partial": (
        [{"base": 1e4, "fraction": 0.25, "layout": "half"}],
        {
            "base": st.sampled_from([1e4, 5e5]),
            "fraction": st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0]),
            "layout": st.just("half"),
        },
    ),
    "rope_gptj": ([{"layout": "interleaved"}], {"layout": st.just("interleaved")}),
    "rope_roformer": ([{"layout": "interleaved"}], {"layout": st.just("interleaved")}),
    "alibi_bloom": ([{"heads": 4}, {"heads": 6}], {"heads": st.integers(1, 20)}),
    "alibi_mpt": ([{"heads": 4}, {"heads": 6}], {"heads": st.integers(1, 20)}),
}
CASES |= {
    "wavlm_attention": (
        [{"heads": 2, "num_buckets": 8, "max_distance": 9}],
        {
            "heads": st.sampled_from([1, 3]),
            "num_buckets": st.sampled_from([8, 32, 320]),
            "max_distance": st.sampled_from([120, 800]),
        },
    ),
}
GOLDEN = [
    (f"{case}-{number}", case, settings)
    for case, (stored, _) in CASES.items()
    for number, settings in enumerate(stored)
]
GRIDS = {case: st.fixed_dictionaries(grid) for case, (_, grid) in CASES.items()}
