"""A Transformer (Flax NNX) that takes any encoding, at its input and in every layer.

Pre-norm blocks, RMSNorm, gated MLP and tied embedding by default, each an ordinary typed field; the
others are what released decoders have (`pe_jax.released`).
Layers run under scan over repeats of the encoding pattern, so compile time does not grow with
depth (except with caches, see `_layers`); shallow models are unrolled. Parameters are float32,
activations `dtype`.
B batch, T tokens, D width, V vocabulary, N layers, P length of the pattern.
"""

from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from pe_jax.encodings.base import Params
from pe_jax.encodings.windowed import Windowed, attention_layers, without_window
from pe_jax.engines import checks
from pe_jax.engines.decoding import cache as caches
from pe_jax.engines.sharded.layout import CONTIGUOUS, Contiguous
from pe_jax.models.config import DTYPES, ModelConfig
from pe_jax.models.layers import Block, Linear, Recurrence, linear, norm
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import require

# Models of at most this many layers are unrolled. On CPU a step took 0.7 to 0.8 (2 layers) and 0.85
# (5 and 6) of the time of a loop, and 0.8 of its memory; compiling it took up to twice as long.
UNROLLED = 8


class Stack(nnx.Module):
    """The layers of a model, their shared parameters and the final norm: not input and output.

    Weights are drawn from the keys `weights` and `encodings` folded with numbers, so that the
    parameters of a scheme change no other weight. The input and output have numbers 0 and 1.

    Attributes:
      divided: sharding of activations [B, T, D], set by the trainer; by itself, XLA may shard their
        width as the weights' and replicate the batch.
    """

    divided: NamedSharding | None = None

    def __init__(self, config: ModelConfig, weights: jax.Array, encodings: jax.Array):
        self.config = config
        pattern, dims = config.pattern, config.dims
        self.final_norm = norm(config, config.width, nnx.Rngs(0))
        # one set of shared parameters for each distinct encoding
        distinct = list(dict.fromkeys(pattern))
        self.which = tuple(distinct.index(e) for e in pattern)
        shared = [
            e.init_shared(jax.random.fold_in(encodings, i), e.layer_dims(dims))
            for i, e in enumerate(distinct)
        ]
        self.shared = nnx.data([jax.tree.map(nnx.Param, s) for s in shared])
        repeats = config.layers // len(pattern)

        def stack(slot: int) -> Block:
            """The blocks at layers slot, slot + P, …, stacked along a leading axis."""
            layers = slot + len(pattern) * jnp.arange(repeats)

            @nnx.vmap
            def make(weight_key, encoding_key):
                rngs = nnx.Rngs(weight_key, encoding=encoding_key)
                return Block(config, config.windows[slot], rngs)

            fold = jax.vmap(jax.random.fold_in, (None, 0))
            return make(fold(weights, layers + 2), fold(encodings, layers + 1000))

        self.blocks = nnx.data([stack(p) for p in range(len(pattern))])

    @property
    def encodings(self) -> tuple[Windowed, ...]:
        """The pattern of encodings, each with what its layer sees."""
        return tuple(block.attention.encoding for block in self.blocks)

    def at_length(self, length: int) -> Self:
        """This model, with the same parameters, for sequences of `length` tokens.

        It differs from this one only where an encoding depends on the length
        (`Encoding.at_length`), such as Dynamic NTK and LongRoPE.
        """
        pattern = tuple(encoding.at_length(length) for encoding in self.encodings)
        if pattern == self.encodings:
            return self
        other = nnx.merge(*nnx.split(self))
        for block, encoding in zip(other.blocks, pattern, strict=True):
            block.attention.encoding = encoding
        return other

    def _project(self, inputs: int, outputs: int, key: jax.Array) -> Linear:
        return linear(self.config, "head", inputs, outputs, nnx.Rngs(key), inputs**-0.5)

    def _add_positions(self, x, positions):
        """The input with the positions that the schemes add."""
        for index, shared in enumerate(self.shared):
            encoding = self.encodings[self.which.index(index)]
            x = encoding.embed(Params(nnx.as_pure(shared), {}), x, positions)
        return x

    def _shard(self, x):
        return x if self.divided is None else jax.lax.with_sharding_constraint(x, self.divided)

    def _layers(self, x, shared, positions, segments, cache, key, layout=CONTIGUOUS):
        """All blocks: a scan over repeats of the pattern.

        With caches, a Python loop: a scan would copy every cache in and out for each token, which
        takes many times as long as attention. Stacked ones are for many tokens at once: a scan.
        """
        split = [nnx.split(block) for block in self.blocks]
        graphs = [graph for graph, _ in split]

        def repeat(x, inputs):
            states, layer_caches, keys = inputs
            grown = []
            for slot, (graph, state) in enumerate(zip(graphs, states, strict=True)):
                past = None if layer_caches is None else layer_caches[slot]
                layer_key = None if keys is None else jax.random.fold_in(keys, slot)
                table = shared[self.which[slot]]

                def run(x, state, graph=graph, table=table, past=past, key=layer_key):
                    block = nnx.merge(graph, state)
                    return block(x, table, positions, segments, past, key, layout)

                run = jax.checkpoint(run) if self.config.remat and repeats == 1 else run
                x, past = run(self._shard(x), state)
                grown.append(past)
            return self._shard(x), None if layer_caches is None else grown

        period = len(self.blocks)
        repeats = self.config.layers // period
        keys = None if key is None else jax.random.split(key, repeats)
        states = [state for _, state in split]
        if cache is None or isinstance(cache, tuple):
            remat = self.config.remat and repeats > 1 and cache is None
            step = jax.checkpoint(repeat) if remat else repeat
            unroll = repeats if self.config.layers <= UNROLLED else 1
            x, longer = jax.lax.scan(step, x, (states, cache, keys), unroll=unroll)
            return x, tuple(longer or ())
        longer = []
        for i in range(repeats):
            layer_states, repeat_key = jax.tree.map(lambda a: a[i], (states, keys))  # noqa: B023
            x, grown = repeat(x, (layer_states, cache[i * period : (i + 1) * period], repeat_key))
            longer.extend(grown or ())
        return x, longer


