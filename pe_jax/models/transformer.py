"""A Transformer (Flax NNX) that takes any encoding; the only file that calls the slots by layer.

Pre-norm blocks, RMSNorm, gated MLP and tied embedding by default, each an ordinary typed field.
Layers run under scan over repeats of the encoding pattern, so compile time does not grow with
depth (except with caches, see `_layers`). Parameters are float32, activations `dtype`.
B batch, T tokens, D width, V vocabulary, N layers, P length of the pattern.
"""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from pe_jax import positions as pos
from pe_jax.encodings import parse
from pe_jax.encodings.base import Dims, Encoding, Params, is_int, is_real
from pe_jax.engines import cache as caches
from pe_jax.engines.api import attention
from pe_jax.engines.layout import IN_ORDER, InOrder
from pe_jax.engines.plan import alone

ACTIVATIONS: dict[str, Callable] = {"silu": jax.nn.silu, "gelu": jax.nn.gelu, "relu": jax.nn.relu}
NORMS: dict[str, type] = {"rms": nnx.RMSNorm, "layer": nnx.LayerNorm}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(unsafe_hash=True)  # flags write its fields; a model keeps a copy of its own
class ModelConfig:
    """The Transformer's sizes and choices.

    Attributes:
      encoding: one string: `rope(base=5e5)`, a sum `t5+rope`, a pattern over layers `rope*3,nope`
        (Gemma 3: `rope(base=1e4)*5,rope(base=1e6)`).
      vocab: number of token ids; 0 takes the tokenizer's.
      width: D.
      layers: N, a multiple of the pattern's length.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; 0 means `heads`.
      head_dim: width of a head; 0 means width / heads.
      mlp_width: hidden width of the MLP; 0 means 4·width, or 8/3·width if gated (rounded to 8).
      gated: whether the MLP is gated (GLU; arXiv 2002.05202).
      activation: "silu", "gelu" or "relu".
      norm: "rms" or "layer".
      qk_norm: whether q and k are normalised a head, before the encoding.
      bias: whether projections have biases.
      tied: whether the output projection is the embedding table.
      dropout: rate on the output of each block's two halves, in training.
      causal: whether tokens see their past alone (a decoder) or all (an encoder).
      window: sliding window of attention; 0 is none.
      sinks: first tokens of each document that stay in sight beyond the window.
      dtype: of the activations, "float32" or "bfloat16".
      remat: whether blocks are recomputed in the backward pass, which saves memory.
      attention: engine: "auto", "dense" or "tiled".
    """

    encoding: str = "rope"
    vocab: int = 0
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 0
    head_dim: int = 0
    mlp_width: int = 0
    gated: bool = True
    activation: str = "silu"
    norm: str = "rms"
    qk_norm: bool = False
    bias: bool = False
    tied: bool = True
    dropout: float = 0.0
    causal: bool = True
    window: int = 0
    sinks: int = 0
    dtype: str = "float32"
    remat: bool = False
    attention: str = "auto"

    @property
    def dims(self) -> Dims:
        """The sizes that encodings see."""
        head_dim = self.head_dim or self.width // self.heads
        return Dims(self.width, self.heads, self.kv_heads or self.heads, head_dim)

    @property
    def pattern(self) -> tuple[Encoding, ...]:
        """The encodings of layers 0 … P - 1, repeated over the depth."""
        return parse(self.encoding)

    @property
    def limit(self) -> int | None:
        """The first token that the encodings do not define; None if they define all.

        Encodings of several axes limit positions, which say nothing of the number of tokens.
        """
        limits = [e.limit() for e in self.pattern if e.axes == 1]
        return min((n for n in limits if n is not None), default=None)

    @property
    def hidden(self) -> int:
        """Width of the MLP."""
        share = 8 * round(self.width / 3) if self.gated else 4 * self.width
        return self.mlp_width or max(8, share)

    def check(self) -> None:
        """Raises ValueError, naming the field, its value and the fix, before anything compiles."""

        def need(ok: bool, field: str, fix: str):
            if not ok:
                raise ValueError(f"model.{field}={getattr(self, field)!r}: {fix}")

        for field in ("width", "layers", "heads"):
            need(is_int(getattr(self, field), 1), field, "pass an integer of at least 1")
        for field in ("vocab", "kv_heads", "head_dim", "mlp_width", "window", "sinks"):
            need(is_int(getattr(self, field), 0), field, "pass an integer of at least 0")
        need(bool(self.window) or not self.sinks, "sinks", "set model.window too")
        choices = {
            "activation": ACTIVATIONS,
            "norm": NORMS,
            "dtype": DTYPES,
            "attention": ("auto", "dense", "tiled"),
        }
        for field, known in choices.items():
            close = difflib.get_close_matches(str(getattr(self, field)), list(known), 1, 0)
            need(getattr(self, field) in known, field, f"did you mean {''.join(close)!r}?")
        divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        need(self.heads % self.dims.kv_heads == 0, "kv_heads", f"must divide heads: {divisors}")
        fits = bool(self.head_dim) or self.width % self.heads == 0
        widths = [n for n in range(1, self.width + 1) if self.width % n == 0]
        need(fits, "heads", f"must divide width {self.width} ({widths}), or set head_dim")
        need(is_real(self.dropout) and 0 <= self.dropout < 1, "dropout", "pass a rate in [0, 1)")
        try:
            pattern = self.pattern
            for encoding in pattern:
                encoding.check(self.dims)
        except ValueError as error:
            raise ValueError(f"model.encoding={self.encoding!r}: {error}") from error
        both_ways = not any(encoding.causal_only for encoding in pattern)
        need(self.causal or both_ways, "causal", f"{self.encoding!r} is for causal attention alone")
        multiple = f"must be a multiple of the pattern's length {len(pattern)}"
        need(self.layers % len(pattern) == 0, "layers", multiple)


