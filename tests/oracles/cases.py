"""Which settings are compared: those of `GOLDEN` are stored, `GRIDS` are drawn from live."""

from hypothesis import strategies as st

SIDES, WINDOWS = st.integers(1, 9), st.integers(2, 7)
ROTARY_2D = {"head_dim": [4, 64], "base": [100.0, 1e4]}
ROTARY_3D = {
    # Their frequencies are powers in float32: at 64 channels the angles err by 1e-5.
    "sections": [[4, 2, 2], [6, 5, 5], [1, 1, 1]],
    "base": [1e4, 5e6],
}
SPANS = (  # a video of more frames than rows or columns: ours follows the paper, theirs does not
    st.tuples(st.integers(1, 5))
    | st.tuples(SIDES, SIDES)
    | st.tuples(SIDES, SIDES, SIDES).filter(lambda s: s[0] <= max(s[1:]))
).map(list)


def apart(spans) -> bool:
    """Whether no two images or two videos touch: theirs tells spans apart by the kind of token."""
    return all(len(a) != len(b) for a, b in zip(spans, spans[1:], strict=False))


def drawn(grid: dict, **optional: dict):
    """Settings, each one of a list or range or as a strategy draws it; what is neither is fixed."""

    def strategies(grid):
        return {name: strategy(x) for name, x in grid.items()}

    def strategy(x):
        plain = st.sampled_from(x) if isinstance(x, list | range) else st.just(x)
        return x if isinstance(x, st.SearchStrategy) else plain

    return st.fixed_dictionaries(
        strategies(grid), **{k: strategies(x) for k, x in optional.items()}
    )


def _scaling(kind: str, required: dict, head_dim=None, **optional):
    """Settings of a rope_type: rope_parameters and what a config has besides."""
    required = {"rope_type": kind, "rope_theta": BASES, **required}
    return {
        "head_dim": head_dim or [8, 16, 96, 128],
        "longest": [4096, 16384, 131072],
        "target": st.sampled_from([1, 4095, 4096, 4097]) | st.integers(2, 200_000),
        "parameters": drawn(required, optional=optional),
    }


def _stored(target: int = 8192, head_dim: int = 16, **parameters) -> dict:
    parameters = {"rope_theta": 1e4, **parameters}
    return {"head_dim": head_dim, "longest": 4096, "target": target, "parameters": parameters}


