"""Which StableHLO operation works on the NPU in which type, found out by running one program for each.

`python -m conformance.jaxsupport --write` (under CANN, with JAX_PLATFORMS=npu,cpu) writes docs/design/xla_support.md.
Every program is the smallest JAX function that lowers to the operation, compared with JAX's CPU backend.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[1] / "docs" / "design" / "xla_support.md"
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_SHORT = {"bool": "i1", "bfloat16": "bf16"} | {
    f"{kind}{bits}": f"{letter}{bits}"
    for kind, letter in (("int", "i"), ("uint", "u"), ("float", "f"), ("complex", "c"))
    for bits in (8, 16, 32, 64, 128)
}
RIGHT, REFUSED, WRONG, UNDEFINED = "yes", "no", "WRONG", ""
# Relative; two good implementations differ by a few units in the last place.
_TOLERANCE = {
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float64": 1e-10,
    "complex128": 1e-10,
}


def programs() -> dict[str, Callable[..., Any]]:
    """By operation, a function of x [4, 6] and y [4, 6]. Values are small, distinct and not zero."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def cumulative(x: Any) -> Any:
        return lax.reduce_window(x, jnp.zeros((), x.dtype), lax.add, (2, 2), (1, 1), "SAME")

    def convolution(x: Any, y: Any) -> Any:
        return lax.conv(x.reshape(1, 2, 3, 4), y.reshape(4, 2, 3, 1)[:, :, :2], (1, 1), "SAME")

    def positive_definite(x: Any) -> Any:
        return jnp.matmul(x, x.T.conj(), precision="highest") + 40 * jnp.eye(4, dtype=x.dtype)

    unary = {
        "abs": lax.abs, "cbrt": lax.cbrt, "ceil": lax.ceil, "cosine": lax.cos, "count_leading_zeros": lax.clz,
        "exponential": lax.exp, "exponential_minus_one": lax.expm1, "floor": lax.floor, "imag": lax.imag,
        "is_finite": lax.is_finite, "log": lambda x: lax.log(lax.abs(x)),
        "log_plus_one": lambda x: lax.log1p(lax.abs(x)),
        "logistic": lax.logistic, "negate": lax.neg, "not": lax.bitwise_not, "popcnt": lax.population_count,
        "real": lax.real, "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        "rsqrt": lambda x: lax.rsqrt(lax.abs(x)), "sign": lax.sign, "sine": lax.sin,
        "sqrt": lambda x: lax.sqrt(lax.abs(x)), "tan": lax.tan, "tanh": lax.tanh,
        "chlo.acos": lambda x: lax.acos(x / 8), "chlo.asin": lambda x: lax.asin(x / 8), "chlo.atan": lax.atan,
        "chlo.acosh": lambda x: lax.acosh(1 + lax.abs(x)), "chlo.asinh": lax.asinh,
        "chlo.atanh": lambda x: lax.atanh(x / 8), "chlo.cosh": lax.cosh, "chlo.sinh": lax.sinh,
        "chlo.conj": lambda x: lax.conj(x), "chlo.erf": lax.erf, "chlo.erfc": lax.erfc,
        "chlo.erf_inv": lambda x: lax.erf_inv(x / 8), "chlo.lgamma": lambda x: lax.lgamma(lax.abs(x)),
        "chlo.digamma": lambda x: lax.digamma(lax.abs(x)), "chlo.bessel_i1e": lax.bessel_i1e, "chlo.square": lax.square,
    }  # fmt: skip
    binary = {
        "add": lax.add, "and": lax.bitwise_and, "atan2": lax.atan2, "compare": lax.lt, "complex": lax.complex,
        "divide": lax.div, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul, "or": lax.bitwise_or,
        "power": lambda x, y: lax.pow(lax.abs(x), y), "remainder": lax.rem, "shift_left": lax.shift_left,
        "shift_right_arithmetic": lax.shift_right_arithmetic, "shift_right_logical": lax.shift_right_logical,
        "subtract": lax.sub, "xor": lax.bitwise_xor, "chlo.next_after": lax.nextafter,
        "chlo.polygamma": lambda x, y: lax.polygamma(jnp.ones_like(x), lax.abs(y)),
        "chlo.zeta": lambda x, y: lax.zeta(lax.abs(x) + 1, lax.abs(y)),
    }  # fmt: skip
    others = {
        "bitcast_convert": lambda x, y: lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}"),
        "broadcast_in_dim": lambda x, y: jnp.broadcast_to(x[:, None], (4, 3, 6)),
        "case": lambda x, y: lax.switch(jnp.int32(x[0, 0] != y[0, 0]), [lambda a: a + a, lambda a: a * a], x),
        "clamp": lambda x, y: lax.clamp(lax.min(x, y), x, lax.max(x, y)),
        "concatenate": lambda x, y: jnp.concatenate([x, y], 1),
        "convert": lambda x, y: (x.astype("float32"), x.astype("int32"), x.astype("bool")),
        "convolution": convolution,
        "cholesky": lambda x, y: lax.linalg.cholesky(positive_definite(x), symmetrize_input=False),
        "dot_general": lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ())), precision="highest"),
        "dynamic_slice": lambda x, y: lax.dynamic_slice(x, (jnp.int32(2), jnp.int32(9)), (2, 3)),
        "dynamic_update_slice": lambda x, y: lax.dynamic_update_slice(x, y[:2, :3], (jnp.int32(3), jnp.int32(1))),
        "fft": lambda x, y: jnp.fft.fft(x),
        "gather": lambda x, y: x[jnp.array([3, 0, 9, -1]), jnp.array([[1], [5]])],
        "iota": lambda x, y: lax.broadcasted_iota(x.dtype, (4, 6), 1),
        "optimization_barrier": lambda x, y: lax.optimization_barrier((x, y)),
        "pad": lambda x, y: lax.pad(x, y[0, 0], ((1, -1, 2), (-2, 3, 0))),
        "reduce": lambda x, y: lax.reduce(x, x.dtype.type(0), lax.add if x.dtype != bool else lax.bitwise_or, (1,)),
        "reduce_precision": lambda x, y: lax.reduce_precision(x, 5, 3),
        "reduce_window": lambda x, y: cumulative(x),
        "reshape": lambda x, y: x.reshape(3, 8),
        "reverse": lambda x, y: lax.rev(x, (0, 1)),
        "rng_bit_generator": lambda x, y: lax.rng_bit_generator(jnp.arange(4, dtype="uint32"), (5,), x.dtype)[1],
        "scatter": lambda x, y: x.at[jnp.array([0, 3, 3, 9])].add(y),
        "select": lambda x, y: lax.select(jnp.arange(24).reshape(4, 6) % 3 == 0, x, y),
        "select_and_scatter": lambda x, y: jax.vjp(
            lambda a: lax.reduce_window(a, a.dtype.type(-jnp.inf), lax.max, (2, 2), (2, 2), "VALID"), x
        )[1](y[:2, :3])[0],
        "slice": lambda x, y: x[1:4:2, ::3],
        "sort": lambda x, y: lax.sort((x, y), num_keys=1),
        "transpose": lambda x, y: x.T,
        "triangular_solve": lambda x, y: lax.linalg.triangular_solve(
            positive_definite(x), y, left_side=True, lower=True
        ),
        "while": lambda x, y: lax.fori_loop(0, 3, lambda i, a: a + y, x),
        "chlo.top_k": lambda x, y: lax.top_k(x, 2),
    }  # fmt: skip
    return {name: (lambda x, y, f=f: f(x)) for name, f in unary.items()} | binary | others


