"""What an encoding is: its settings, its parameters, and the terms that it adds to attention.

    score = q·k/sqrt(E),    out = softmax(score)·v          (a fully masked row gives 0)

`Encoding` itself is NoPE (no positional encoding; Kazemnejad et al., arXiv 2305.19466): no terms. A
scheme is a frozen dataclass that returns some; its parameters are a separate pytree, so that the
scheme itself can be a static argument of jit. `pe_jax.encodings.terms` has the kinds of terms.

Legend: B batch, T queries, H query heads, D model width, A axes of a position, n any shape.
`distance = q_pos - k_pos`, everywhere: positive looks back.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.export
import numpy as np
from jax.sharding import PartitionSpec

from pe_jax.encodings.terms import Input, Term
from pe_jax.numerics.arrays import align, require_array, require_key
from pe_jax.numerics.position_arrays import padding_at_zero
from pe_jax.validation import ConfigError, PlainFields, is_int, require, shown


class Claims(NamedTuple):
    """What input a scheme supports; `attention` refuses other input.

    Attributes:
      axes: number of axes of a position; above 1, positions [*B, T, A] and distances [*n, A].
      real_positions: float32 positions are supported.
      causal_only: keys ahead of the query (distance < 0) are not supported.
      one_sided: all keys ahead of the query are encoded the same.
      absolute_rotation: rotated q·k depends on positions, not only on their distance.
    """

    axes: int = 1
    real_positions: bool = False
    causal_only: bool = False
    one_sided: bool = False
    absolute_rotation: bool = False


class Params(NamedTuple):
    """Parameters of one layer's encoding: `shared` by the whole model, and those of the `layer`."""

    shared: Any
    layer: Any


ParamsLike = Params | Mapping[str, Any]  # what `as_params` reads
jax.export.register_namedtuple_serialization(Params, serialized_name="pe_jax.Params")


def plain_arrays(tree: Any) -> Any:
    """The tree with arrays in the place of variables (`nnx.Param`)."""

    def is_variable(x: Any) -> bool:
        return hasattr(x, "__jax_array__") and not isinstance(x, jax.Array)

    return jax.tree.map(
        lambda x: x.__jax_array__() if is_variable(x) else x, tree, is_leaf=is_variable
    )


def as_params(given: Any, like: Params) -> Any:
    """Parameters in the structure of `like`, as far as they are told apart by name; else `given`.

    Mappings are those of Flax (`FrozenDict`, `nnx.State`) or of a restored checkpoint: with the
    keys "shared" and "layer", or with the names of one scheme's parameters. Tuples may have become
    lists, or mappings with the keys 0, 1, … or "0", "1", ….
    """
    given = plain_arrays(given)
    if isinstance(given, Mapping):
        drawn = [side for side, x in like._asdict().items() if jax.tree.leaves(x)]
        none = like._replace(**{side: {} for side in drawn})
        if given.keys() <= {*Params._fields}:
            given = none._replace(**given)
        elif len(drawn) == 1:
            given = none._replace(**{drawn[0]: given})
        elif all(isinstance(x, Mapping) for x in like) and not like.shared.keys() & like.layer:
            shared = {name: x for name, x in given.items() if name in like.shared}
            given = Params(shared, {name: x for name, x in given.items() if name not in shared})
    return Params(*map(_arranged, given, like)) if isinstance(given, Params) else given


def _arranged(given: Any, like: Any) -> Any:
    if isinstance(like, Mapping) and isinstance(given, Mapping):
        return {name: _arranged(x, like.get(name)) for name, x in given.items()}
    if isinstance(like, tuple):
        if isinstance(given, Mapping):  # a state leaves out what has no parameters
            named = {str(key): x for key, x in given.items()}
            entries = {str(i): {} if jax.tree.leaves(x) else x for i, x in enumerate(like)}
            given = [*(entries | named).values()] if named.keys() <= entries.keys() else given
        if isinstance(given, tuple | list) and len(given) == len(like):
            return tuple(map(_arranged, given, like))
    return given