BASES = [100.0, 1e4, 5e5, 1e7]
FACTORS = st.sampled_from([0.5, 1.0, 4.0, 32.0]) | st.floats(0.25, 64)
PARTIAL = [0.5, 0.75, 1.0, 0.8]  # 0.8: 6, 12, 76 and 102 channels
ORIGINAL = [2048, 4096, 8192]
LIST = st.lists(st.floats(1, 64), min_size=8, max_size=8)
LONG = {"short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.1, 2.6, 3.2], "long_factor": [*range(1, 9)]}
LONG |= {"rope_type": "longrope", "original_max_position_embeddings": 2048}
YARN = {"rope_type": "yarn", "original_max_position_embeddings": 2048}
MSCALE = [None, 0, 0.707, 1.0, 2]
CASES = {
    # case: (settings of its golden files, hypothesis strategies of each setting)
    "nope_sdpa": (
        [{"heads": 4, "kv_heads": 2, "causal": True}],
        {"heads": 4, "kv_heads": [1, 2, 4], "causal": st.booleans()},
    ),
    "sinusoidal_marian": (
        [{"dim": 16, "layout": "concatenated"}],
        {"dim": [2, 4, 62, 512], "layout": "concatenated"},
    ),
    "sinusoidal_fsmt": (
        [{"dim": 16, "layout": "tensor2tensor"}],
        # Its own angles are float32: it errs by 1.1e-5 at 62 channels and position 217.
        {"dim": [4, 6, 16], "layout": "tensor2tensor"},
    ),
    "learned_torch": ([{"rows": 9}], {"rows": [1, 9, 256]}),
    "shaw_wav2vec2_bert": (
        [{"heads": 2, "left": 4, "right": 4}, {"heads": 2, "left": 5, "right": 2}],
        {"heads": [1, 3], "left": [1, 5, 64], "right": [1, 8]},
    ),
    "shaw_vits": (  # it gives zeros outside its window: keep every distance inside
        [{"heads": 2, "window": 11}],
        {"heads": [1, 3], "window": [249, 300]},
    ),
    "transformer_xl_xlnet": (
        [{"heads": 2, "memory": 0, "causal": False}, {"heads": 2, "memory": 5, "causal": True}],
        {"heads": [1, 2], "memory": [0, 5], "causal": st.booleans()},
    ),
    "t5_bucket": (
        [
            {"num_buckets": 32, "max_distance": 128, "bidirectional": False},
            {"num_buckets": 32, "max_distance": 128, "bidirectional": True},
        ],
        {
            "num_buckets": range(4, 65, 2),
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
            "heads": [1, 3],
            "num_buckets": [8, 32],
            "max_distance": [20, 128],
            "bidirectional": st.booleans(),
        },
    ),
    "deberta_bucket": (
        [{"buckets": 128, "max_distance": 512}],
        {"buckets": range(4, 129, 2), "max_distance": st.integers(66, 600)},
    ),
    "deberta_attention": (
        [
            {"heads": 2, "buckets": 4, "max_distance": 9, "shared": False, "causal": False},
            {"heads": 2, "buckets": None, "max_distance": 5, "shared": False, "causal": True},
        ],
        {
            "heads": [1, 2],
            "buckets": [None, 8, 32],
            "max_distance": [18, 128],
            "shared": st.booleans(),
            "causal": st.booleans(),
        },
    ),
    "rope_llama": (
        [{"base": 1e4, "layout": "half"}],
        {"base": [100.0, 1e4, 5e5, 1e6], "layout": "half"},
    ),
    "rope_gpt_neox_partial": (
        [{"base": 1e4, "fraction": 0.25, "layout": "half"}],
        {"base": [1e4, 5e5], "fraction": [0.125, 0.25, 0.5, 0.75, 1.0], "layout": "half"},
    ),
    "rope_gptj": ([{"layout": "interleaved"}], {"layout": "interleaved"}),
    "rope_roformer": ([{"layout": "interleaved"}], {"layout": "interleaved"}),
    "rope_mla_deepseek_v3": (
        [{"content": 4, "interleave": True}, {"content": 10, "interleave": False}],
        {"content": [1, 4, 10], "interleave": st.booleans()},
    ),
    "rotated_values_deepseek_v4": ([{"window": 5}, {"window": 128}], {"window": [1, 5, 128]}),
    "lerope_mistral_large4": (
        [
            {"parameters": {"rope_type": "default", "rope_theta": 1e4}},
            {"parameters": {**YARN, "rope_theta": 1e4, "factor": 4.0}},
        ],
        {
            "parameters": drawn(
                {
                    "rope_type": "yarn",
                    "rope_theta": [100.0, 1e4],
                    "factor": [1.0, 4.0, 2048.0],
                    "original_max_position_embeddings": [512, 2048],
                },
                optional={"attention_factor": [1.0, 1.3]},
            )
        },
    ),
    "log_length_mistral_large4": ([{"heads": 3}], {"heads": st.integers(1, 8)}),
    "pope_x_transformers": ([{"base": 1e4}, {"base": 100.0}], {"base": [100.0, 1e4]}),
    "pope_pytorch": ([{"base": 1e4}], {"base": [100.0, 1e4]}),
    "wall_fla": (
        [{"heads": 4, "kv_heads": 2, "loud": 1.0}, {"heads": 2, "kv_heads": 2, "loud": 4.0}],
        {"heads": 4, "kv_heads": [1, 2, 4], "loud": [0.1, 1.0, 4.0]},
    ),
    "rope_linear": (
        [_stored(rope_type="linear", factor=4.0, partial_rotary_factor=0.5)],
        _scaling("linear", {"factor": FACTORS}, partial_rotary_factor=PARTIAL),
    ),
    "rope_dynamic": (
        [_stored(target=n, rope_type="dynamic", factor=2.0) for n in (4096, 10_000)],
        _scaling("dynamic", {"factor": FACTORS}, partial_rotary_factor=PARTIAL),
    ),
    "rope_yarn": (
        [
            _stored(**YARN, factor=4.0),
            _stored(**YARN, factor=40.0, mscale=0.707, mscale_all_dim=1.0, truncate=False),
        ],
        _scaling(
            "yarn",
            {"factor": FACTORS, "original_max_position_embeddings": ORIGINAL},
            beta_fast=[None, 0, 8, 32.0, 64],
            beta_slow=[None, 0, 0.5, 1, 8],
            mscale=MSCALE,
            mscale_all_dim=MSCALE,
            truncate=st.booleans(),
            attention_factor=[None, 0.0, 1.0, 1.3],
            partial_rotary_factor=PARTIAL,
        ),
    ),
    "rope_llama3": (
        [
            _stored(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=2048,
            )
        ],
        _scaling(
            "llama3",
            {
                "factor": FACTORS,
                "low_freq_factor": [0.5, 1.0, 2],
                "high_freq_factor": [2, 4.0, 32],
                "original_max_position_embeddings": ORIGINAL,
            },
            partial_rotary_factor=PARTIAL,
        ),
    ),
    "rope_longrope": (
        [_stored(target=n, **LONG) for n in (2048, 2049)],
        _scaling(
            "longrope",
            {
                "short_factor": LIST,
                "long_factor": LIST,
                "original_max_position_embeddings": ORIGINAL,
            },
            head_dim=16,
            factor=st.none() | FACTORS,
            attention_factor=[None, 0.0, 1.0, 1.19],
        ),
    ),
    "rope_proportional": (
        [_stored(rope_type="proportional", partial_rotary_factor=0.25, factor=2.0)],
        _scaling("proportional", {}, partial_rotary_factor=st.floats(0, 1), factor=FACTORS),
    ),
    "rope_hunyuan": (
        [{"head_dim": 16, "alpha": 1000.0}],
        {"head_dim": [4, 16, 128], "alpha": st.floats(0.5, 1000)},
    ),
    "rope_gemma3": ([{"factor": None}], {"factor": st.none() | FACTORS}),
    "nope_smollm3": ([{"layer": 2}, {"layer": 3}], {"layer": st.integers(0, 7)}),
    "temperature_llama4": (
        [{"layer": n, "attn_scale": 0.5, "floor_scale": 4} for n in (2, 3)],
        {"layer": st.integers(0, 7), "attn_scale": [0.1, 0.5], "floor_scale": [1, 3, 7, 8192]},
    ),
    "temperature_ministral3": (
        [{"beta": 0.5, "original": 4}],
        {"beta": [0.1, 0.5], "original": [3, 7, 16384]},
    ),
    "alibi_bloom": ([{"heads": 4}, {"heads": 6}], {"heads": st.integers(1, 20)}),
    "alibi_mpt": ([{"heads": 4}, {"heads": 6}], {"heads": st.integers(1, 20)}),
    "sinusoidal_2d_mae": (
        [{"height": 3, "width": 5, "dim": 16}],
        {"height": SIDES, "width": SIDES, "dim": [4, 64, 512]},
    ),
    "learned_2d_interpolate": (
        [{"height": 3, "width": 4, "to": [5, 8]}],
        {"height": SIDES, "width": SIDES, "to": st.tuples(SIDES, SIDES).map(list)},
    ),
    "learned_grid_interpolate": (
        [
            {"size": [4, 3], "to": [6, 2], "method": "bicubic", "antialias": False},
            {"size": [5, 4], "to": [3, 6], "method": "bicubic", "antialias": True},
            {"size": [5, 4], "to": [3, 6], "method": "bilinear", "antialias": True},
            {"size": [4, 3], "to": [6, 2], "method": "bicubic", "antialias": False, "offset": 0.1},
        ],
        {
            "size": st.tuples(SIDES, SIDES).map(list),
            "to": st.tuples(SIDES, SIDES).map(list),
            "method": ["bilinear", "bicubic"],
            "antialias": st.booleans(),
            "offset": [0.0, 0.1],
        },
    ),
    "rope_2d_qwen2_vl": (
        [{"head_dim": 8, "base": 1e4, "spectrum": "shared"}],
        {**ROTARY_2D, "spectrum": "shared"},
    ),
    "rope_2d_pixtral": (
        [{"head_dim": 8, "base": 1e4, "spectrum": "alternating"}],
        {**ROTARY_2D, "spectrum": "alternating"},
    ),
    "rope_2d_dinov3": (
        [{"height": 3, "width": 4, "prefix": 2, "base": 100.0}],
        {"height": WINDOWS, "width": WINDOWS, "prefix": [0, 1, 5], "base": [100.0, 1e4]},
    ),
    "rope_2d_timm": (
        [{"height": 3, "width": 4, "base": 100.0}],
        {"height": WINDOWS, "width": WINDOWS, "base": [100.0, 1e4]},
    ),
    "rope_mixed_timm": ([{"height": 3, "width": 4}], {"height": WINDOWS, "width": WINDOWS}),
    "cayley_string_torch": ([{"axes": 2}], {"axes": st.integers(2, 4)}),
    "liere_torch": (
        [{"axes": 2, "block": 4, "commuting": False}, {"axes": 3, "block": 8, "commuting": True}],
        {"axes": st.integers(2, 4), "block": [2, 4, 8], "commuting": st.booleans()},
    ),
    "rope_nd_minimax_m3": (
        [{"head_dim": 8, "base": 1e4}],
        # As of three sections: their frequencies are powers in float32.
        {"head_dim": [6, 14, 20], "base": [100.0, 1e4]},
    ),
    "mrope_qwen2_vl": (
        [{"sections": [2, 3, 3], "base": 1e6, "interleaved": False}],
        {**ROTARY_3D, "interleaved": False},
    ),
    "mrope_qwen3_vl": (
        [{"sections": [3, 3, 2], "base": 5e6, "interleaved": True}],
        {**ROTARY_3D, "interleaved": True},
    ),
    "mrope_ernie4_5_vl": (
        [{"sections": [2, 3, 3], "base": 5e5, "time_last": True, "layout": "interleaved"}],
        {
            **ROTARY_3D,
            "sections": [[4, 2, 2], [2, 5, 5], [1, 1, 1]],
            "time_last": True,
            "layout": "interleaved",
        },
    ),
    "mrope_glm4v": (
        [{"sections": [2, 3, 3], "base": 1e4, "layout": "interleaved"}],
        {**ROTARY_3D, "layout": "interleaved"},
    ),
    "mrope_positions": (
        [{"spans": [[3], [2, 3], [2], [2, 3, 4], [1], [1, 5]]}],
        {"spans": st.lists(SPANS, min_size=1).filter(apart)},
    ),
    "swin_bias": (
        [{"heads": 2, "height": 2, "width": 3}],
        {"heads": st.integers(1, 4), "height": SIDES, "width": SIDES},
    ),
    "swin_beit": (  # theirs swaps the sides of its table before it resizes it: `side` is both
        [{"heads": 2, "side": 3, "to": [3, 3]}, {"heads": 2, "side": 3, "to": [2, 4]}],
        {"heads": st.integers(1, 4), "side": SIDES, "to": st.tuples(SIDES, SIDES).map(list)},
    ),
    "cpb_swinv2": (
        [
            {"heads": 2, "window": [2, 3], "trained": [2, 3]},
            {"heads": 2, "window": [3, 4], "trained": [2, 3]},
        ],
        {
            "heads": st.integers(1, 4),
            "window": st.tuples(WINDOWS, WINDOWS).map(list),
            "trained": st.tuples(WINDOWS, WINDOWS).map(list),
        },
    ),
    "layoutlmv3_attention": (
        [{"num_buckets": 32, "max_distance": 128, "spatial_buckets": 64, "spatial_distance": 256}],
        {
            "num_buckets": [8, 32],
            "max_distance": [20, 128],
            "spatial_buckets": [16, 64],
            "spatial_distance": [100, 256],
        },
    ),
}
CASES |= {
    "wavlm_attention": (
        [{"heads": 2, "num_buckets": 8, "max_distance": 9}],
        {"heads": [1, 3], "num_buckets": [8, 32, 320], "max_distance": [120, 800]},
    )
}
CASES |= {
    "fox_fla": ([{"heads": 4, "kv_heads": 2}], {"heads": 4, "kv_heads": [1, 2, 4]}),
    "path_fla": ([{"heads": 2}], {"heads": [1, 3]}),
    "cope_x_transformers": (
        [{"heads": 2, "positions": 4}],
        {"heads": [1, 3], "positions": [1, 4, 64]},
    ),
    "stick_breaking_fla": (
        [{"heads": 4, "kv_heads": 2, "attend_current": current} for current in (False, True)],
        {"heads": 4, "kv_heads": [1, 2, 4], "attend_current": st.booleans()},
    ),
    "fox_x_transformers": (
        [{"heads": 2, "causal": True}, {"heads": 3, "causal": False}],
        {"heads": st.integers(1, 4), "causal": st.booleans()},
    ),
    "xpos_x_transformers": (
        [{"base": 1e4, "scale_base": 16}],
        {"base": [100.0, 1e4], "scale_base": [16, 64, 512]},
    ),
    "sandwich_attn_gym": (
        [{"heads": 4, "width": 128, "causal": True}, {"heads": 3, "width": 10, "causal": False}],
        {"heads": st.integers(1, 8), "width": [2, 10, 128], "causal": st.booleans()},
    ),
    "dpb_x_transformers": (
        [
            {"heads": 2, "hidden": 8, "depth": 2, "log_distance": False, "causal": False},
            {"heads": 3, "hidden": 5, "depth": 1, "log_distance": True, "causal": True},
        ],
        {
            "heads": st.integers(1, 4),
            "hidden": [1, 5, 64],
            "depth": st.integers(1, 4),
            "log_distance": st.booleans(),
            "causal": st.booleans(),
        },
    ),
    "cpb_timm": CASES["cpb_swinv2"],
    "cpb_x_transformers": (
        [{"heads": 2, "window": [1, 7], "trained": [9, 9]}],
        {
            "heads": st.integers(1, 4),
            "window": st.integers(1, 60).map(lambda tokens: [1, tokens]),
            "trained": [[9, 9]],
        },
    ),
}
HEADS = {"heads": 4, "kv_heads": [1, 2, 4]}
INKLING = {**HEADS, "extent": [3, 16, 200], "states": [1, 16], "floor": [4, 50]}
INKLING_STORED = {"heads": 4, "kv_heads": 2, "extent": 5, "states": 3, "floor": 4}
CASES |= {
    "inkling_attention": (
        [INKLING_STORED, INKLING_STORED | {"floor": None}],
        INKLING | {"floor": [4, 50, None]},
    ),
    "inkling_2": (
        [INKLING_STORED | {"clip_states": 1.0, "clip_qk": 2.0}],
        INKLING | {"clip_states": [1.0, 8.0], "clip_qk": [2.0, 22.6]},
    ),
    "sink_gpt_oss": ([{"heads": 4, "kv_heads": 2}], HEADS),
}
# The ending of a case, and the package beside transformers that it runs.
PACKAGES = {"_fla": "fla-core", "_x_transformers": "x-transformers", "_timm": "timm"}
PACKAGES |= {"pope_pytorch": "PoPE-pytorch", "_attn_gym": "attn-gym"}
GOLDEN = [
    (f"{case}-{number}", case, settings)
    for case, (stored, _) in CASES.items()
    for number, settings in enumerate(stored)
]
GRIDS = {case: drawn(grid) for case, (_, grid) in CASES.items()}