def values(dtype: str) -> list[Any]:
    import ml_dtypes
    import numpy as np

    numbers = np.random.default_rng(0).permutation(np.arange(1, 49)).reshape(2, 4, 6)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool":
        return list(numbers % 2 == 0)
    if dtype.startswith(("int", "uint")):
        return list((numbers % 7 + 1 - (3.5 if dtype.startswith("i") else 0)).astype(kind))
    small = numbers / 12 - 2.04
    return list((small + 1j * small[::-1] if dtype.startswith("complex") else small).astype(kind))


def verdict(function: Callable[..., Any], dtype: str) -> tuple[str, str]:
    """(cell, why) for one program in one type."""
    import jax
    import numpy as np

    arguments = values(dtype)
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]
    except Exception as error:  # whatever JAX raises: the operation is not defined for the type
        return UNDEFINED, str(error)
    try:
        found = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]
    except jax.errors.JaxRuntimeError as error:
        return (REFUSED if "UNIMPLEMENTED" in str(error) else WRONG), str(error)
    for mine, theirs in zip(found, wanted, strict=True):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return WRONG, f"{mine.dtype}{mine.shape} instead of {theirs.dtype}{theirs.shape}"
        limit = _TOLERANCE.get(str(theirs.dtype), 0.0)
        exact = not np.issubdtype(theirs.dtype, np.inexact) and limit == 0
        wide = np.complex128 if np.issubdtype(theirs.dtype, np.complexfloating) else np.float64
        if exact and not np.array_equal(mine, theirs):
            return WRONG, f"{mine.tolist()} instead of {theirs.tolist()}"
        if not exact and not np.allclose(mine.astype(wide), theirs.astype(wide), limit, limit, equal_nan=True):
            return WRONG, f"{mine.tolist()} instead of {theirs.tolist()}"
    return RIGHT, ""


