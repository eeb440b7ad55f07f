"""Sink logits: gpt-oss (arXiv 2508.10925), MiMo-V2-Flash, Inkling 2; after arXiv 2309.17453.

    weights_ij = exp(score_ij) / (exp(s_h) + Σ_l exp(score_il))

One learned logit per head joins the denominator, so that a row may attend to nothing. It encodes no
position and is added to a scheme that does: `rope+sink`. With `from_input` (Inkling 2), s is
w_h·x_i + b_h for the layer's input x.
"""

import dataclasses

import jax
import jax.numpy as jnp

from pe_jax.config_fields import flag_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import Sink, State
from pe_jax.numerics.products import einsum


@dataclasses.dataclass(frozen=True)
class SinkLogit(Encoding):
    """One more key, with a learned score and without a value.

    Attributes:
      from_input: whether each token has its own score, a projection of the layer's input.
    """

    from_input: bool = flag_field(False)

    def init_layer(self, key, dims):
        """b [H], zeros, the score of a key with q·k = 0; with `from_input` also w [D, H]."""
        logit = {"logit": jnp.zeros(dims.heads, jnp.float32)}
        if not self.from_input:
            return logit
        shape = (dims.width, dims.heads)
        return logit | {"weight": dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)}

    def terms(self, params, dims):
        state = State(project, params.layer["weight"], width=1) if self.from_input else None
        return (Sink(params.layer["logit"], state),)


def project(weight, x, before):
    """w·x as a state of one number: [*B, T, H, 1]."""
    return einsum("...td,dh->...th", x.astype(jnp.float32), weight)[..., None]
