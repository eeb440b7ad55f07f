"""Any encoding inside stock Flax attention: what to pass as its `attention_fn`.

    fn = adapters.attention_fn(encoding, params, causal=True)
    nn.MultiHeadDotProductAttention(num_heads=8, attention_fn=fn)           # Linen
    nnx.MultiHeadAttention(8, 512, attention_fn=fn, decode=False, rngs=…)   # NNX

Parameters train if they belong to the model. In NNX they do if the leaves are `nnx.Param`, as
`attention_fn` returns a module: `params = jax.tree.map(nnx.Param, params)`; layers with the same
`shared` Params share it. Bare arrays would not train, and NNX modules refuse them; constants are
`nnx.Variable`s. In Linen the module around the stock one declares parameters:

    shared = self.param("shared", encoding.init_shared, dims)  # once per model, for all layers
    layer = self.param("layer", encoding.init_layer, dims)
    fn = adapters.attention_fn(encoding, pe_jax.Params(shared, layer), causal=True)

`examples/borrow/flax_lm1b.py` and `examples/nnx.py` train both.
B batch (any number of axes), T queries, S keys, H query heads, K key heads, E head width.
"""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
from flax.linen.dtypes import promote_dtype

from pe_jax import positions as pos
from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, Params, ParamsLike, abstract_terms, require_dims
from pe_jax.engines import checks, encoding_checks, reference
from pe_jax.engines.api import attention
from pe_jax.engines.parts import SIZES
from pe_jax.numerics.position_arrays import concrete
from pe_jax.validation import refuse, require, require_bool


def attention_fn(
    encoding: Encoding | tuple[Encoding, ...] | str | None,
    params: ParamsLike | None = None,
    *,
    causal: bool | None = None,
    window: int | None = None,
    sinks: int = 0,
    segments: Any = None,
    positions: Any = None,
    q_positions: Any = None,
    embedded: bool = False,
    dims: Dims | None = None,
) -> "AttentionFn":
    """A function that stock Linen and NNX attention take as `attention_fn`.

    A mask that the module passes is applied exactly, by the dense engine, in O(T·S) memory. Without
    one memory is O(L): pass `causal`, `window` or `segments` here instead. A fully masked query
    gives zeros (stock: the mean of all values).

    Decoding with the module's own cache needs no setting: a step is one query, several keys and the
    mask that the module makes, and its position in each row is that of the last key that the row
    sees. (Your own mask must not hide the newest token.) A single query outside decoding, as in
    pooling, has that position too, unless `q_positions` is given. That cache holds unrotated keys,
    so each step rotates all of them: exact, but slower than `pe_jax.engines.decoding.cache`, which
    holds them rotated.

    Args:
      encoding: the scheme, or its spec string ("rope"); None is NoPE. A scheme that depends on the
        sequence length (dynamic NTK, LongRoPE) behaves as in `pe_jax.attention`: without
        `positions` a full pass takes the length of its sequence; to decode, or with `positions`,
        pass `encoding.at_length(total_length)`.
      params: its parameters, `Params(shared, layer)`, of arrays (Linen) or of `nnx.Param` (NNX);
        None if it has none.
      causal: whether later tokens are hidden. None: they are, as for `pe_jax.attention`; a scheme
        of several axes needs True or False. False leaves that to the mask that the module passes.
        A scheme that cannot tell later tokens apart (T5 unless bidirectional) then needs a mask
        that hides them: a call without a mask, or with a concrete one that shows any, is refused.
        A scheme for causal attention alone (xPos) needs True.
      window: number of tokens visible back (and ahead, if not causal), the query's own included.
      sinks: number of first tokens of each segment (of the row, without segments) that stay visible
        beyond the window.
      segments: integers [*B, S], for packed documents: tokens see their own segment only.
      positions: of the tokens, [S] or [*B, S] (with a trailing axis where the scheme has several);
        None: contiguous from 0.
      q_positions: positions of the queries, if these are other tokens (cross-attention, pooling).
      embedded: says that `encoding.embed` is called on the input of the first layer, for a scheme
        that adds to it (when decoding, with the new token's own position): an `attention_fn` is
        given q, k and v alone and cannot.
      dims: the sizes that the parameters were drawn for; None: the module's features, H·E, are the
        model's width.

    Raises:
      ValueError: a value out of range; missing parameters; a scheme that adds to the input, unless
        `embedded`; one that reads the layer's input; a scheme of several axes without `positions`.
      TypeError: `encoding` is not a scheme, `params` not a Params.
    """
    layer = encoding_checks.layer(encoding, window, sinks)
    encoding = layer.encoding
    if not isinstance(params, Params | Mapping | None):
        raise TypeError(f"params is a {type(params).__name__}; pass pe_jax.Params(shared, layer)")
    causal = checks.causal(encoding, causal, mask=True)
    if dims is not None:
        require_dims(dims)
    sizes = dims or SIZES
    encoding_checks.embedded(encoding, sizes, embedded)
    if kinds.reads_input(abstract_terms(encoding, sizes)):
        fix = "call pe_jax.attention(q, k, v, x=x, …) in your own layer"
        fix = f"it reads the layer's input, which Flax does not pass to an attention_fn; {fix}"
        refuse("encoding", encoding, fix)
    if params is None:
        encoding_checks.params(encoding, None, sizes)
    axes = encoding.claims.axes
    if axes > 1 and positions is None:
        name = type(encoding).__name__
        raise ValueError(f"positions=None: {name} has {axes} axes; pass integers [S, {axes}]")
    tokens = segments, positions, q_positions
    leaves = jax.tree.leaves(params, is_leaf=_is_variable)
    bare = any(isinstance(x, jax.Array | np.ndarray) for x in leaves)
    kind = LinenAttentionFn if bare else NNXAttentionFn
    return kind(layer, dims, causal, params, *tokens)