class Linear(nnx.Linear):
    """A projection of rows: on CPU a weight's gradient over [B·T] takes 0.6 of that over [B, T].

    On several devices rows stay as they are: B and T, when both are shared, are not one axis.
    """

    def __call__(self, inputs, out_sharding=None):
        """[..., D] → [..., D']."""
        if not alone():
            return super().__call__(inputs, out_sharding)
        rows = super().__call__(inputs.reshape(-1, inputs.shape[-1]), out_sharding)
        return rows.reshape(*inputs.shape[:-1], -1)


def _linear(config: ModelConfig, shape_in: int, shape_out: int, rngs, stddev: float) -> Linear:
    return Linear(
        shape_in,
        shape_out,
        use_bias=config.bias,
        kernel_init=nnx.initializers.truncated_normal(stddev),
        dtype=DTYPES[config.dtype],
        rngs=rngs,
    )


def _norm(config: ModelConfig, width: int, rngs):
    return NORMS[config.norm](width, dtype=DTYPES[config.dtype], rngs=rngs)


class Attention(nnx.Module):
    """Self-attention: projections, the encoding of this layer, and an engine."""

    def __init__(self, config: ModelConfig, encoding: Encoding, rngs: nnx.Rngs):
        dims, width = config.dims, config.width
        self.config, self.encoding, self.dims = config, encoding, dims
        inner, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        # What a scheme does not divide by goes into the queries, as T5 does (1910.10683): every
        # scheme begins with scores of the same size.
        fold = min(1.0, dims.head_dim**-0.5 / encoding.scale(dims.head_dim))
        self.q = _linear(config, width, inner, rngs, fold * width**-0.5)
        self.k = _linear(config, width, kv, rngs, width**-0.5)
        self.v = _linear(config, width, kv, rngs, width**-0.5)
        residual = (2 * config.layers * inner) ** -0.5  # GPT-2's scaling of residual branches
        self.out = _linear(config, inner, width, rngs, residual)
        if config.qk_norm:
            self.q_norm = _norm(config, dims.head_dim, rngs)
            self.k_norm = _norm(config, dims.head_dim, rngs)
        # A stream of its own: the other weights are the same whatever the scheme.
        self.params = nnx.data(jax.tree.map(nnx.Param, encoding.init_layer(rngs.encoding(), dims)))

    def __call__(self, x, shared, positions, segments, cache, layout=IN_ORDER):
        """[B, T, D] → [B, T, D], and the longer cache if there is one."""
        split = lambda y: y.reshape(*y.shape[:-1], -1, self.dims.head_dim)  # noqa: E731
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        given: Any = dict(
            x=x,
            encoding=self.encoding,
            params=Params(shared, nnx.as_pure(self.params)),
            dims=self.dims,
            window=self.config.window or None,
            sinks=self.config.sinks,
            implementation=None if self.config.attention == "auto" else self.config.attention,
        )
        if cache is None:
            if layout is not IN_ORDER:
                given["implementation"] = layout
            y = attention(
                q,
                k,
                v,
                causal=self.config.causal,
                q_positions=positions,
                q_segments=segments,
                **given,
            )
        else:
            y, cache = caches.extend(cache, q, k, v, positions, **given)
        return self.out(y.reshape(*x.shape[:-1], -1)), cache


