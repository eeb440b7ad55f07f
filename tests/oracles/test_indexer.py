"""The keys that lightning indexers select, against transformers' models of four families."""

import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf, masks
from pe_jax.encodings.terms import Tokens
from tools import hf_types

pytestmark = pytest.mark.oracles
LENGTH = 24
SIZES = {"index_topk": 5, "index_head_dim": 24, "index_n_heads": 16, "q_lora_rank": 32}


def first(x: np.ndarray, last: bool, rotary: int) -> np.ndarray:
    """The rotated channels of a head in front."""
    return np.roll(x, rotary, -1) if last else x


@pytest.mark.parametrize("name", ["deepseek_v32", "axk2", "glm_moe_dsa", "hy_v4"])
def test_the_selected_keys_are_those_of_transformers(live, name):
    import torch
    import transformers

    config = hf_types.config_of(name, **SIZES)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    seen = []
    for layer in model.layers:
        indexer = layer.self_attn.indexer
        if indexer is not None:
            indexer.register_forward_hook(
                lambda module, args, kwargs, out: seen.append((module, args, kwargs, out)),
                with_kwargs=True,
            )
    torch.manual_seed(1)
    with torch.no_grad():
        model(inputs_embeds=torch.randn(2, LENGTH, config.hidden_size), use_cache=False)
    layers = [layer.indexer for layer in hf.encodings(config)]
    assert [x.shared for x in layers] == [x.self_attn.indexer is None for x in model.layers]
    layers = [x for x in layers if not x.shared]
    assert len(layers) == len(seen) > 0
    for ours, (module, args, _, out) in zip(layers, seen, strict=True):
        hidden, latent = args[:2]
        with torch.no_grad():
            q = module.wq_b(latent).view(2, LENGTH, ours.heads, ours.head_dim).numpy()
            k = module.k_norm(module.wk(hidden)).numpy()
            weights = module.weights_proj(hidden).numpy()
        rotary = ours.encoding.rotary_dim(ours.head_dim)
        q, k = (jnp.asarray(first(x, ours.rotary_last, rotary)) for x in (q, k))
        index = jnp.arange(LENGTH)[None]
        tokens = Tokens(index, index)
        causal = np.tril(np.ones((LENGTH, LENGTH), bool))
        want = np.zeros((2, LENGTH, LENGTH), bool)
        np.put_along_axis(want, out.numpy().astype(int), True, 2)

        def chosen(rope, q=q, k=k, weights=weights, ours=ours, tokens=tokens):
            mask = masks.best_keys(q, k, jnp.asarray(weights), ours.count, rope=rope)
            return np.asarray(mask.visible(tokens, tokens))[:, 0]

        np.testing.assert_array_equal(chosen(ours.encoding), want & causal)
        layout = {"half": "interleaved", "interleaved": "half"}[ours.encoding.layout]
        other = pe_jax.make("rope", **{**vars(ours.encoding), "layout": layout})
        assert (chosen(other) != want & causal).any()
