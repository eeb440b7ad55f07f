"""Where parameters live: every one of every model by a rule, and none in silence."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import pe_jax
from pe_jax.encodings.registry import format_encoding
from pe_jax.models.vit import ViT
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig
from tests import tiny
from tests.util import SMALL

HEAD = 8  # of 32 channels: wide enough for every rotation


def model(name: str, images: bool):
    """A model's config and its parameters' shapes, of every kind that a config can ask for."""
    given = dict(SMALL.get(name, [{}])[0])
    causal = given.pop("causal", True) and not images
    if images and name == "t5":
        given["bidirectional"] = True
    spec = name if "(" in name else format_encoding(pe_jax.make(name, **given))
    options = {"bias": True, "gated": True, "qk_norm": True, "norm": "layer", "tied": False}
    options |= {"block": "around", "embed_norm": True}
    config = tiny.config(spec, width=4 * HEAD, causal=causal, **options)
    if not images:
        return config, tiny.abstract_terms(config)[1]
    make = functools.partial(ViT, config, 4, 3, 5)
    return config, nnx.as_pure(nnx.eval_shape(lambda: nnx.split(make(rngs=nnx.Rngs(0))))[1])


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(MeshConfig(data=1, fsdp=4, model=2), jax.devices()[:8])


@pytest.mark.parametrize("images", [False, True], ids=["tokens", "images"])
@pytest.mark.parametrize("name", [*pe_jax.ENCODINGS, "gated_delta", "gated_delta(decay=channel)"])
def test_every_parameter_of_every_model_has_a_rule(name, images, mesh):
    claims = pe_jax.parse(name)[0].claims
    if images and (claims.causal_only or name == "inkling"):
        with pytest.raises(ValueError, match="causal"):
            model(name, images)
        return
    config, shapes = model(name, images)
    found = sharding.parameter_shardings(shapes, mesh, config)
    for (path, x), where in zip(
        jax.tree.leaves_with_path(shapes), jax.tree.leaves(found), strict=True
    ):
        own = sharding.path_name(path)
        encodings = own.startswith("shared/") or "/params/" in own
        of_heads = own.endswith(("/taps", "/log_rate", "/step_bias"))  # of a recurrent layer
        if not encodings and not of_heads:
            assert where.is_fully_replicated != own.endswith(("kernel", "embedding"))
        where.shard_shape(x.shape)  # raises where a size does not divide


def test_heads_of_a_model_that_fits_need_not_divide_over_fsdp(mesh):
    config = tiny.config("gated_delta(decay=channel)", width=24)
    sharding.check_fits(config, 8, mesh, {})
    _, shapes = tiny.abstract_terms(config)
    found = sharding.parameter_shardings(shapes, mesh, config)
    jax.tree.map(lambda x, at: at.shard_shape(x.shape), shapes, found)


@pytest.mark.parametrize(
    "path", ["blocks/0/experts/up/kernel", "blocks/0/mlp/up/kernels", "pooler/kernel"]
)
def test_a_parameter_that_no_rule_names_is_an_error(path, mesh):
    tree = jax.ShapeDtypeStruct((512, 128), np.float32)
    for key in reversed(path.split("/")):
        tree = {key: tree}
    with pytest.raises(ValueError) as error:
        sharding.parameter_shardings(tree, mesh, tiny.config("rope", width=32))
    text = str(error.value)
    assert path in text and "[512, 128]" in text and "LOGICAL" in text and "\n" not in text


P = PartitionSpec
NAMED = {  # of Dims(24, 6, 3, 8)
    "t5": ({"table": P("heads", None)}, {}),
    "learned(length=24)": ({"table": P(None, "width")}, {}),  # a length of 24 is not the width
    "fox": ({}, {"weight": P("width", "heads"), "bias": P("heads")}),
    "liere(block=4)": ({}, {"generators": P(None, "kv_heads", None, None, None)}),
    "tupe(length=6)": (
        {
            "table": P(None, "width"),
            **dict.fromkeys(("u_q", "u_k"), P("width", "heads", "head_dim")),
            **dict.fromkeys(("first", "to_first"), P("heads")),
        },
        {},
    ),
    "cayley_string": ({}, {"frequencies": P(None, None), "skew": P("head_dim", None)}),
    "t5+fox": (
        ({"table": P("heads", None)}, {}),
        ({}, {"weight": P("width", "heads"), "bias": P("heads")}),
    ),
    "rope@window=3": ({}, {}),
}


@pytest.mark.parametrize("spec", NAMED)
def test_axes_are_named_after_the_sizes_that_they_are(spec):
    encoding, dims = pe_jax.parse(spec)[0], pe_jax.Dims(24, 6, 3, 8)
    assert encoding.logical_axes(dims) == pe_jax.Params(*NAMED[spec])


@pytest.mark.parametrize("name", pe_jax.ENCODINGS)
def test_axes_have_the_tree_of_the_parameters(name):
    encoding, dims = pe_jax.parse(name)[0], pe_jax.Dims(512, 8, 4, 64)
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))
    axes = encoding.logical_axes(dims)
    assert jax.tree.structure(axes) == jax.tree.structure(shapes)
    for x, names in zip(jax.tree.leaves(shapes), jax.tree.leaves(axes), strict=True):
        assert len(names) == x.ndim
        for name, size in zip(names, x.shape, strict=True):
            assert name is None or size == getattr(dims, name)


def test_heads_of_encodings_lie_where_those_of_the_kernels_do(mesh):
    config, shapes = model("tupe", False)
    shared = sharding.parameter_shardings(shapes, mesh, config)["shared"][0]
    assert shared["u_q"].spec == P(None, "model", None) and shared["table"].is_fully_replicated
    config, shapes = model("fox", False)
    own = sharding.parameter_shardings(shapes, mesh, config)["blocks"][0]["attention"]["params"]
    assert own["weight"].spec == P(None, None, "model") and own["bias"].spec == P(None, "model")


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device of a TPU, as far as a mesh is made of it."""

    id: int
    process_index: int
    coords: tuple[int, int, int]
    slice_index: int
    core_on_chip: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"


def chips(slices):
    places = [(s, x, y) for s in range(slices) for y in range(4) for x in range(4)]
    return [Chip(i, i // 4, (x, y, 0), s) for i, (s, x, y) in enumerate(places)]


@pytest.mark.parametrize("axes", [{"data": 2, "fsdp": 16}, {"fsdp": 8}, {"fsdp": 4, "model": 2}])
def test_slices_share_the_axis_of_data_alone(axes, monkeypatch):
    monkeypatch.setattr(sharding, "Mesh", lambda grid, *_, **__: grid)  # of stand-ins
    grid = sharding.make_mesh(MeshConfig(**axes), chips(2))
    assert grid.size == 32 and {chip.slice_index for chip in grid.flat} == {0, 1}
    for part in grid:
        assert len({chip.slice_index for chip in part.flat}) == 1
    with pytest.raises(ValueError, match=r"mesh\.data=3: its devices are in 2 slices; pass a mult"):
        sharding.make_mesh(MeshConfig(data=3, fsdp=8), [*chips(1), *chips(2)[16:24]])
    assert sharding.make_mesh(MeshConfig(data=1, fsdp=16), chips(1)).size == 16
