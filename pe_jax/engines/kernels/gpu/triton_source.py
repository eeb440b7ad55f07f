"""A Pallas kernel as source code in the Triton language, for the compiler of Triton's authors.

JAX's own lowering of Pallas to Triton is deprecated (0.11) and will go; Pallas itself stays, and
with it the kernels, their tests without a GPU, and the functions of terms that are traced into
them. `source` writes the program that a `pallas_call` traces, operation by operation. It supports
the operations that the kernels of this package use, and raises `NotImplementedError` for others.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
POINTERS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32", "bool": "i1"}
REDUCTIONS = {"reduce_sum": "tl.sum", "reduce_max": "tl.max", "reduce_min": "tl.min"}
INNER = {  # operations that are programs → the name of the program among their parameters
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}

TYPES = {  # of elements, in the Triton language
    "float32": "tl.float32",
    "bfloat16": "tl.bfloat16",
    "float16": "tl.float16",
    "int32": "tl.int32",
    "uint32": "tl.uint32",
    "int8": "tl.int8",
    "bool": "tl.int1",
}
FORMULAS = {  # operations that are one expression of their operands
    "add": "{0} + {1}",
    "add_any": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "rem": "{0} % {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "square": "{0} * {0}",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    # One instruction, within 2⁻²² of 1 or of the result, where `tl.log` is 30, for each pair.
    "log1p": "tl.extra.cuda.libdevice.fast_logf(1.0 + {0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tanh": "1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0)",
    "one_minus_square": "1.0 - {0} * {0}",
    "logistic": "1.0 / (1.0 + tl.exp(-{0}))",
    "pow": "tl.exp2({1} * tl.extra.cuda.libdevice.fast_log2f({0}))",
    "floor": "tl.floor({0})",
    "sign": "tl.where({0} > 0, 1, 0) - tl.where({0} < 0, 1, 0)",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "{0} == 0",
    "clamp": "tl.minimum(tl.maximum({1}, {0}), {2})",
    "copy": "{0}",
    "stop_gradient": "{0}",
}


class Value(NamedTuple):
    """An expression, and the shape of what it gives."""

    text: str
    shape: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        """Number of axes, which JAX's own classes of indices read."""
        return len(self.shape)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A block of an array in memory: where it begins, and the strides of its axes."""

    pointer: str
    strides: tuple[int, ...]


class Kernel(NamedTuple):
    """A kernel in the Triton language."""

    name: str  # of the function
    text: str  # its source
    # the types of its arguments, inputs and then outputs, as signatures have them
    pointers: tuple[str, ...]
    grid: tuple[int, ...]  # how many programs along each axis


def source(params: dict[str, Any], name: str) -> Kernel:
    """The kernel of a `pallas_call`, by the parameters of its equation.

    Raises:
      NotImplementedError: an operation that is not supported.
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
    """Writes programs line by line, with names of its choice."""

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
        offset, kept_strides = [], []
        for size, index, stride in zip(block.block_shape, indices, strides, strict=True):
            length = size if isinstance(size, int) else getattr(size, "block_size", None)
            if length is None:
                offset.append(f"tl.cast({index.text}, tl.int64) * {stride}")
            else:
                kept_strides.append(stride)
                if index.text != "0":
                    offset.append(f"tl.cast({index.text}, tl.int64) * {length * stride}")
        begin = self.let(" + ".join([pointer, *offset]))
        return Reference(begin.text, tuple(kept_strides))

    def program(self, jaxpr: Any, arguments: Sequence[Any]) -> list[Any]:
        """Writes a program's operations; returns its results."""
        values = dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom):
            if hasattr(atom, "val"):
                return Value(literal(atom.val), np.shape(atom.val))
            return values[atom]

        for equation in jaxpr.eqns:
            results = self.operation(equation, list(map(read, equation.invars)))
            values.update(zip(equation.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def operation(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Writes one operation; returns its results."""
        name, params = equation.primitive.name, equation.params
        shape = equation.outvars[0].aval.shape if equation.outvars else ()
        if name in FORMULAS:
            return [self.let(FORMULAS[name].format(*(x.text for x in operands)), shape)]
        if name in INNER:
            return self.program(opened(params[INNER[name]]), operands)
        if name in REDUCTIONS:
            for axis in sorted(params["axes"], reverse=True):
                operands = [self.let(f"{REDUCTIONS[name]}({operands[0].text}, axis={axis})")]
            return [self.let(operands[0].text, shape)]
        write: Callable | None = getattr(self, f"_write_{name}", None)
        if write is None:
            raise NotImplementedError(f"{name} is not written in the Triton language yet")
        result = write(equation, *operands)
        return result if isinstance(result, list) else [self.let(result, shape)]

    def _write_program_id(self, equation):
        return f"tl.program_id({equation.params['axis']})"

    def _write_num_programs(self, equation):
        return f"tl.num_programs({equation.params['axis']})"

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
        """A number or an array, whose axes become these, repeated along the others."""
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

    def _write_get(self, equation, reference, *index):
        indices = jax.tree.unflatten(equation.params["tree"], index)
        return f"tl.load({self._pointers(reference, indices)})"

    def _write_swap(self, equation, reference, value, *index):
        indices = jax.tree.unflatten(equation.params["tree"], index)
        self.line(f"tl.store({self._pointers(reference, indices)}, {value.text})")
        return [None]  # nobody reads what was there before

    def _write_masked_swap(self, equation, *args):
        reference, indices, value, mask = jax.tree.unflatten(equation.params["args_tree"], args)
        pointers = self._pointers(reference, indices)
        self.line(f"tl.store({pointers}, {value.text}, mask={mask.text})")
        return [None]

    def _pointers(self, reference: Reference, indices: Sequence[Any]) -> str:
        """Pointers to the elements that an index selects."""
        if len(indices) != 1:
            raise NotImplementedError("not one index")
        (index,) = indices
        arrays = [x for x in index.indices if isinstance(x, Value) and x.shape]
        lead = max((x.shape for x in arrays), key=len, default=())
        slices = [x for x in index.indices if not isinstance(x, Value | int)]
        ndim = len(lead) + len(slices)
        offsets, axis = [reference.pointer], len(lead)
        for x, stride in zip(index.indices, reference.strides, strict=True):
            if isinstance(x, Value | int):
                x = x if isinstance(x, Value) else Value(str(x))
                text = along(x, range(len(x.shape)), ndim).text if x.shape else x.text
            else:
                start = x.start.text if isinstance(x.start, Value) else str(x.start)
                text = along(Value(f"tl.arange(0, {x.size})", (x.size,)), (axis,), ndim).text
                text, axis = text if start == "0" else f"({start} + {text})", axis + 1
            offsets.append(text if stride == 1 else f"{text} * {stride}")
        return " + ".join(offsets)

    def _write_while(self, equation, *args):
        """Only loops over a range, as `fori_loop` traces them."""
        params = equation.params
        body, count = opened(params["body_jaxpr"]), params["body_nconsts"]
        constants, (first, last, *carry) = args[:count], args[count:]
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
            num_consts, num_carry, _ = (len(group) for group in params["ft_in"].unpack())
        else:
            num_consts, num_carry = params["num_consts"], params["num_carry"]
        constants, carry = args[:num_consts], args[num_consts:]
        if len(carry) != num_carry or params["reverse"]:
            raise NotImplementedError("a scan over arrays")
        body, length = opened(params["jaxpr"]), Value(str(params["length"]))
        return self._loop(
            Value("0"), length, carry, lambda _, carry: self.program(body, [*constants, *carry])
        )

    def _loop(self, first, last, carry, step) -> list[Value]:
        """Writes a loop from `first` to before `last`; returns the carry after it."""
        carried = [self.let(x.text, x.shape, f"c{next(self.names)}") for x in carry]
        index = f"i{next(self.names)}"
        self.line(f"for {index} in range({first.text}, {last.text}):")
        self.depth += 1
        results = step(Value(index), carried)
        # A result that is one of the names must last until all of them are assigned.
        results = [self.let(x.text, x.shape) if x in carried else x for x in results]
        for name, x in zip(carried, results, strict=True):
            if x.text != name.text:
                self.let(x.text, x.shape, name.text)
        self.line("pass")
        self.depth -= 1
        return carried

    def _write_platform_index(self, equation):
        return str(equation.params["platforms"].index(None))

    def _write_cond(self, equation, which, *args):
        if platforms := equation.params.get("branches_platforms"):  # GPUs have what has no name
            branch = equation.params["branches"][platforms.index(None)]
            return self.program(opened(branch), args)
        off, on = equation.params["branches"]
        results = [f"b{next(self.names)}" for _ in equation.outvars]
        for test, branch in (("if {} != 0:", on), ("else:", off)):
            self.line(test.format(which.text))
            self.depth += 1
            if not opened(branch).eqns and not results:
                self.line("pass")
            for name, x in zip(results, self.program(opened(branch), args), strict=True):
                self.let(x.text, x.shape, name)
            self.depth -= 1
        return [Value(n, v.aval.shape) for n, v in zip(results, equation.outvars, strict=True)]


def opened(jaxpr: Any) -> Any:
    """The jaxpr of a closed jaxpr; newer versions of JAX have only one kind."""
    return getattr(jaxpr, "jaxpr", jaxpr)


# Expressions of the Triton language.


def element(dtype: Any) -> str:
    """The name of a type."""
    return TYPES[str(np.dtype(dtype))]


def literal(x: Any) -> str:
    """A number as Python writes it."""
    x = np.asarray(x).item()
    if isinstance(x, float) and not math.isfinite(x):
        return f"float({str(x)!r})"
    return f"({x!r})" if isinstance(x, int | float) and x < 0 else repr(x)


def along(x: Value, axes: Sequence[int], ndim: int) -> Value:
    """An array whose axes become these of `ndim`; the others have length 1."""
    axes = tuple(axes)
    if len(x.shape) == ndim:
        return x
    index = ", ".join(":" if axis in axes else "None" for axis in range(ndim))
    shape = tuple(x.shape[axes.index(axis)] if axis in axes else 1 for axis in range(ndim))
    return Value(f"{x.text}[{index}]", shape)


def broadcast(x: Value, shape: Sequence[int]) -> str:
    """An array repeated along axes of length 1."""
    return x.text if x.shape == tuple(shape) else f"tl.broadcast_to({x.text}, {list(shape)})"


def reshaped(x: Value, shape: Sequence[int]) -> str:
    """An array in another shape of the same size."""
    if x.shape == tuple(shape):
        return x.text
    if not shape:
        return f"tl.sum({x.text})" if len(x.shape) == 1 else f"tl.sum(tl.reshape({x.text}, [1]))"
    if not x.shape:
        return f"tl.reshape({x.text}, {list(shape)})"
    ones = [axis for axis, n in enumerate(shape) if n == 1]
    if len(shape) == len(x.shape) + 1 and len(ones) >= 1:
        axes = [axis for axis in range(len(shape)) if axis != ones[-1 if x.shape[-1] != 1 else 0]]
        if tuple(shape[axis] for axis in axes) == x.shape:
            return along(x, axes, len(shape)).text
    return f"tl.reshape({x.text}, {list(shape)})"