class MLP(nnx.Module):
    """A two-layer perceptron, gated or not."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, hidden = config.width, config.hidden
        self.activation = ACTIVATIONS[config.activation]
        self.up = _linear(config, width, hidden, rngs, width**-0.5)
        self.gate = _linear(config, width, hidden, rngs, width**-0.5) if config.gated else None
        self.down = _linear(config, hidden, width, rngs, (2 * config.layers * hidden) ** -0.5)

    def __call__(self, x):
        """[B, T, D] → [B, T, D]."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One layer: attention and MLP, each after a norm and added to the stream."""

    def __init__(self, config: ModelConfig, encoding: Encoding, rngs: nnx.Rngs):
        self.attention_norm = _norm(config, config.width, rngs)
        self.attention = Attention(config, encoding, rngs)
        self.mlp_norm = _norm(config, config.width, rngs)
        self.mlp = MLP(config, rngs)
        self.dropout = config.dropout

    def __call__(self, x, shared, positions, segments, cache, key, layout=IN_ORDER):
        """[B, T, D] → [B, T, D], and the longer cache; `key` drives dropout, None is none."""
        given = shared, positions, segments, cache, layout
        y, cache = self.attention(self.attention_norm(x), *given)
        x = x + self._drop(y, key, 0)
        return x + self._drop(self.mlp(self.mlp_norm(x)), key, 1), cache

    def _drop(self, x, key, which: int):
        if key is None or not self.dropout:
            return x
        keep = jax.random.bernoulli(jax.random.fold_in(key, which), 1 - self.dropout, x.shape)
        return jnp.where(keep, x / (1 - self.dropout), 0).astype(x.dtype)


