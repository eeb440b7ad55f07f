"""A Pallas kernel as source code in the Triton language, for the compiler of Triton's authors.

JAX's own lowering of Pallas to Triton is deprecated (0.11) and will go; Pallas itself stays, and
with it the kernels, their tests without a GPU, and the functions of terms that are traced into
them.
`source` writes the program that a `pallas_call` traces, operation by operation. It knows the
operations that the kernels of this package use, and raises `NotImplementedError` for others.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pe_jax.engines.kernels.gpu.triton_expressions import (
    FORMULAS,
    Value,
    along,
    broadcast,
    element,
    literal,
    reshaped,
)

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
POINTERS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32", "bool": "i1"}
INNER = {  # operations that are programs → the name of the program among their parameters
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}


@dataclasses.dataclass(frozen=True)
class Reference:
    """A block of an array in memory: where it begins, and the strides of its axes."""

    pointer: str
    strides: tuple[int, ...]


class Kernel(NamedTuple):
    """A kernel in the Triton language.

    Attributes:
      name: of the function.
      text: its source.
      pointers: the types of its arguments, inputs and then outputs, as signatures have them.
      grid: how many programs along each axis.
    """

    name: str
    text: str
    pointers: tuple[str, ...]
    grid: tuple[int, ...]


def source(params: dict[str, Any], name: str) -> Kernel:
    """The kernel of a `pallas_call`, by the parameters of its equation.

    Raises:
      NotImplementedError: an operation that is not known here.
    """
    mapping, writer = params["grid_mapping"], Writer()
    writer.grid = [Value(f"tl.program_id({axis})") for axis in range(len(mapping.grid))]
    blocks = mapping.block_mappings
    references = [writer.reference(f"p{i}", block) for i, block in enumerate(blocks)]
    writer.program(params["jaxpr"], references)
    arguments = ", ".join(f"p{i}" for i in range(len(blocks)))
    body = "".join(writer.lines) or "    pass\n"
    pointers = tuple("*" + POINTERS[str(block.array_aval.dtype)] for block in blocks)
    return Kernel(name, f"{HEAD}def {name}({arguments}):\n{body}", pointers, tuple(mapping.grid))


class Writer:
    """Writes programs line by line; keeps no names but those it gives."""

    def __init__(self):
        self.lines: list[str] = []
        self.depth, self.names = 1, itertools.count()
        self.grid: list[Value] = []

    def line(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("    " * self.depth + text + "\n")

    def let(self, text: str, shape: Sequence[int] = (), name: str = "") -> Value:
        """Adds an assignment to a new name, or to the given one."""
        name = name or f"v{next(self.names)}"
        self.line(f"{name} = {text}")
        return Value(name, tuple(shape))

    def reference(self, pointer: str, block: Any) -> Reference:
        """The block of an array that the program reads or writes."""
        shape = block.array_aval.shape
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        indices = self.program(opened(block.index_map_jaxpr), self.grid)
        offset, kept = [], []
        for size, index, stride in zip(block.block_shape, indices, strides, strict=True):
            length = size if isinstance(size, int) else getattr(size, "block_size", None)
            if length is None:
                offset.append(f"tl.cast({index.text}, tl.int64) * {stride}")
            else:
                kept.append(stride)
                if index.text != "0":
                    offset.append(f"tl.cast({index.text}, tl.int64) * {length * stride}")
        begin = self.let(" + ".join([pointer, *offset]))
        return Reference(begin.text, tuple(kept))

    def program(self, jaxpr: Any, arguments: Sequence[Any]) -> list[Any]:
        """Writes a program's operations; its results."""
        known = dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom):
            if hasattr(atom, "val"):
                return Value(literal(atom.val), np.shape(atom.val))
            return known[atom]

        for equation in jaxpr.eqns:
            results = self.operation(equation, list(map(read, equation.invars)))
            known.update(zip(equation.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def operation(self, equation: Any, given: list[Any]) -> list[Any]:
        """Writes one operation; its results."""
        name, params = equation.primitive.name, equation.params
        shape = equation.outvars[0].aval.shape if equation.outvars else ()
        if name in FORMULAS:
            return [self.let(FORMULAS[name].format(*(x.text for x in given)), shape)]
        if name in INNER:
            return self.program(opened(params[INNER[name]]), given)
        write: Callable | None = getattr(self, f"_write_{name}", None)
        if write is None:
            raise NotImplementedError(f"{name} is not written in the Triton language yet")
        result = write(equation, *given)
        return result if isinstance(result, list) else [self.let(result, shape)]

    def _write_program_id(self, equation):
        return f"tl.program_id({equation.params['axis']})"

    def _write_num_programs(self, equation):
        return f"tl.num_programs({equation.params['axis']})"

    def _write_debug_barrier_p(self, equation):
        self.line("tl.debug_barrier()")
        return []

    def _write_div(self, equation, x, y):
        whole = np.issubdtype(equation.outvars[0].aval.dtype, np.integer)
        return f"{x.text} // {y.text}" if whole else f"{x.text} / {y.text}"

    def _write_integer_pow(self, equation, x):
        power = equation.params["y"]
        text = " * ".join([x.text] * abs(power)) or "1.0"
        return text if power >= 0 else f"1.0 / ({text})"

    def _write_convert_element_type(self, equation, x):
        return f"tl.cast({x.text}, {element(equation.params['new_dtype'])})"

    def _write_select_n(self, equation, which, off, on):
        return f"tl.where({which.text}, {on.text}, {off.text})"

    def _write_broadcast_in_dim(self, equation, x, *_):
        return self._spread(equation, x, equation.params["broadcast_dimensions"])

    def _write_broadcast_to(self, equation, x, *_):
        ndim = len(equation.outvars[0].aval.shape)
        return self._spread(equation, x, range(ndim - x.ndim, ndim))

    def _spread(self, equation, x, axes):
        """A number or an array repeated, whose axes become these."""
        shape, dtype = equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype
        if shape and not x.shape:
            return f"tl.full({list(shape)}, {x.text}, {element(dtype)})"
        return broadcast(along(x, axes, len(shape)), shape)

    def _write_reshape(self, equation, x):
        return reshaped(x, equation.outvars[0].aval.shape)

    _write_squeeze = _write_expand_dims = _write_reshape

    def _write_transpose(self, equation, x):
        assert equation.params["permutation"] == (1, 0)
        return f"tl.trans({x.text})"

    def _write_iota(self, equation, *_):
        params = equation.params
        shape, axis = params["shape"], params["dimension"]
        line = Value(f"tl.arange(0, {shape[axis]})", (shape[axis],))
        text = broadcast(along(line, (axis,), len(shape)), shape)
        return f"tl.cast({text}, {element(params['dtype'])})"

    def _reduce(self, equation, x, function):
        for axis in sorted(equation.params["axes"], reverse=True):
            x = self.let(f"{function}({x.text}, axis={axis})")
        return x.text

    def _write_reduce_sum(self, equation, x):
        return self._reduce(equation, x, "tl.sum")

    def _write_reduce_max(self, equation, x):
        return self._reduce(equation, x, "tl.max")

    def _write_reduce_min(self, equation, x):
        return self._reduce(equation, x, "tl.min")

    def _write_cumsum(self, equation, x):
        params = equation.params
        return f"tl.cumsum({x.text}, axis={params['axis']}, reverse={params['reverse']})"

    def _write_dot_general(self, equation, a, b):
        ((left,), (right,)), batch = equation.params["dimension_numbers"]
        assert batch == ((), ())
        a = f"tl.trans({a.text})" if left == 0 else a.text
        b = f"tl.trans({b.text})" if right == 1 else b.text
        exact = equation.invars[0].aval.dtype == np.float32
        return f"tl.dot({a}, {b}" + (', input_precision="ieee")' if exact else ")")

    def _pointers(self, reference: Reference, index: Any) -> Value:
        """Pointers to what an index selects."""
        arrays = [x for x in index.indices if isinstance(x, Value) and x.shape]
        lead = max((x.shape for x in arrays), key=len, default=())
        slices = [x for x in index.indices if not isinstance(x, Value | int)]
        shape = (*lead, *(x.size for x in slices))
        parts, axis = [reference.pointer], len(lead)
        for x, stride in zip(index.indices, reference.strides, strict=True):
            if isinstance(x, Value | int):
                x = x if isinstance(x, Value) else Value(str(x))
                text = along(x, range(len(x.shape)), len(shape)).text if x.shape else x.text
            else:
                start = x.start.text if isinstance(x.start, Value) else str(x.start)
                line = Value(f"tl.arange(0, {x.size})", (x.size,))
                text = along(line, (axis,), len(shape)).text
                text, axis = text if start == "0" else f"({start} + {text})", axis + 1
            parts.append(text if stride == 1 else f"{text} * {stride}")
        return Value(" + ".join(parts), shape)

    def _write_get(self, equation, reference, *index):
        indices = jax.tree.unflatten(equation.params["tree"], index)
        return self._load(equation, reference, indices, None, None)

    def _write_masked_load(self, equation, *args):
        reference, indices, mask, other = jax.tree.unflatten(equation.params["args_tree"], args)
        return self._load(equation, reference, indices, mask, other)

    def _load(self, equation, reference, indices, mask, other):
        pointers = self._pointers(reference, self._only(equation, indices))
        more = "" if mask is None else f", mask={mask.text}"
        more += "" if other is None else f", other={other.text}"
        return f"tl.load({pointers.text}{more})"

    def _write_swap(self, equation, reference, value, *index):
        indices = jax.tree.unflatten(equation.params["tree"], index)
        return self._store(equation, reference, indices, value, None)

    def _write_masked_swap(self, equation, *args):
        reference, indices, value, mask = jax.tree.unflatten(equation.params["args_tree"], args)
        return self._store(equation, reference, indices, value, mask)

    def _store(self, equation, reference, indices, value, mask):
        pointers = self._pointers(reference, self._only(equation, indices))
        more = "" if mask is None else f", mask={mask.text}"
        self.line(f"tl.store({pointers.text}, {value.text}{more})")
        return [None]  # nobody reads what was there before

    def _only(self, equation, indices) -> Any:
        """The index, where there is at most one."""
        if len(indices) > 1:
            raise NotImplementedError("an index of an index")
        whole = equation.invars[0].aval.shape
        return indices[0] if indices else Whole(tuple(Span(0, n) for n in whole))

    def _write_while(self, equation, *args):
        """Only loops over a range, as `fori_loop` traces them."""
        params = equation.params
        constants, (first, last, *carry) = split(args, params["body_nconsts"])
        body, count = opened(params["body_jaxpr"]), params["body_nconsts"]
        test = [e.primitive.name for e in opened(params["cond_jaxpr"]).eqns]
        if params["cond_nconsts"] or test != ["lt"] or body.invars[count + 1] != body.outvars[1]:
            raise NotImplementedError("a loop that is no fori_loop")

        def step(index, carry):
            return self.program(body, [*constants, index, last, *carry])[2:]

        return [last, last, *self._loop(first, last, carry, step)]

    def _write_scan(self, equation, *args):
        """Only loops over a range whose length is known, as `fori_loop` traces them."""
        params = equation.params
        if "ft_in" in params:  # jax 0.12
            count, kept, _ = (len(group) for group in params["ft_in"].unpack())
        else:
            count, kept = params["num_consts"], params["num_carry"]
        constants, carry = split(args, count)
        if len(carry) != kept or params["reverse"]:
            raise NotImplementedError("a scan over arrays")
        body, length = opened(params["jaxpr"]), Value(str(params["length"]))
        return self._loop(
            Value("0"), length, carry, lambda _, carry: self.program(body, [*constants, *carry])
        )

    def _loop(self, first, last, carry, step) -> list[Value]:
        """Steps of a loop from `first` to before `last`, and what they leave."""
        kept = [self.let(x.text, x.shape, f"c{next(self.names)}") for x in carry]
        index = f"i{next(self.names)}"
        self.line(f"for {index} in range({first.text}, {last.text}):")
        self.depth += 1
        results = step(Value(index), kept)
        for name, x in zip(kept, [self._settled(x, kept) for x in results], strict=True):
            if x.text != name.text:
                self.let(x.text, x.shape, name.text)
        self.line("pass")
        self.depth -= 1
        return kept

    def _settled(self, x: Value, kept: list[Value]) -> Value:
        """A value that later assignments to these names leave as it is."""
        return self.let(x.text, x.shape) if x in kept else x

    def _write_cond(self, equation, which, *args):
        off, on = equation.params["branches"]
        results = [f"b{next(self.names)}" for _ in equation.outvars]
        for test, branch in (("if {} != 0:", on), ("else:", off)):
            self.line(test.format(which.text))
            self.depth += 1
            for name, x in zip(results, self.program(opened(branch), args), strict=True):
                self.let(x.text, x.shape, name)
            self.depth -= 1
        return [Value(n, v.aval.shape) for n, v in zip(results, equation.outvars, strict=True)]


class Span(NamedTuple):
    """Numbers of one axis, one after the other."""

    start: int
    size: int


class Whole(NamedTuple):
    """An index that selects all."""

    indices: tuple[Span, ...]


def opened(jaxpr: Any) -> Any:
    """The program of a closed one; newer versions of JAX have no other kind."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def split(args: Sequence[Any], count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """The first ones, and the others."""
    return args[:count], args[count:]