class AttentionFn:
    """What `attention_fn` returns, with the signature that the stock modules call.

    Two are equal, and hash the same, if their settings are, positions and segments by value, and
    their parameters are the same arrays: a Linen module that holds one is compiled once.
    """

    def __init__(self, encoding, dims, causal, params, segments, positions, q_positions):
        self.encoding, self.dims, self.causal = encoding, dims, causal
        self.params = params
        self.segments, self.positions, self.q_positions = segments, positions, q_positions

    def __eq__(self, other):
        return isinstance(other, AttentionFn) and self._key() == other._key()

    def __hash__(self):
        return hash(self._key())

    def _settings(self) -> tuple[Any, ...]:
        return self.encoding, self.dims, self.causal

    def _token_arrays(self) -> tuple[Any, ...]:
        return self.segments, self.positions, self.q_positions

    def _key(self) -> tuple[Any, ...]:
        """What equality and hashing compare."""
        arrays = jax.tree.leaves(self.params, is_leaf=_is_variable)
        return *self._settings(), *map(id, arrays), *map(_by_value, self._token_arrays())

    def __call__(
        self,
        query,
        key,
        value,
        bias=None,
        mask=None,
        broadcast_dropout=True,
        dropout_rng: Any = None,
        dropout_rate=0.0,
        deterministic=False,
        dtype=None,
        precision=None,
        module: Any = None,
        is_causal=False,
        qk_attn_weights_einsum=None,
        attn_weights_value_einsum=None,
        input_positions=None,
    ) -> jax.Array:
        """The arguments of `nn.dot_product_attention` and `nnx.dot_product_attention`.

        query is [*B, T, H, E], key and value are [*B, S, K, E]. The bias, which is added to the
        scores, and the mask, of booleans or zeros and ones (False is hidden), broadcast to
        [*B, H, T, S]. `is_causal` is the setting `causal`, for this call. Softmax is float32 in any
        dtype. `precision` holds for this call; the tiled engine's backward pass follows
        `jax.default_matmul_precision`. The two einsums are refused: scores are not one einsum here.
        (Linen passes what it finds in this signature.) `input_positions` [T] or [*B, T], which
        `nnx.MultiHeadAttention` passes on from flax 0.12.12, are those of the tokens of this call.

        Returns:
          [*B, T, H, E] in the computing dtype.

        Raises:
          ValueError: shapes that do not fit; an additive mask; queries that are neither the keys'
            tokens nor the last of them, without `q_positions`; dropout without a key; an einsum;
            `input_positions` of a step of decoding.
        """
        for name, einsum in (
            ("qk_attn_weights_einsum", qk_attn_weights_einsum),
            ("attn_weights_value_einsum", attn_weights_value_einsum),
        ):
            require(einsum is None, name, einsum, "scores are not one einsum here: leave it out")
        q, k, v = promote_dtype(query, key, value, dtype=dtype)
        shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
        tokens = self._tokens(shape, mask, self.causal or is_causal, input_positions)
        drop = None
        checks.dropout_rate(dropout_rate)
        require_bool("is_causal", is_causal)
        if dropout_rate > 0 and not deterministic:
            require(dropout_rng is not None, "dropout_rng", None, "pass a key, or no dropout_rate")
            drop = functools.partial(_drop, dropout_rng, dropout_rate, broadcast_dropout)

        def change(weights):
            if module is not None:
                kind: Any = "intermediates" if isinstance(module, nn.Module) else nnx.Intermediate
                module.sow(kind, "attention_weights", weights.reshape(shape))
            return weights if drop is None else drop(weights)

        engine = None
        if mask is not None or bias is not None or module is not None or drop is not None:
            if mask is not None and self.encoding.claims.one_sided and not tokens["causal"]:
                _check_hides_later(self.encoding.encoding, mask, shape)
            engine = functools.partial(reference.attend, change=change)
        with _precision(precision):
            return attention(
                q,
                k,
                v,
                encoding=self.encoding,
                params=nnx.as_pure(self.params),
                embedded=True,  # or `attention_fn` has refused
                mask=mask,
                bias=bias,
                implementation=engine,
                dims=self.dims,
                **tokens,
            )

    def _tokens(self, shape: tuple[int, ...], mask, causal: bool, given: Any) -> dict[str, Any]:
        """Positions, indices and segments of the tokens, as `attention` takes them."""
        queries, keys = shape[-2:]
        q_pos, k_pos = self.q_positions, self.positions
        if given is not None:
            fix = "attention_fn was given positions too: leave one of them out"
            require(q_pos is None and k_pos is None, "input_positions", "…", fix)
            fix = "the module's cache holds keys without their positions: leave it out (a query is "
            fix += "at the last key that it sees), or decode with pe_jax.nnx.Position"
            require(queries == keys, "input_positions", "…", fix)
            q_pos = given
        if queries == keys:
            q_pos = k_pos if q_pos is None else q_pos
            k_pos = q_pos if k_pos is None else k_pos
            tokens = {"q_positions": q_pos, "k_positions": k_pos, "q_segments": self.segments}
            return {"causal": causal, **tokens}
        if q_pos is not None:
            k_pos = pos.contiguous(keys) if k_pos is None else k_pos
            fix = "the queries are other tokens than the keys: pass a mask"
            require(not causal, "causal", causal, fix)
            require(self.encoding.span is None, "window", self.encoding.span, fix)
            require(self.segments is None, "segments", "…", fix)
            return {"causal": False, "q_positions": q_pos, "k_positions": k_pos}
        if queries != 1 or mask is None:
            asked = self.encoding, self.dims or SIZES, (), None
            plain = self.segments is None and not encoding_checks.reads_positions(*asked)
            if plain and not causal:
                return {"causal": False}
            raise ValueError(
                f"q has {queries} tokens and k has {keys}: pass positions and q_positions (a step"
                " of decoding is one query, with the mask that the module makes)"
            )
        return self._last_token(shape, mask)

    def _last_token(self, shape: tuple[int, ...], mask) -> dict[str, Any]:
        """`_tokens` for one query: the last token of its row that the mask shows."""
        rows, index = shape[:-3], pos.contiguous(shape[-1])
        visible = jnp.broadcast_to(jnp.asarray(mask).astype(bool), shape).any((-3, -2))
        last = jnp.max(jnp.where(visible, index, 0), axis=-1, keepdims=True)
        k_pos, segments = self.positions, self.segments
        if k_pos is None:
            k_pos = index if segments is None else pos.per_segment(segments)

        def take_last(x, axes=0):
            x = jnp.broadcast_to(x, (*rows, *x.shape[x.ndim - 1 - axes :]))
            return jnp.take_along_axis(x, last.reshape(*last.shape, *(1,) * axes), axis=len(rows))

        k_pos = jnp.asarray(k_pos)
        q_pos = take_last(k_pos, int(self.encoding.claims.axes > 1))
        tokens = {"q_positions": q_pos, "k_positions": k_pos, "q_index": last, "k_index": index}
        if segments is not None:
            segments = jnp.asarray(segments)
            tokens |= {"q_segments": take_last(segments), "k_segments": segments}
        return {"causal": True, **tokens}  # no key after it is in the mask