class Stack(nnx.Module):
    """The layers of a model, what they share, and the norm after them: all but input and output.

    Weights are drawn from `weights` and `encodings` by number, so that drawing more for one scheme
    than for another leaves every other weight as it was. Numbers 0 and 1 of `weights` are left to
    the input and the output.

    Attributes:
      divided: how activations [B, T, D] are divided among devices, where the trainer says so; left
        to itself, XLA may divide their width as the weights', and copy the batch to every device.
    """

    divided: NamedSharding | None = None

    def __init__(self, config: ModelConfig, weights: jax.Array, encodings: jax.Array):
        self.config = dataclasses.replace(config)
        pattern, dims = config.pattern, config.dims
        self.final_norm = _norm(config, config.width, nnx.Rngs(0))
        # one set of shared parameters for each distinct encoding
        distinct = list(dict.fromkeys(pattern))
        self.which = tuple(distinct.index(e) for e in pattern)
        shared = [
            e.init_shared(jax.random.fold_in(encodings, i), dims) for i, e in enumerate(distinct)
        ]
        self.shared = nnx.data([jax.tree.map(nnx.Param, s) for s in shared])
        repeats = config.layers // len(pattern)

        def stack(place: int) -> Block:
            """The blocks at layers place, place + P, …, stacked along a leading axis."""
            layers = place + len(pattern) * jnp.arange(repeats)

            @nnx.vmap
            def make(weight_key, encoding_key):
                return Block(config, pattern[place], nnx.Rngs(weight_key, encoding=encoding_key))

            fold = jax.vmap(jax.random.fold_in, (None, 0))
            return make(fold(weights, layers + 2), fold(encodings, layers + 1000))

        self.blocks = nnx.data([stack(p) for p in range(len(pattern))])

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The pattern of encodings."""
        return tuple(block.attention.encoding for block in self.blocks)

    def at_length(self, length: int) -> Self:
        """This model, with the same parameters, for sequences of `length` tokens.

        It is another one only where an encoding depends on the length (`Encoding.at_length`), as
        Dynamic NTK and LongRoPE do.
        """
        pattern = tuple(encoding.at_length(length) for encoding in self.encodings)
        if pattern == self.encodings:
            return self
        other = nnx.merge(*nnx.split(self))
        for block, encoding in zip(other.blocks, pattern, strict=True):
            block.attention.encoding = encoding
        return other

    def _project(self, inputs: int, outputs: int, key: jax.Array) -> Linear:
        """A projection at the input or output."""
        return _linear(self.config, inputs, outputs, nnx.Rngs(key), inputs**-0.5)

    def _place(self, x, positions):
        """The input with the positions that the schemes add."""
        for index, shared in enumerate(self.shared):
            encoding = self.encodings[self.which.index(index)]
            x = encoding.embed(Params(nnx.as_pure(shared), {}), x, positions)
        return x

    def _keep(self, x):
        return x if self.divided is None else jax.lax.with_sharding_constraint(x, self.divided)

    def _layers(self, x, shared, positions, segments, cache, key, layout=IN_ORDER):
        """All blocks: a scan over repeats of the pattern.

        With caches, one after the other: a scan would copy each of them in and out for each token,
        which takes many times as long as to attend.
        """
        split = [nnx.split(block) for block in self.blocks]
        graphs = [graph for graph, _ in split]

        def repeat(x, inputs):
            states, layer_caches, keys = inputs
            grown = []
            for place, (graph, state) in enumerate(zip(graphs, states, strict=True)):
                past = None if layer_caches is None else layer_caches[place]
                layer_key = None if keys is None else jax.random.fold_in(keys, place)
                block = nnx.merge(graph, state)
                table = shared[self.which[place]]
                x, past = block(self._keep(x), table, positions, segments, past, layer_key, layout)
                grown.append(past)
            return self._keep(x), None if layer_caches is None else grown

        period = len(self.blocks)
        repeats = self.config.layers // period
        keys = None if key is None else jax.random.split(key, repeats)
        states = [state for _, state in split]
        if cache is None:
            step = jax.checkpoint(repeat) if self.config.remat else repeat
            return jax.lax.scan(step, x, (states, None, keys))
        longer = []
        for i in range(repeats):
            own, own_key = jax.tree.map(lambda a: a[i], (states, keys))  # noqa: B023
            x, grown = repeat(x, (own, cache[i * period : (i + 1) * period], own_key))
            longer.extend(grown or ())
        return x, longer


class Transformer(Stack):
    """Tokens to logits. Make it with `Transformer(config, rngs=nnx.Rngs(seed))`.

    Raises:
      ValueError: a field of `config` that cannot be, before anything compiles.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        config.check()
        if not config.vocab:
            raise ValueError("model.vocab=0: pass the number of token ids (257 for bytes)")
        weights = rngs.params()
        super().__init__(config, weights, rngs.encoding())
        self.embed = nnx.Embed(
            config.vocab,
            config.width,
            embedding_init=nnx.initializers.normal(config.width**-0.5),
            dtype=DTYPES[config.dtype],
            rngs=nnx.Rngs(jax.random.fold_in(weights, 0)),
        )
        if not config.tied:
            self.head = self._project(config.width, config.vocab, jax.random.fold_in(weights, 1))

    def __call__(
        self,
        tokens,
        *,
        positions=None,
        segments=None,
        cache=None,
        key=None,
        layout: InOrder = IN_ORDER,
    ):
        """Logits of the next token (of each token, if not causal).

        Args:
          tokens: int32 [B, T].
          positions: integers [B or 1, T], with a trailing axis where the encoding has several; or
            None: contiguous from 0 in each segment (the fast path), or from the cache's length on.
          segments: int32 [B, T] or None: documents packed into a row; tokens see only their own.
          cache: from `init_cache`, or None.
          key: drives dropout; None is none.
          layout: how tokens, positions and segments lie in their rows, and so the logits: in order,
            or shared by several devices (`pe_jax.engines.ring.Ring`), under jit.

        Returns:
          float32 logits [B, T, V], or (logits, longer cache) if a cache was given.

        Raises:
          ValueError: a cache and a layout that is not in order.
        """
        tokens = jnp.asarray(tokens)
        if cache is not None and layout is not IN_ORDER:
            raise ValueError(f"layout={type(layout).__name__}: a cache has tokens in order")
        if positions is not None:
            rows = (*tokens.shape, *jnp.shape(positions)[2:])
            positions = jnp.broadcast_to(jnp.asarray(positions), rows)
        places = positions
        if cache is not None and positions is None:
            places = pos.contiguous(tokens.shape[1], cache[0].length)[None]
        x = self._embed(tokens, places, segments, layout)
        shared = nnx.as_pure(self.shared)
        x, cache = self._layers(x, shared, positions, segments, cache, key, layout)
        x = self.final_norm(x)
        # a tied table has the scale of an input; as an output it begins near a uniform guess (T5)
        tied = self.config.tied
        logits = self.embed.attend(x * self.config.width**-0.5) if tied else self.head(x)
        logits = logits.astype(jnp.float32)
        return logits if cache is None else (logits, cache)

    def _embed(self, tokens, positions, segments, layout=IN_ORDER):
        """Token embeddings of unit variance, with the positions that the schemes add."""
        x = self._look_up(tokens) * jnp.asarray(self.config.width**0.5, self.embed.dtype)
        if positions is None:
            positions = layout.order(tokens.shape[1])[None]
            positions = positions if segments is None else layout.per_segment(segments)
        return self._place(x, positions)

    def _look_up(self, tokens):
        if self.divided is None:
            return self.embed(tokens)
        # Gather the table, divided by its width: XLA would look up in it, then gather all rows.
        whole = NamedSharding(self.divided.mesh, PartitionSpec())
        table = self.embed.embedding[...].astype(self.embed.dtype)
        table = jax.lax.with_sharding_constraint(table, whole)
        return self._keep(jnp.take(table, tokens, axis=0))

    def check_finite(self, tokens, *, positions=None, segments=None) -> None:
        """Raises FloatingPointError naming the first layer whose output is not finite (slow)."""

        def look(x, what: str):
            if not bool(jnp.isfinite(x).all()):
                raise FloatingPointError(f"{what} is not finite")

        for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.state(self, nnx.Param)):
            look(leaf, f"parameter {jax.tree_util.keystr(path)}")
        x = self._embed(tokens, positions, segments)
        look(x, "the embedding")
        shared = nnx.as_pure(self.shared)
        for layer in range(self.config.layers):
            place = layer % len(self.blocks)
            graph, state = nnx.split(self.blocks[place])
            block = nnx.merge(graph, jax.tree.map(lambda a: a[layer // len(self.blocks)], state))  # noqa: B023
            x, _ = block(x, shared[self.which[place]], positions, segments, None, None)
            look(x, f"the output of layer {layer}")

    def init_cache(self, batch: int, capacity: int):
        """Empty caches for `capacity` tokens, one a layer, for the parameters as they are now.

        Raises:
          ValueError: the model is not causal, `capacity` is beyond a learned table's length.
        """
        if not self.config.causal:
            raise ValueError("model.causal=False: only a causal model decodes with a cache")
        limit = self.config.limit
        if limit is not None and capacity > limit:
            raise ValueError(
                f"capacity={capacity}: {self.config.encoding!r} is defined for {limit} positions"
            )
        dtype, period = DTYPES[self.config.dtype], len(self.blocks)

        def one(layer: int):
            place = layer % period
            own = nnx.as_pure(self.blocks[place].attention.params)
            own = jax.tree.map(lambda a: a[layer // period], own)
            params = Params(nnx.as_pure(self.shared[self.which[place]]), own)
            encoding, dims = self.encodings[place], self.config.dims
            return caches.empty(encoding, batch, capacity, dims, dtype, params)

        return [one(layer) for layer in range(self.config.layers)]
