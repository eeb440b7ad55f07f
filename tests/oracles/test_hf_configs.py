"""Every model type and the defaults of its config."""

import dataclasses

import pytest

from pe_jax import hf
from tests.oracles.hf_cases import ELSEWHERE
from tools import hf_types

pytestmark = pytest.mark.oracles
SIZES = set(
    "model_type hidden_size n_embd d_model dim embed_dim d_kv depth depths image_size".split()
)
SIZES |= set("num_hidden_layers n_layer n_layers num_layers num_decoder_layers patch_size".split())
SIZES |= set("num_attention_heads n_head n_heads num_heads max_position_embeddings".split())
SIZES |= {"attention_heads"}
SIZES |= {f"{stack}_{n}" for stack in ("encoder", "decoder") for n in ("layers", "attention_heads")}


@pytest.mark.parametrize("kind", [k for k in hf.FAMILIES if k not in ELSEWHERE])
def test_defaults_are_theirs(live, kind):
    """A config without the keys of positions is read as the full one."""
    from transformers import AutoConfig

    uneven = ("glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text")  # heads do not divide the width
    more = {"head_dim": 128} if kind in uneven else {}
    config = AutoConfig.for_model(kind, **more)
    kept = {k: v for k, v in config.to_dict().items() if k in SIZES or k in more}
    assert told(kept) == told(config)


def told(config) -> list:
    """The layers without the names of keys that are not read, of which the full one has more."""
    replace = dataclasses.replace
    layers = hf.encodings(config)
    return [replace(layer, extras=replace(layer.extras, unread=())) for layer in layers]


def test_every_type_is_read_or_has_its_reason(live):
    """Names the types that a newer transformers has added: add a family, or a line to [unread]."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    others = [kind for kind in CONFIG_MAPPING.keys() if kind not in hf.FAMILIES]
    assert not [kind for kind in others if hf_types.verdict(kind)[0] == "new"]


def test_no_reason_is_of_a_type_that_is_not_there(live):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert set(hf.families.NEAREST) <= set(CONFIG_MAPPING.keys())