class NNXAttentionFn(AttentionFn, nnx.Module):
    """An `AttentionFn` that is part of an NNX model, which trains its `nnx.Param`s.

    Linen takes it too if there are no parameters. Methods are those of `AttentionFn`.
    """

    params: Any = nnx.data()
    segments: Any = nnx.data()
    positions: Any = nnx.data()
    q_positions: Any = nnx.data()


@jax.tree_util.register_pytree_node_class
class LinenAttentionFn(AttentionFn):
    """An `AttentionFn` whose parameters are bare arrays, as in Linen: a pytree of them.

    An NNX module would hold such arrays and not train them: flax refuses it as an attribute.
    """

    def tree_flatten(self):
        """The arrays, and the settings."""
        return (self.params, *self._token_arrays()), self._settings()

    @classmethod
    def tree_unflatten(cls, settings, arrays):
        """The function with these settings and arrays."""
        return cls(*settings, *arrays)


def _is_variable(x) -> bool:
    return isinstance(x, nnx.Variable)


def _by_value(x) -> Any:
    """A key that is equal for equal positions or segments; under a trace, for the same object."""
    array = None if x is None else concrete(x)
    return id(x) if array is None else (array.shape, array.dtype.str, array.tobytes())


def _check_hides_later(encoding: Encoding, mask, shape: tuple[int, ...]) -> None:
    """Raises ValueError where a known mask shows later tokens to a one-sided scheme."""
    array, (queries, keys) = concrete(mask), shape[-2:]
    if array is not None and queries == keys:
        full = np.broadcast_to(array, np.broadcast_shapes(array.shape, (queries, keys)))
        require(not np.triu(full, 1).any(), "mask", "…", encoding_checks.alike(encoding))


def _drop(key: Any, rate: float, broadcast: bool, weights: jax.Array) -> jax.Array:
    """Dropout of weights [B, H, T, S], with the same draws as Flax."""
    shape = weights.shape[-2:] if broadcast else weights.shape
    return jnp.where(jax.random.bernoulli(key, 1 - rate, shape), weights / (1 - rate), 0)


def _precision(precision) -> Any:
    if precision is None:
        return contextlib.nullcontext()
    name = precision.name.lower() if isinstance(precision, jax.lax.Precision) else precision
    fix = "pass None, a jax.lax.Precision or its name"
    require(isinstance(name, str), "precision", precision, fix)
    return jax.default_matmul_precision(name)