def table(
    types: Sequence[str] = TYPES, say: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, tuple[str, str]]]:
    """(cell, why) by operation and type."""
    made = {}
    for name, function in sorted(programs().items(), key=lambda item: item[0].removeprefix("chlo.")):
        made[name] = {dtype: verdict(function, dtype) for dtype in types}
        cells = (f"{_SHORT[dtype]}:{cell or '-'}" for dtype, (cell, _) in made[name].items())
        say(f"{name:<24}{' '.join(cells)}")
    return made


def markdown(found: dict[str, dict[str, tuple[str, str]]]) -> str:
    used = sum(cell != UNDEFINED for row in found.values() for cell, _ in row.values())
    right = sum(cell == RIGHT for row in found.values() for cell, _ in row.values())
    lines = [
        "# StableHLO operations on the NPU",
        "",
        "Written by `python -m conformance.jaxsupport --write`, which runs a small program for each cell on the",
        "emulated NPU (Atlas A3) and compares it with JAX's CPU backend. `yes`: the same numbers. `no`: refused at",
        "compile time, since the SoC has no kernel for the type. Empty: JAX does not define the operation for it.",
        "",
        f"{right} of {used} defined cells work.",
        "",
        f"| operation | {' | '.join(_SHORT[dtype] for dtype in TYPES)} |",
        "|---" * (len(TYPES) + 1) + "|",
    ]
    lines += [f"| {name} | {' | '.join(row[dtype][0] for dtype in TYPES)} |" for name, row in found.items()]
    return "\n".join(lines) + "\n"


def documented() -> dict[str, dict[str, str]]:
    """The cells of the document, by operation and type."""
    rows = [line.strip("|").split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return {row[0].strip(): dict(zip(TYPES, (cell.strip() for cell in row[1:]), strict=True)) for row in rows[2:]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.jaxsupport", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    parser.add_argument("--why", action="store_true", help="print why cells are not right")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"], os.environ["JAX_ENABLE_X64"] = "npu,cpu", "1"
    found = table(say=lambda line: print(line, flush=True))
    if options.why:
        for name, row in found.items():
            for dtype, (cell, why) in row.items():
                if cell in (REFUSED, WRONG):
                    print(f"{name} {dtype}: {cell}: {why[:300]}")
    if options.write:
        DOCUMENT.write_text(markdown(found), encoding="utf-8")
        print(DOCUMENT)
    return int(any(cell == WRONG for row in found.values() for cell, _ in row.values()))


if __name__ == "__main__":
    sys.exit(main())
