"""An encoding as a part of an NNX model: its parameters, attention with it, and its cache.

    self.position = pe_jax.nnx.Position("t5", dims, rngs=rngs, shared=first)  # in __init__
    out, cache = self.position(q, k, v, cache)                                # in __call__

`pe_jax.linen.Position` is the same for Linen.
"""

import jax
from flax import nnx

from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.engines import encoding_checks
from pe_jax.models.position import PositionMethods


class Position(PositionMethods, nnx.Module):
    """The encoding of one layer, with parameters that the model trains and saves as its own.

    A scheme without parameters adds nothing to the model's state.

    Attributes:
      encoding: the scheme, with its window and sinks.
      dims: sizes of the layer.
      shared: parameters that all layers share (T5's table), of `nnx.Param`.
      layer: those of this layer.
    """

    def __init__(
        self,
        encoding: Encoding | str,
        dims: Dims,
        *,
        rngs: nnx.Rngs,
        shared: "Position | None" = None,
        window: int | None = None,
        sinks: int = 0,
    ):
        """Draws the parameters.

        Args:
          encoding: a scheme, or its spec string.
          dims: the layer's sizes.
          rngs: of the stream `params`.
          shared: the module of an earlier layer, whose shared parameters this one uses.
          window: tokens that each sees, itself included; None: all.
          sinks: how many first tokens stay visible beyond the window.

        Raises:
          ValueError: sizes that do not fit the scheme; another scheme than that of `shared`.
          TypeError: `shared` is not a Position.
        """
        self.encoding, self.dims = encoding_checks.layer(encoding, window, sinks), dims
        self.check(shared)
        own = jax.tree.map(nnx.Param, self.encoding.init(rngs.params(), dims))
        self.shared = nnx.data(own.shared if shared is None else shared.shared)
        self.layer = nnx.data(own.layer)

    @property
    def params(self) -> Params:
        """The parameters as arrays."""
        return nnx.as_pure(Params(self.shared, self.layer))
