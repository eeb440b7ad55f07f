"""The training step: a pure function of state and batch, compiled once for all seeds.

B batch, T tokens per row.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pe_jax import position_schemes
from pe_jax.engines.sharded.layout import CONTIGUOUS, Contiguous
from pe_jax.models.config import ModelConfig
from pe_jax.models.transformer import Transformer
from pe_jax.training import optimizer as optimizers
from pe_jax.training import sharding
from pe_jax.training.config import OptimizerConfig

CHUNK = 1024  # tokens whose logits `last_losses` holds at once
LOGITS = 2**26  # of a batch, that a step with `remat` holds at once: 256 MiB
POSITION_FOLD = 2**31  # folded into a step's key for its positions; dropout splits the key itself


class State(NamedTuple):
    """The state of training: all that a step changes.

    Attributes:
      params: the parameters.
      opt_state: the optimizer's state.
      rates: the learning rate at the peak, and its multiple for encodings: float32 [2].
      step: steps done, including skipped ones: int32.
      skipped: steps skipped because they were not finite, consecutively and in total: int32 [2].
    """

    params: Any
    opt_state: Any
    rates: Any
    step: Any
    skipped: Any


class StepMetrics(NamedTuple):
    """Scalars of one step."""

    loss: jax.Array  # mean over the targets of the batch, nats per token
    gradient_norm: jax.Array  # global norm before clipping
    learning_rate: jax.Array  # of the update
    skipped: jax.Array  # steps skipped so far


def token_losses(logits: Any, targets: jax.Array) -> jax.Array:
    """Cross entropy of each target in nats: float32 [B, T] for logits [B, T, V]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets)


def by_chunks(
    model: Transformer, function: Callable, x: jax.Array, targets: jax.Array, size: int
) -> Any:
    """`function(logits, targets)` of final activations and targets, by chunks of tokens.

    The backward pass makes the logits of a chunk again: those of a vocabulary of 262,144 would take
    more memory than all layers.

    Args:
      model: whose `logits` are made.
      function: of logits [B, t, V] and targets [B, t] to arrays [B, t], token by token.
      x: what `hidden` returns, [B, T, D].
      targets: the second argument of `function`, [B, T].
      size: tokens per row whose logits exist at once.
    """
    length = x.shape[1]
    if size >= length:
        return function(model.logits(x), targets)

    def chunks(a: jax.Array) -> jax.Array:
        a = jnp.pad(a, [(0, 0), (0, -length % size)] + [(0, 0)] * (a.ndim - 2))
        return jnp.moveaxis(a.reshape(len(a), -1, size, *a.shape[2:]), 1, 0)

    @jax.checkpoint
    def chunk(pair: tuple[jax.Array, jax.Array]) -> Any:
        return function(model.logits(pair[0]), pair[1])

    def whole(a: jax.Array) -> jax.Array:
        return jnp.moveaxis(a, 0, 1).reshape(a.shape[1], -1)[:, :length]

    return jax.tree.map(whole, jax.lax.map(chunk, (chunks(x), chunks(targets))))


def chunk_size(model: Transformer, rows: int, length: int) -> int:
    """Tokens per row whose logits a step holds at once: all, or with `remat` what `LOGITS` allows.

    Not where activations are sharded: a chunk would be on some of the devices.
    """
    if not model.config.remat or model.divided is not None:
        return length
    return max(1, LOGITS // (rows * model.config.vocab))


def last_losses(
    model: Transformer, rows: jax.Array, count: int, positions: jax.Array | None = None
) -> jax.Array:
    """Cross entropy of the last targets of rows in nats: float32 [B, count].

    Logits of at most `CHUNK` tokens per row exist at once: a vocabulary may have 262,144.

    Args:
      model: a causal model.
      rows: token ids [B, T + 1], the targets included.
      count: of targets, at most T.
      positions: [B or 1, T], or None: from 0 on.
    """
    x, _ = model.hidden(rows[:, :-1], positions=positions)
    return by_chunks(model, token_losses, x[:, -count:], rows[:, -count:], CHUNK)


def mean_loss(
    model: Transformer,
    batch: dict,
    key: jax.Array | None,
    positions: jax.Array | None = None,
    layout: Contiguous = CONTIGUOUS,
) -> jax.Array:
    """Weighted mean loss of a packed batch, as `data.train_iterator` gives it.

    Rows come in order and are permuted to `layout` here, once: the loss does not depend on the
    order of the tokens. Without `positions`, a scaling that depends on the length takes each
    document's.
    """
    tokens, segments = (layout.spread(batch[name][:, :-1]) for name in ("tokens", "segments"))
    positions = None if positions is None else layout.spread(positions)
    x, _ = model.hidden(tokens, segments=segments, positions=positions, key=key, layout=layout)
    size, targets = chunk_size(model, *tokens.shape), layout.spread(batch["tokens"][:, 1:])
    losses = by_chunks(model, token_losses, x, targets, size)
    weights = layout.spread(batch["weights"][:, 1:])
    # The loss of padding may be NaN, which a weight of 0 would keep: select, do not multiply.
    total = jnp.where(weights > 0, losses * weights, 0).sum()
    return total / jnp.maximum(weights.sum(), 1)


def finite(tree: Any) -> jax.Array:
    """Whether all numbers of a tree are finite: bool []."""
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()


def split(batch: dict, parts: int, sharding: NamedSharding) -> dict:
    """Microbatches [parts, B/parts, …] of arrays [B, …]; each device keeps its rows.

    Every `parts`-th row, since consecutive ones would lie on one device.
    """

    def constrain(x):
        x = jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1)
        rows = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
        return jax.lax.with_sharding_constraint(x, rows)

    return jax.tree.map(constrain, batch)


