"""Where parameters live: every one of every model by a rule, and none in silence."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import pe_jax
from pe_jax.models.vit import ViT
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig
from tests import tiny
from tests.util import SMALL

HEAD = 8  # of 32 channels: wide enough for every rotation


def model(name: str, images: bool):
    """The shapes of a model's parameters, with every kind that a configuration can ask for."""
    given = dict(SMALL.get(name, [{}])[0])
    causal = given.pop("causal", True) and not images
    if images and name == "t5":
        given["bidirectional"] = True
    spec = f"{name}({', '.join(f'{field}={value!r}' for field, value in given.items())})"
    options = {"bias": True, "gated": True, "qk_norm": True, "norm": "layer", "tied": False}
    options |= {"block": "around", "embed_norm": True}
    config = tiny.config(spec, width=4 * HEAD, causal=causal, **options)
    if not images:
        return tiny.abstract_terms(config)[1]
    make = functools.partial(ViT, config, 4, 3, 5)
    return nnx.as_pure(nnx.eval_shape(lambda: nnx.split(make(rngs=nnx.Rngs(0))))[1])


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(MeshConfig(data=1, fsdp=4, model=2), jax.devices()[:8])


@pytest.mark.parametrize("images", [False, True], ids=["tokens", "images"])
@pytest.mark.parametrize("name", pe_jax.ENCODINGS)
def test_every_parameter_of_every_model_has_a_rule(name, images, mesh):
    claims = pe_jax.make(name).claims
    if images and (claims.causal_only or name == "inkling"):
        with pytest.raises(ValueError, match="causal"):
            model(name, images)
        return
    shapes = model(name, images)
    found = sharding.parameter_shardings(shapes, mesh)
    for (path, x), where in zip(
        jax.tree.leaves_with_path(shapes), jax.tree.leaves(found), strict=True
    ):
        own = sharding.path_name(path)
        encodings = own.startswith("shared/") or "/params/" in own
        assert where.is_fully_replicated == (encodings or not own.endswith(("kernel", "embedding")))
        where.shard_shape(x.shape)  # raises where a size does not divide


@pytest.mark.parametrize(
    "path", ["blocks/0/experts/up/kernel", "blocks/0/mlp/up/kernels", "pooler/kernel"]
)
def test_a_parameter_that_no_rule_names_is_an_error(path, mesh):
    tree = jax.ShapeDtypeStruct((512, 128), np.float32)
    for key in reversed(path.split("/")):
        tree = {key: tree}
    with pytest.raises(ValueError) as error:
        sharding.parameter_shardings(tree, mesh)
    text = str(error.value)
    assert path in text and "[512, 128]" in text and "LOGICAL" in text and "\n" not in text
