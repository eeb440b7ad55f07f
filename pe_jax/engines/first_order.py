"""Custom gradients are of first order, in reverse mode; others raise an error with the fix."""

from typing import Any

import jax

OTHERS = (
    "this engine has first-order gradients in reverse mode alone; for second derivatives and"
    " forward mode pass implementation='dense'"
)


@jax.custom_jvp
def first_order(tree: Any) -> Any:
    """The arrays unchanged; differentiating them raises TypeError."""
    return tree


@first_order.defjvp
def _refuse(primals, tangents):
    raise TypeError(OTHERS)


def call_in_reverse(f: Any, *args: Any) -> Any:
    """f(*args) of a `custom_vjp`; in forward mode (outside jit) a TypeError with the fix."""
    try:
        return f(*args)
    except TypeError as error:
        if "forward-mode" in str(error):
            raise TypeError(OTHERS) from None
        raise