class Trainer:
    """The compiled program of one model on one mesh, shared by all seeds and learning rates.

    Attributes:
      config: of the model.
      mesh: the devices.
      layout: how the tokens of a row lie on the devices.
      position_scheme: positions in training and in tests; None for models that read no tokens.
      shapes: of the parameters.
      state_shapes: shapes and dtypes of a State.
      start: (seed, rates) → State, already sharded; `init` calls it.
      finite: whether all numbers of a State are finite.
      step: (State, batch, seed) → (State, StepMetrics); donates the state. Where the loss or a
        gradient is not finite, only the counts change; after more than `skips` consecutive skips,
        nothing is updated any more.
      skips: consecutive skipped steps that are tolerated, from the optimizer's config.
      microbatches: parts of a batch whose gradients are added up. Not `optax.MultiSteps`: it takes
        the mean of means, whatever the number of targets in each, and keeps the sum in the state
        between calls, so that a step, its learning rate and a checkpoint would mean a part.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: OptimizerConfig,
        steps: int,
        mesh: Mesh,
        positions: str | None = "contiguous",
        microbatches: int = 1,
    ):
        self.config, self.mesh, self.microbatches = model, mesh, microbatches
        self.optimizer_config, self.steps = config, steps
        self.position_scheme: Any = positions and position_schemes.choose(positions, model.pattern)
        tx = self.optimizer(optimizers.rates(config))
        self.layout = sharding.layout(model, mesh)
        self.dropout = model.dropout > 0
        self.traced: dict[tuple[int, int], Any] = {}  # by rows and length
        self.compiled: dict[tuple[int, int], Any] = {}
        self.batch_sharding = sharding.batch_sharding(mesh)
        self.skips = config.skips

        def params(seed):
            model = self.build(nnx.Rngs(jax.random.key(seed)))
            model.divided = sharding.activation_sharding(mesh) if mesh.size > 1 else None
            return nnx.split(model)

        self.graph, shapes = nnx.eval_shape(lambda: params(0))
        shapes = nnx.as_pure(shapes)
        self.shapes = shapes
        weights = sharding.parameter_shardings(shapes, mesh, model)
        replicated = NamedSharding(mesh, PartitionSpec())
        moments = sharding.optimizer_shardings(tx, shapes, weights, mesh)
        self.shardings = State(weights, moments, replicated, replicated, replicated)

        def init(seed, rates):
            pure = nnx.as_pure(params(seed)[1])
            zeros = jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.int32)
            return State(pure, tx.init(pure), rates, *zeros)

        # It runs once: on CPU, optimisation would dominate its time (9 s of 11 for DeBERTa).
        cpu = mesh.devices.flat[0].platform == "cpu"
        fast = {"xla_backend_optimization_level": 0} if cpu else None
        self.start = jax.jit(init, out_shardings=self.shardings, compiler_options=fast)
        self.state_shapes = jax.eval_shape(self.start, 0, optimizers.rates(config))
        self.finite = jax.jit(finite, compiler_options=fast)
        self.step: Any = jax.jit(
            self._step,
            in_shardings=(self.shardings, self.batch_sharding, replicated),
            out_shardings=(self.shardings, replicated),
            donate_argnums=0,
        )
        self.jitted = self.step  # for any shape, once `step` is compiled for one

    def optimizer(self, rates: Any) -> optax.GradientTransformation:
        """The optimizer at these rates."""
        return optimizers.optimizer(self.optimizer_config, self.steps, rates)

    def init(self, seed: Any, config: OptimizerConfig | None = None) -> State:
        """The first state, sharded, with the rates of `config` or of this trainer's optimizer."""
        return self.start(seed, optimizers.rates(config or self.optimizer_config))

    def build(self, rngs: nnx.Rngs) -> Any:
        """A new model. Trainers of other kinds of models override this and `loss`."""
        return Transformer(self.config, rngs=rngs)

    def at_positions(self, model: Any, positions: Any, length: int, testing: bool = False) -> Any:
        """`model`, with scalings by length set for the positions that `length` tokens may have.

        Positions None are contiguous: such scalings then take each document's length.
        """
        if positions is None:
            return model
        return model.at_length(self.position_scheme.bound(length, testing))

    def loss(self, model: Any, batch: dict, key: jax.Array) -> jax.Array:
        """The loss to minimise on one batch; `key` is the PRNG key of the step."""
        rows = batch["tokens"][:, :-1], batch["segments"][:, :-1]
        position_key = jax.random.fold_in(key, POSITION_FOLD)
        positions = self.position_scheme.training_positions(position_key, *rows)
        model = self.at_positions(model, positions, rows[0].shape[1])
        return mean_loss(model, batch, key if self.dropout else None, positions, self.layout)

    def arguments(self, batch: int, length: int) -> tuple[State, dict, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the step's arguments for packed batches: state, batch, seed."""
        row = jax.ShapeDtypeStruct((batch, length + 1), jnp.int32)
        packed: dict[str, Any] = dict.fromkeys(("tokens", "segments"), row)
        packed["weights"] = jax.ShapeDtypeStruct(row.shape, jnp.float32)
        return self.state_shapes, packed, jax.ShapeDtypeStruct((), jnp.int32)

    def compile(self, batch: int, length: int) -> Any:
        """Compiles the step for packed batches, once; returns the program (memory and cost)."""
        if (batch, length) not in self.compiled:
            self.compiled[batch, length] = self.trace(batch, length).lower().compile()
        self.step = self.compiled[batch, length]
        return self.step

    def trace(self, batch: int, length: int) -> Any:
        """Traces the step for packed batches, once; its `jaxpr` has the operations."""
        if (batch, length) not in self.traced:
            self.traced[batch, length] = self.jitted.trace(*self.arguments(batch, length))
        return self.traced[batch, length]

    def model(self, params: Any) -> Any:
        """The model with these parameters."""
        return nnx.merge(self.graph, params)

    def use_mesh(self) -> Any:
        """Context in which programs are traced for the mesh: engines read the device count from it.

        The shapes that `compile` passes do not say on which mesh the arrays will lie.
        """
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def put(self, batch: dict) -> dict:
        """Moves this process's rows of a batch to the devices."""
        place = functools.partial(jax.make_array_from_process_local_data, self.batch_sharding)
        return jax.tree.map(place, batch)

    def _gradient(self, params: Any, batch: dict, key: jax.Array) -> tuple[jax.Array, Any]:
        """The loss of a batch and its gradient."""
        if self.microbatches == 1:
            return jax.value_and_grad(
                lambda params: self.loss(nnx.merge(self.graph, params), batch, key)
            )(params)
        microbatches = split(batch, self.microbatches, self.batch_sharding)
        targets = microbatches["weights"][..., 1:].sum((1, 2))
        shares = targets / jnp.maximum(targets.sum(), 1)

        def add(total, part):
            rows, share, number = part
            part_key = jax.random.fold_in(key, number)

            def loss(params):
                return share * self.loss(nnx.merge(self.graph, params), rows, part_key)

            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params)), None

        zeros = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(add, zeros, (microbatches, shares, jnp.arange(self.microbatches)))[0]

    def _step(self, state: State, batch: dict, seed: jax.Array):
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        with self.use_mesh():
            loss, grads = self._gradient(state.params, batch, key)
        norm = optax.tree.norm(grads)
        tx = self.optimizer(state.rates)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        new = state._replace(
            params=optax.apply_updates(state.params, updates), opt_state=opt_state, skipped=None
        )
        # optax.apply_if_finite applies the NaN after its limit, and is slower.
        consecutive, total = state.skipped
        stopped = consecutive > self.skips
        skip = stopped | ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        counts = jnp.stack([jnp.where(skip, consecutive + 1, 0), total + skip])
        old = state._replace(skipped=None)
        new = jax.tree.map(lambda new, old: jnp.where(skip, old, new), new, old)
        new = new._replace(step=state.step + 1, skipped=jnp.where(stopped, state.skipped, counts))
        made = state.step - state.skipped[1]  # optax counts only the updates made
        rate: Any = state.rates[0] * optimizers.schedule(self.optimizer_config, self.steps)(made)
        return new, StepMetrics(loss, norm, rate, new.skipped[1])
