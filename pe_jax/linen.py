"""An encoding as a part of a Linen model: its parameters, attention with it, and its cache.

    position = pe_jax.linen.Position("t5", dims, shared=first)  # in setup, or in a compact method
    out, cache = position(q, k, v, cache)

`pe_jax.nnx.Position` is the same for NNX.
"""

import jax
from flax import linen as nn

from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.engines import encoding_checks
from pe_jax.models.position import PositionMethods


class Position(PositionMethods, nn.Module):
    """The encoding of one layer, with parameters that the model trains and saves as its own.

    A scheme without parameters adds no variables: a model that had a rotation of its own restores
    its checkpoint as before.

    Attributes:
      scheme: an encoding, or its spec string.
      dims: the layer's sizes.
      shared: the module of an earlier layer, whose shared parameters this one uses.
      window: tokens that each sees, itself included; None: all.
      sinks: how many first tokens stay visible beyond the window.
    """

    scheme: Encoding | str
    dims: Dims
    shared: "Position | None" = None
    window: int | None = None
    sinks: int = 0

    def setup(self):
        """Declares the parameters.

        Raises:
          ValueError: sizes that do not fit the scheme; another scheme than that of `shared`.
          TypeError: `shared` is not a Position.
        """
        self.encoding = encoding_checks.layer(self.scheme, self.window, self.sinks)
        if self.shared is not None:
            self.shared.encoding  # noqa: B018  (sets it up)
        self.check(self.shared)
        of_model = self._declared("shared", self.encoding.init_shared)
        of_model = of_model if self.shared is None else self.shared.params.shared
        self.params = Params(of_model, self._declared("layer", self.encoding.init_layer))

    def _declared(self, name, draw):
        """Parameters of this module, as `draw` draws them; none of them: no variable."""
        if name == "shared" and self.shared is not None:
            return {}
        none = not jax.eval_shape(lambda key: draw(key, self.dims), jax.random.key(0))
        return {} if none else self.param(name, draw, self.dims)
