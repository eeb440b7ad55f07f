"""The layer of the gated delta rule against that of Qwen3-Next in transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pe_jax.encodings import gated_delta
from pe_jax.models.layers import Recurrence
from tests import tiny
from tests.encodings.test_gated_delta import B, E, F, H, inputs
from tests.util import assert_close

pytestmark = pytest.mark.oracles


@pytest.fixture(scope="module")
def qwen(oracles):
    from transformers.models.qwen3_next import modeling_qwen3_next

    return modeling_qwen3_next


@pytest.mark.parametrize(
    "name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
)
@pytest.mark.parametrize("length", [3, 150])
def test_the_rule_is_that_of_transformers(qwen, name, length):
    import torch

    state = np.random.default_rng(1).standard_normal((B, H, E, F), np.float32)
    arrays = inputs(length)
    given = [torch.as_tensor(x) for x in arrays]
    out, last = getattr(qwen, name)(
        *given, initial_state=torch.as_tensor(state), output_final_state=True
    )
    got = gated_delta.delta_rule(*map(jnp.asarray, arrays), state=jnp.asarray(state))
    assert_close(got, (out.numpy(), last.numpy()), 1e-5)


def test_the_layer_is_that_of_qwen3_next(qwen):
    """With one head of values for each of keys; also a prompt and then a token of a cache."""
    import torch

    width, heads, dim = 24, 3, 8
    config = qwen.Qwen3NextConfig(
        hidden_size=width,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_value_heads=heads,
        linear_num_key_heads=heads,
        linear_key_head_dim=dim,
        linear_value_head_dim=dim,
        linear_conv_kernel_dim=4,
    )
    torch.manual_seed(0)
    theirs = qwen.Qwen3NextGatedDeltaNet(config, 0).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    x = np.random.default_rng(0).standard_normal((2, 9, width), np.float32)
    with torch.no_grad():
        want = theirs(torch.as_tensor(x))
    want = (want[0] if isinstance(want, tuple) else want).numpy()

    weights = {name: x.detach().numpy() for name, x in theirs.named_parameters()}
    model = tiny.config("gated_delta,nope", width=width, heads=heads, kv_heads=1)
    layer = Recurrence(model, model.windows[0], nnx.Rngs(0, encoding=0))
    mixed = weights["in_proj_qkvz.weight"].reshape(heads, 4, dim, width)
    parts = [mixed[:, n].reshape(heads * dim, width).T for n in range(4)]
    both = weights["in_proj_ba.weight"].reshape(heads, 2, width)
    parts += [both[:, 0].T, both[:, 1].T, weights["out_proj.weight"].T]
    names = ("q", "k", "v", "gate", "beta", "decay", "out")
    for name, kernel in zip(names, parts, strict=True):
        getattr(layer, name).kernel[...] = jnp.asarray(kernel)
    taps = weights["conv1d.weight"][:, 0].T.reshape(4, 3, heads * dim)
    layer.taps[...] = jnp.asarray(taps)
    layer.log_rate[...] = jnp.asarray(weights["A_log"])
    layer.step_bias[...] = jnp.asarray(weights["dt_bias"])
    layer.out_norm.scale[...] = jnp.asarray(weights["norm.weight"])

    run = jax.jit(lambda x, cache: layer(x, None, None, None, cache))
    assert_close(run(x, None)[0], want, 1e-5)
    first, cache = run(x[:, :8], layer.empty_cache(2))
    last, _ = run(x[:, 8:], cache)
    assert_close(np.concatenate([first, last], 1), want, 1e-5)
