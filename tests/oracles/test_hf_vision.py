"""Positions of images in the models that `pe_jax.hf` reads."""

import importlib

import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.hf.vision import Axial
from tests.oracles.hf_layers import LENGTH, tiny
from tests.oracles.replay import TOLERANCE
from tools import hf_types

pytestmark = pytest.mark.oracles


def test_images_rotate_as_theirs(live):
    import torch

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, LENGTH, 2, 16)).astype("f")
    places = rng.integers(0, 9, (LENGTH, 2))
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "head_dim": 16}
    config, module = tiny("pixtral", **sizes)
    (layer,) = hf.encodings(config)
    y = torch.from_numpy(x)
    table = module.PixtralVisionRotaryEmbedding(config)(y, torch.from_numpy(places))
    theirs, _ = module.apply_rotary_pos_emb(y, y, *table, unsqueeze_dim=1)
    ours = hf_types.rotated(layer, x.transpose(0, 2, 1, 3), "q", places).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)

    _, module = tiny("qwen2_vl")
    config = module.Qwen2VLVisionConfig(embed_dim=32, num_heads=2, depth=1)
    (layer,) = hf.encodings(config)
    table = module.Qwen2VLVisionRotaryEmbedding(config)(y, torch.from_numpy(places))
    theirs, _ = module.apply_rotary_pos_emb_vision(y, y, *table)
    ours = hf_types.rotated(layer, x.transpose(0, 2, 1, 3), "q", places).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)

    del sizes["head_dim"]
    config, module = tiny("dinov3_vit", **sizes, patch_size=1, num_register_tokens=3)
    (layer,) = hf.encodings(config)
    places = np.asarray(pe_jax.positions.grid(4, 5, normalized=True, prefix=layer.prefix))
    cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 4, 5))
    z = torch.from_numpy(rng.standard_normal((1, 2, 24, 16)).astype("f"))
    theirs, _ = module.apply_rotary_pos_emb(z, z, cos, sin)
    np.testing.assert_allclose(
        hf_types.rotated(layer, z.numpy(), "q", places), theirs, atol=TOLERANCE
    )


TOWERS = [
    kind
    for kind, family in hf.FAMILIES.items()
    if isinstance(family, Axial) and kind not in ("pixtral", "qwen2_vl_vision", "dinov3_vit")
]


@pytest.mark.parametrize("kind", TOWERS)
def test_towers_rotate_as_theirs(live, kind):
    """Their tables of angles at random rows and columns (and frames), and how they turn a head."""
    import torch

    cls = hf_types.types()[kind]
    names = {"hidden_size": 48, "num_attention_heads": 2, "num_heads": 2, "num_key_value_heads": 2}
    names |= {"adapter_in_dim": 48}
    known = {*cls().to_dict(), *cls.attribute_map}
    config = cls(**{name: value for name, value in names.items() if name in known})
    layer = hf.encodings(config)[0]
    axes = layer.encoding.claims.axes
    rng = np.random.default_rng(0)
    x, places = rng.standard_normal((LENGTH, 2, 24)).astype("f"), rng.integers(0, 9, (LENGTH, axes))
    ours = places[:, ::-1].copy() if layer.extras.columns_first else places
    ours = hf_types.rotated(layer, x.transpose(1, 0, 2)[None], "q", ours)[0].transpose(1, 0, 2)
    module = importlib.import_module(cls.__module__.replace("configuration", "modeling"))
    own = [x for n, x in vars(module).items() if n.endswith("RotaryEmbedding") and "Vis" in n]
    assert len(own) == 1
    y = torch.from_numpy(x)
    cos, sin = own[0](config)(y, torch.from_numpy(places))
    theirs, _ = module.apply_rotary_pos_emb_vision(y, y, cos, sin)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE)


def test_windows_of_images(live):
    from transformers import AutoModel

    for kind, more in (
        ("swin", {}),
        ("swinv2", {}),
        ("swinv2", {"pretrained_window_sizes": [4, 4]}),
    ):
        sizes = {"image_size": 32, "patch_size": 2, "depths": [2, 2], "num_heads": [2, 4]}
        config, _ = tiny(kind, **sizes, embed_dim=8, window_size=8, **more)
        model, layers = AutoModel.from_config(config), hf.encodings(config)
        blocks = [m for m in model.modules() if type(m).__name__ in ("SwinLayer", "Swinv2Layer")]
        assert len(blocks) == len(layers)
        for index, (block, layer) in enumerate(zip(blocks, layers, strict=True)):
            if kind == "swinv2":
                assert block.shift_size == (4 if layer.extras.image_window == "shifted" else 0)
                trained = more.get("pretrained_window_sizes")
                want = trained[index // 2] if trained else block.window_size
                assert layer.encoding.height == want
            assert layer.head_dim * [2, 4][index // 2] == 8 * 2 ** (index // 2)


@pytest.mark.parametrize("kind", ["vit", "deit", "beit", "data2vec-vision"])
def test_tables_of_images(live, kind):
    """Vectors of patches and of tokens before them; BEiT's tables, shared or of each layer."""
    import torch
    from transformers import AutoConfig, AutoModel

    flags = "absolute_position_embeddings shared_relative_position_bias relative_position_bias"
    more = {} if kind in ("vit", "deit") else {f"use_{flag}": True for flag in flags.split()}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = AutoConfig.for_model(kind, **sizes, image_size=32, patch_size=8, **more)
    model = AutoModel.from_config(config)
    state = {name: torch.randn(x.shape) for name, x in model.state_dict().items()}
    params = hf.params(config, state, 1)
    shared = params.shared[0] if more else params.shared
    theirs = state["embeddings.position_embeddings"][0].numpy()
    np.testing.assert_array_equal(shared["front"], theirs[:-16])
    np.testing.assert_array_equal(shared["table"].reshape(16, -1), theirs[-16:])
    if more:
        tables = [x for n, x in state.items() if n.endswith("relative_position_bias_table")]
        ours = [params.shared[1]["table"], params.layer[2]["table"]]
        for one, other in zip(ours, (tables[0], tables[-1]), strict=True):
            np.testing.assert_array_equal(one, other.T)