@dataclasses.dataclass(frozen=True)
class Dims(PlainFields):
    """Sizes that a scheme may depend on: of the whole model, never of one device's shard."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self):
        for name, size in vars(self).items():
            ok = is_int(size, 1) or jax.export.is_symbolic_dim(size)
            require(ok, name, size, "pass an integer of at least 1")
        fix = f"it must divide heads={self.heads}"
        require(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, fix)


@dataclasses.dataclass(frozen=True)
class Encoding(PlainFields):
    """No positional encoding: a causal mask alone (arXiv 2305.19466). Base class of all schemes."""

    claims: ClassVar[Claims] = Claims()
    multiples: ClassVar[tuple[tuple[str, int, str], ...]] = ()  # (a size, its divisor, the fix)

    def check(self, dims: Dims) -> None:
        """Raises ValueError if the scheme does not support these sizes."""
        for name, divisor, fix in self.multiples:
            require((size := getattr(dims, name)) % divisor == 0, name, size, fix)

    def layer_dims(self, dims: Dims) -> Dims:
        """The sizes of a layer with this scheme, in a Transformer of these sizes."""
        return dims

    def query_heads(self, dims: Dims) -> int:
        """How many queries such a layer projects, each for as many neighbouring heads."""
        return dims.heads

    def at_length(self, length: int) -> "Encoding":
        """The scheme for sequences of `length` tokens: itself unless it depends on the length.

        Generation passes prompt + new tokens, for prefill and decoding, so that the cache stays
        valid. Evaluation passes the length that it evaluates.
        """
        return self

    def valid_length(self) -> int | None:
        """Positions below this are correct with the current settings; None: all, 0: none yet.

        A scheme that overrides `at_length` overrides this too: 0 before `at_length` is called, so
        that `attention` sets the length or asks for it, then at least that length.
        """
        return None

    def limit(self) -> int | None:
        """The first position that is not defined (a learned table's length); None if all are.

        With several axes, the least size: (n, …, n) is not defined. A table of distances is defined
        for distances below it on either side.
        """
        return None

    def init_shared(self, key: jax.Array, dims: Dims) -> Any:
        """Parameters that the whole model shares (float32)."""
        return {}

    def init_layer(self, key: jax.Array, dims: Dims) -> Any:
        """Parameters of one layer (float32)."""
        return {}

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Parameters of a model of one layer (float32)."""
        require_dims(dims)
        require_key("key", key)
        shared, layer = jax.random.split(key)
        return Params(self.init_shared(shared, dims), self.init_layer(layer, dims))

    def logical_axes(self, dims: Dims) -> Params:
        """The logical axes of each parameter, for sharding: `init`'s tree of `PartitionSpec`s.

        An axis whose size is one of the model's has that name, "width", "heads", "kv_heads" or
        "head_dim", once per parameter; any other is None. Rules from these names to the axes of a
        mesh (`flax.linen.logical_to_mesh`) then cover every scheme.
        """
        require_dims(dims)
        return parameter_axes(self, dims)

    def inputs(self, shared: Any) -> tuple[Input, ...]:
        """What is added to the input of the first layer, from the shared parameters."""
        return ()

    def terms(self, params: Params, dims: Dims) -> tuple[Term, ...]:
        """What is added to attention, and where. Which terms there are depends on settings only."""
        return ()

    def embed(self, params: ParamsLike, x: jax.Array, positions: jax.Array) -> jax.Array:
        """The input of the first layer x [*B, T, D], with `inputs` at positions added.

        Positions are [T], [1, T] or [*B, T], with a trailing axis where the scheme has several.

        Raises:
          ValueError: positions or parameters that do not fit x; what the scheme's own function
            refuses (a position outside a table).
          TypeError: x is not an array of floats, or `params` not a `Params` or a mapping.
        """
        if not isinstance(params, Params | Mapping):
            raise TypeError(f"params is a {type(params).__name__}; pass encoding.init(key, dims)")
        shared = params.shared if isinstance(params, Params) else params.get("shared", params)
        try:
            terms = self.inputs(plain_arrays(shared))
        except (KeyError, TypeError, ValueError):
            value = shown(shared, 80)
            fix = f"not those of {type(self).__name__}; pass encoding.init(key, dims)"
            raise ValueError(f"params.shared={value}: {fix}") from None
        if not terms:
            return x
        require_array("x", x, 2)
        self._check_positions(positions, x.shape[:-1])
        positions = padding_at_zero(positions)
        for term in terms:
            added = term.fn(term.arrays, positions, x.shape[-1])
            fix = f"the parameters are for width {added.shape[-1]}"
            require(added.shape[-1] == x.shape[-1], "width", x.shape[-1], fix)
            x = x + align(added.astype(x.dtype), x)
        return x

    def _check_positions(self, positions: Any, rows: tuple[int, ...]) -> None:
        """Raises ValueError unless there is one position for each of the rows (*B, T)."""
        axes = (self.claims.axes,) * (self.claims.axes > 1)
        allowed = [(*n, *axes) for n in (rows[-1:], (1,) * (len(rows) - 1) + rows[-1:], rows)]
        fix = " or ".join(str(list(shape)) for shape in dict.fromkeys(allowed))
        shape = getattr(positions, "shape", None)
        shape = np.asarray(positions, object).shape if shape is None else shape
        if shape not in allowed:
            about = f"{type(self).__name__} has {axes[0]} axes: " if axes else ""
            raise ValueError(f"positions has shape {list(shape)}; {about}pass positions {fix}")


class Recurrent(Encoding):
    """A layer in the place of attention, in a pattern over a Transformer's layers alone."""

    claims = Claims(causal_only=True)

    def terms(self, params, dims):
        """Raises ConfigError: there is no attention to add anything to."""
        name = type(self).__name__
        fix = "pe_jax.models.transformer has it, as 'gated_delta*3,rope' in ModelConfig.encoding"
        raise ConfigError(f"encoding: {name} is a layer in the place of attention; {fix}")


class OnAxes(Encoding):
    """A scheme of real positions whose number of axes is a field."""

    axes: int

    @property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Claims of real positions with this number of axes."""
        return Claims(axes=self.axes, real_positions=True)

    def with_axis(self, positions: Any) -> Any:
        """Positions [..., T, A], which are [..., T] where A is 1."""
        return positions[..., None] if self.axes == 1 else positions


class Shareable(Encoding):
    """A scheme whose parameters are the whole model's if its field `shared` is True."""

    shared: bool

    def _init(self, key: jax.Array, dims: Dims) -> Any:
        raise NotImplementedError

    def init_shared(self, key, dims):
        """All parameters, if `shared`."""
        return self._init(key, dims) if self.shared else {}

    def init_layer(self, key, dims):
        """The same, unless `shared`."""
        return {} if self.shared else self._init(key, dims)

    def arrays(self, params: Params) -> Any:
        """What `_init` made."""
        return params.shared if self.shared else params.layer


def normal(key: jax.Array, stddev: float, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Float32 arrays of these shapes by name, each drawn from its own key around 0."""
    keys = jax.random.split(key, len(shapes))
    each = zip(shapes.items(), keys, strict=True)
    return {name: stddev * jax.random.normal(k, shape, "float32") for (name, shape), k in each}


def require_dims(dims: Any) -> None:
    """Raises TypeError unless `dims` is a `Dims`."""
    if not isinstance(dims, Dims):
        fix = "pass pe_jax.Dims(width, heads, kv_heads, head_dim)"
        raise TypeError(f"dims={shown(dims)}: {fix}")


@functools.lru_cache(512)
def parameter_axes(encoding: Encoding, dims: Dims) -> Params:
    """`Encoding.logical_axes`, from `init`: an axis has the name of the one size it grows with."""

    def drawn(**sizes: int) -> Params:
        # twice the heads, so that twice the key heads divide them
        larger = dataclasses.replace(dims, **({"heads": 2 * dims.heads} | sizes))
        return jax.eval_shape(lambda: encoding.init(jax.random.key(0), larger))

    sizes = {**vars(dims), "heads": 2 * dims.heads}
    grown = [drawn(**{name: 2 * size}) for name, size in sizes.items()]

    def name_axes(x: Any, before: Any, *after: Any) -> PartitionSpec:
        names: list[str | None] = []
        for size, old, *new in zip(x.shape, before.shape, *(y.shape for y in after), strict=True):
            grew = [name for name, n in zip(sizes, new, strict=True) if n != old]
            named = len(grew) == 1 and getattr(dims, grew[0]) == size and grew[0] not in names
            names.append(grew[0] if named else None)
        return PartitionSpec(*names)

    return jax.tree.map(name_axes, drawn(heads=dims.heads), drawn(), *grown)


@functools.lru_cache(512)
def abstract_terms(encoding: Encoding, dims: Dims) -> tuple[Term, ...]:
    """The terms with abstract arrays (`jax.eval_shape`): all that is known without parameters."""
    terms = jax.eval_shape(lambda: encoding.terms(encoding.init(jax.random.key(0), dims), dims))
    # without shardings: the cache must not hold the current mesh
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), terms)


@functools.lru_cache(512)
def adds_to_input(encoding: Encoding, dims: Dims) -> bool:
    """Whether the scheme adds to the input of the first layer: then `embed` must be called."""
    shared = jax.eval_shape(lambda: encoding.init_shared(jax.random.key(0), dims))
    return bool(jax.eval_shape(encoding.inputs, shared))