class Transformer(Stack):
    """Tokens to logits. Make it with `Transformer(config, rngs=nnx.Rngs(seed))`.

    Raises:
      ValueError: a field of `config` is out of range; raised before anything compiles.
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
        if config.embed_norm:
            self.embed_norm = norm(config, config.width, nnx.Rngs(0))
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
        layout: Contiguous = CONTIGUOUS,
    ):
        """Logits of the next token (of each token, if not causal).

        Args:
          tokens: int32 [B, T].
          positions: integers [B or 1, T], with a trailing axis where the encoding has several; or
            None: contiguous from 0 in each segment (the fast path), or from the cache's length on.
          segments: int32 [B, T] or None: documents packed into a row; tokens attend within theirs,
            and a negative id is padding (with a cache see `pe_jax.cache.extend`).
          cache: from `init_cache`, or None.
          key: PRNG key of dropout; None disables it.
          layout: of tokens, positions, segments and logits in their rows: in order, or sharded over
            several devices (`pe_jax.engines.sharded.layout`), under jit.

        Returns:
          float32 logits [B, T, V], or (logits, extended cache) if a cache was given.

        Raises:
          ValueError: a cache and a layout that is not in order.
        """
        x, longer = self.hidden(
            tokens, positions=positions, segments=segments, cache=cache, key=key, layout=layout
        )
        logits = self.logits(x)
        return logits if cache is None else (logits, longer)

    def hidden(
        self,
        tokens,
        *,
        positions=None,
        segments=None,
        cache=None,
        key=None,
        layout: Contiguous = CONTIGUOUS,
    ):
        """What `logits` reads: final activations [B, T, D], and the extended cache or None.

        For long rows: logits of all their tokens may not fit into memory. Arguments and errors are
        those of `__call__`.
        """
        tokens = jnp.asarray(tokens)
        if cache is not None and layout is not CONTIGUOUS:
            raise ValueError(f"layout={type(layout).__name__}: a cache has tokens in order")
        if positions is not None:
            rows = (*tokens.shape, *jnp.shape(positions)[2:])
            positions = jnp.broadcast_to(jnp.asarray(positions), rows)
        if segments is not None:
            segments = as_positions(segments, name="segments")
            checks.shape("segments", segments, tokens.shape)
        input_positions = positions
        slots = attention_layers(self.encodings)
        if cache is not None and positions is None and slots:
            stacked, first = isinstance(cache, tuple), cache[slots[0]]
            first = jax.tree.map(lambda a: a[0], first) if stacked else first
            input_positions = caches.next_positions(first, tokens.shape[1], segments)
        x = self._embed(tokens, input_positions, segments, layout)
        shared = nnx.as_pure(self.shared)
        x, longer = self._layers(x, shared, positions, segments, cache, key, layout)
        return self.final_norm(x), None if cache is None else longer

    def logits(self, x):
        """Logits float32 [B, T, V] of final activations [B, T, D]."""
        # a tied table has the scale of an input; scaled so, logits start near uniform (as in T5)
        tied, cap = self.config.tied, self.config.logit_cap
        scale = self.config.logit_scale or (self.config.width**-0.5 if tied else 1.0)
        # XLA would compute the norm and one row's product in one loop, three times as slow (CPU)
        x = jax.lax.optimization_barrier(x if scale == 1 else x * scale)
        logits = self.embed.attend(x) if tied else self.head(x)
        logits = logits.astype(jnp.float32)
        if cap:
            logits = cap * jnp.tanh(logits / cap)
        return logits

    def _embed(self, tokens, positions, segments, layout=CONTIGUOUS):
        """Token embeddings, of unit variance by default, with the positions that schemes add."""
        x, scale = self._look_up(tokens), self.config.embed_scale or self.config.width**0.5
        x = x if scale == 1 else x * jnp.asarray(scale, self.embed.dtype)
        x = self.embed_norm(x) if self.config.embed_norm else x
        if positions is None:
            positions = layout.order(tokens.shape[1])[None]
            positions = positions if segments is None else layout.per_segment(segments)
        return self._add_positions(x, positions)

    def _look_up(self, tokens):
        table = self.embed.embedding[...]
        if self.divided is not None:
            # All-gather the table, sharded by width: XLA would look up first, then gather all rows.
            whole = NamedSharding(self.divided.mesh, PartitionSpec())
            table = jax.lax.with_sharding_constraint(table, whole)
        # The gradient of a row is a sum over its tokens. In half precision it would stop growing
        # after some hundreds of them, and GPUs would add one token at a time.
        return self._shard(jnp.take(table, tokens, axis=0).astype(self.embed.dtype))

    def check_finite(self, tokens, *, positions=None, segments=None) -> None:
        """Raises FloatingPointError naming the first layer whose output is not finite (slow)."""

        def check(x, what: str):
            if not bool(jnp.isfinite(x).all()):
                raise FloatingPointError(f"{what} is not finite")

        for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.state(self, nnx.Param)):
            check(leaf, f"parameter {jax.tree_util.keystr(path)}")
        x = self._embed(tokens, positions, segments)
        check(x, "the embedding")
        shared = nnx.as_pure(self.shared)
        for layer in range(self.config.layers):
            slot = layer % len(self.blocks)
            graph, state = nnx.split(self.blocks[slot])
            block = nnx.merge(graph, jax.tree.map(lambda a: a[layer // len(self.blocks)], state))  # noqa: B023
            x, _ = block(x, shared[self.which[slot]], positions, segments, None, None)
            check(x, f"the output of layer {layer}")

    def init_cache(
        self, batch: int, capacity: int, padded: bool = False, stacked: bool = False
    ) -> list | tuple:
        """Empty caches for `capacity` tokens, one per layer, for the current parameters.

        Layers with a window keep its tokens alone, or all if rows are to be `padded` (`segments`),
        as padding would take their place; a recurrent layer's `RecurrentCache` has one size. If
        `stacked`, there is one per layer of the pattern, with a leading axis for its repeats: each
        call copies all of them, and compiles as fast as without a cache.

        Raises:
          ValueError: the model is not causal, `capacity` is beyond a learned table's length.
        """
        causal = self.config.causal
        require(causal, "model.causal", causal, "only a causal model decodes with a cache")
        limit = self.config.limit
        fix = f"{self.config.encoding!r} is defined for {limit} positions"
        require(limit is None or capacity <= limit, "capacity", capacity, fix)
        dtype, period = DTYPES[self.config.dtype], len(self.blocks)

        def layer_cache(layer: int):
            slot = layer % period
            mixer = self.blocks[slot].attention
            if isinstance(mixer, Recurrence):
                return mixer.empty_cache(batch)
            layer_params = nnx.as_pure(mixer.params)
            layer_params = jax.tree.map(lambda a: a[layer // period], layer_params)
            params = Params(nnx.as_pure(self.shared[self.which[slot]]), layer_params)
            encoding = self.encodings[slot]
            encoding = without_window(encoding) if padded else encoding
            dims = encoding.layer_dims(self.config.dims)
            return caches.empty(encoding, batch, capacity, dims, dtype, params)

        empty = [layer_cache(layer) for layer in range(self.config.layers)]
        if not stacked:
            return empty
        slots = (empty[slot::period] for slot in range(period))
        return tuple(jax.tree.map(lambda *a: jnp.stack(a), *slot) for slot in slots)
