"""Arithmetic, comparisons, bits and conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xla_npu.compiler import narrow
from xla_npu.compiler.attributes import integer, tensor_type, word
from xla_npu.compiler.dtypes import BOOL, F32, I32, SIGNED, TYPES, UNSIGNED, ElementType
from xla_npu.compiler.errors import NeedsExpansion, Unsupported
from xla_npu.compiler.lowering import Lowering, rule
from xla_npu.compiler.tensor import Tensor

# Operations that are one operator of GE on real types.
UNARY = {
    "stablehlo.exponential": "Exp",
    "stablehlo.log": "Log",
    "stablehlo.sqrt": "Sqrt",
    "stablehlo.sine": "Sin",
    "stablehlo.cosine": "Cos",
    "stablehlo.logistic": "Sigmoid",
    "stablehlo.floor": "Floor",
    "stablehlo.ceil": "Ceil",
    "stablehlo.round_nearest_even": "Rint",
    "chlo.acos": "Acos",
    "chlo.acosh": "Acosh",
    "chlo.asin": "Asin",
    "chlo.asinh": "Asinh",
    "chlo.atan": "Atan",
    "chlo.atanh": "Atanh",
    "chlo.cosh": "Cosh",
    "chlo.sinh": "Sinh",
    "chlo.erf": "Erf",
    "chlo.erfc": "Erfc",
}
# Operations that are one method of the builder.
METHODS: dict[str, Callable[..., Tensor]] = {
    "stablehlo.add": Lowering.add,
    "stablehlo.subtract": Lowering.subtract,
    "stablehlo.multiply": Lowering.multiply,
    "stablehlo.negate": Lowering.negate,
    "stablehlo.and": Lowering.and_,
    "stablehlo.or": Lowering.or_,
    "stablehlo.xor": Lowering.xor,
    "stablehlo.not": Lowering.not_,
    "stablehlo.maximum": Lowering.maximum,
    "stablehlo.minimum": Lowering.minimum,
    "stablehlo.shift_left": Lowering.shift_left,
    "stablehlo.shift_right_arithmetic": Lowering.shift_right_arithmetic,
    "stablehlo.shift_right_logical": Lowering.shift_right_logical,
}


def _emulated(function: Callable[..., Any]) -> Callable[..., Any]:
    """4-bit integers and float8: computed in a wider type, rounded once."""

    def apply(b: Lowering, op: Any, *operands: Tensor) -> Tensor:
        kind = next((t.type for t in operands if t.type.emulated), None)
        if kind is None:
            return function(b, op, *operands)
        result = function(b, op, *[narrow.widen(b, t) if t.type.emulated else t for t in operands])
        return result if result.type == BOOL else narrow.narrow(b, result, kind)

    return apply


def elementwise(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `rule`, for operations that also have to work on types that GE does not have."""
    return lambda function: rule(*names)(_emulated(function))


def _unary(kind: str) -> Callable[..., Tensor]:
    def apply(b: Lowering, op: Any, x: Tensor) -> Tensor:
        if x.type.kind != "float":
            raise NeedsExpansion(f"no lowering for element type {x.type.name}")
        return b.unary(kind, x)

    return apply


def _method(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda b, op, *operands: method(b, *operands)


for _name, _kind in UNARY.items():
    elementwise(_name)(_unary(_kind))
for _name, _function in METHODS.items():
    elementwise(_name)(_method(_function))


@elementwise("stablehlo.abs")
def abs_(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind == "uint":
        return x
    if x.type.kind == "complex":
        return hypot(b, b.real(x), b.imag(x))
    return b.unary("Abs", x)


def hypot(b: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x*x + y*y) without overflow; infinite when either is."""
    x, y = b.unary("Abs", x), b.unary("Abs", y)
    large, small = b.maximum(x, y), b.minimum(x, y)
    infinity = b.scalar(np.inf, x)
    infinite = b.or_(b.compare(x, infinity, "EQ"), b.compare(y, infinity, "EQ"))
    zero = b.compare(large, b.scalar(0, x), "EQ")
    ratio = b.binary("RealDiv", small, b.select(zero, b.scalar(1, x), large))
    length = b.multiply(large, b.unary("Sqrt", b.add(b.scalar(1, x), b.multiply(ratio, ratio))))
    return b.select(infinite, infinity, length)


@elementwise("stablehlo.sign")
def sign(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind == "uint":
        return b.convert(b.compare(x, b.scalar(0, x), "NE"), x.type)
    if x.type.kind == "complex":
        length = hypot(b, b.real(x), b.imag(x))
        zero = b.compare(length, b.scalar(0, length), "EQ")
        divisor = b.select(zero, b.scalar(1, length), length)
        return b.complex(b.binary("RealDiv", b.real(x), divisor), b.binary("RealDiv", b.imag(x), divisor), x.type)
    result = b.unary("Sign", x)
    if x.type.kind == "int":
        return result
    kept = b.or_(b.is_nan(x), b.compare(x, b.scalar(0, x), "EQ"))  # keeps the sign of zero and NaN
    return b.select(kept, x, result)


@elementwise("stablehlo.rsqrt")
def rsqrt(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind != "complex":
        return b.unary("Rsqrt", x)
    real, imag = b.real(x), b.imag(x)
    length = hypot(b, real, imag)
    half = b.scalar(0.5, real)
    # The root's larger part comes from |z| + |real|, without cancellation; the other one from their product.
    large = b.unary("Sqrt", b.multiply(half, b.add(length, b.unary("Abs", real))))
    small = b.binary("RealDiv", b.multiply(half, b.unary("Abs", imag)), large)
    right = b.compare(real, b.scalar(0, real), "GE")
    root_real, root_imag = b.select(right, large, small), b.select(right, small, large)
    root_imag = b.select(b.compare(imag, b.scalar(0, imag), "LT"), root_imag, b.negate(root_imag))
    return b.complex(b.binary("RealDiv", root_real, length), b.binary("RealDiv", root_imag, length), x.type)


@elementwise("stablehlo.exponential_minus_one")
def expm1(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind != "complex":
        return b.unary("Expm1", x)
    real, imag = b.real(x), b.imag(x)
    half = b.unary("Sin", b.multiply(imag, b.scalar(0.5, imag)))
    loss = b.multiply(b.scalar(2, half), b.multiply(half, half))  # 1 - cos(imag), without cancellation
    grown = b.multiply(b.unary("Expm1", real), b.unary("Cos", imag))
    turned = b.multiply(b.unary("Exp", real), b.unary("Sin", imag))
    zero = b.scalar(0, imag)
    return b.complex(b.subtract(grown, loss), b.select(b.compare(imag, zero, "EQ"), imag, turned), x.type)


@elementwise("stablehlo.log_plus_one")
def log1p(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind != "complex":
        return b.unary("Log1p", x)
    real, imag = b.real(x), b.imag(x)
    one, two = b.scalar(1, real), b.scalar(2, real)
    # Near 1 log|1 + z| is log1p of |1 + z|^2 - 1, halved; elsewhere the length itself.
    excess = b.add(b.multiply(real, b.add(two, real)), b.multiply(imag, imag))
    near = b.compare(b.unary("Abs", excess), b.scalar(0.5, real), "LT")
    small = b.multiply(b.scalar(0.5, real), b.unary("Log1p", b.select(near, excess, b.scalar(0, real))))
    size = b.select(near, small, b.unary("Log", hypot(b, b.add(one, real), imag)))
    return b.complex(size, b.binary("Atan2", imag, b.add(one, real)), x.type)


@elementwise("stablehlo.tanh", "chlo.tanh")
def tanh(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.unary("Tanh", x) if x.type.kind != "complex" else b.complex(*_tanh(b, b.real(x), b.imag(x)), x.type)


@elementwise("stablehlo.tan", "chlo.tan")
def tan(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind != "complex":
        return b.unary("Tan", x)
    imag, real = _tanh(b, b.imag(x), b.real(x))  # tan(a + ib) = -i tanh(-b + ia), with both parts odd
    return b.complex(real, imag, x.type)


def _tanh(b: Lowering, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Kahan's form of tanh(x + iy)."""
    one = b.scalar(1, x)
    tangent = b.unary("Tan", y)
    beta = b.add(one, b.multiply(tangent, tangent))
    far = b.compare(b.unary("Abs", x), b.scalar(10, x), "GT")
    hyperbolic = b.unary("Sinh", b.select(far, b.scalar(0, x), x))
    square = b.multiply(hyperbolic, hyperbolic)
    below = b.add(one, b.multiply(beta, square))
    root = b.unary("Sqrt", b.add(one, square))
    real = b.binary("RealDiv", b.multiply(b.multiply(beta, root), hyperbolic), below)
    imag = b.binary("RealDiv", tangent, below)
    size = b.unary("Exp", b.multiply(b.scalar(-2, x), b.unary("Abs", x)))
    faint = b.multiply(b.multiply(b.unary("Sin", y), b.unary("Cos", y)), b.multiply(b.scalar(4, x), size))
    # Without a limit in y there is none, but for infinite x: nothing is left of y there.
    endless = b.compare(b.unary("Abs", x), b.scalar(np.inf, x), "EQ")
    lost = b.subtract(y, y)  # zero or NaN
    near_one = b.select(endless, b.unary("Sign", x), b.add(b.unary("Sign", x), lost))
    faint = b.select(b.and_(endless, b.is_nan(lost)), b.scalar(0, x), faint)
    return b.select(far, near_one, real), b.select(far, faint, imag)


@elementwise("stablehlo.cbrt")
def cbrt(b: Lowering, op: Any, x: Tensor) -> Tensor:
    if x.type.kind == "complex":
        raise NeedsExpansion("no lowering for complex operands")
    if x.type.bits == 16:
        return b.convert(cbrt(b, op, b.convert(x, F32)), x.type)
    size = b.unary("Abs", x)
    root = b.binary("Pow", size, b.scalar(1 / 3, x))
    square = b.multiply(root, root)
    # One Newton step, since 1/3 is not a float.
    step = b.binary("RealDiv", b.subtract(b.multiply(square, root), size), b.multiply(b.scalar(3, x), square))
    root = b.subtract(root, step)
    root = b.select(b.compare(x, b.scalar(0, x), "LT"), b.negate(root), root)
    special = b.or_(b.compare(size, b.scalar(0, x), "EQ"), b.compare(size, b.scalar(np.inf, x), "EQ"))
    return b.select(special, x, root)


@elementwise("stablehlo.round_nearest_afz")
def round_away(b: Lowering, op: Any, x: Tensor) -> Tensor:
    size = b.unary("Abs", x)
    floor = b.unary("Floor", size)
    up = b.compare(b.subtract(size, floor), b.scalar(0.5, x), "GE")
    rounded = b.select(up, b.add(floor, b.scalar(1, x)), floor)
    negative = b.compare(x, b.scalar(0, x), "LT")
    return b.select(b.compare(size, floor, "EQ"), x, b.select(negative, b.negate(rounded), rounded))


@elementwise("stablehlo.is_finite")
def is_finite(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b._logical("IsFinite", x)


@elementwise("chlo.is_inf")
def is_inf(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b._logical("IsInf", x)


@elementwise("chlo.square")
def square(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.multiply(x, x)


@elementwise("chlo.conj")
def conj(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return x if x.type.kind != "complex" else b.complex(b.real(x), b.negate(b.imag(x)), x.type)


@elementwise("stablehlo.atan2")
def atan2(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.type.kind != "complex":
        return b.binary("Atan2", x, y)
    # -i log((y + ix) / sqrt(x^2 + y^2))
    point = b.complex(b.subtract(b.real(y), b.imag(x)), b.add(b.imag(y), b.real(x)), x.type)
    turned = b.multiply(point, rsqrt(b, op, b.add(b.multiply(x, x), b.multiply(y, y))))
    angle = b.binary("Atan2", b.imag(turned), b.real(turned))
    return b.complex(angle, b.negate(b.unary("Log", hypot(b, b.real(turned), b.imag(turned)))), x.type)


@elementwise("stablehlo.divide")
def divide(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.type.kind == "complex":
        return complex_divide(b, x, y)
    if x.type.kind == "float":
        return b.binary("RealDiv", x, y)
    return integer_divide(b, x, y)[0]


@elementwise("stablehlo.remainder")
def remainder(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.type.kind == "float":
        if x.type.bits == 16:
            return b.convert(remainder(b, op, b.convert(x, F32), b.convert(y, F32)), x.type)
        result = b.binary("TruncateMod", x, y)
        infinite = b.compare(b.unary("Abs", y), b.scalar(np.inf, y), "EQ")
        kept = b.and_(infinite, b._logical("IsFinite", x))
        result = b.select(kept, x, result)
        # A zero result has the sign of the dividend.
        zero = b.compare(result, b.scalar(0, x), "EQ")
        negative = b.and_(zero, b.compare(x, b.scalar(0, x), "LT"))
        return b.select(negative, b.scalar(-0.0, x), result)
    return integer_divide(b, x, y)[1]


def integer_divide(b: Lowering, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and remainder as XLA defines them: x / 0 is -1, x % 0 is x; the most negative number / -1 is itself."""
    kind = x.type
    if kind.kind == "uint" and kind.storage != "u8":
        if kind.bits == 64:
            return _uint64_divide(b, x, y)
        quotient, rest = integer_divide(b, b.zero_extend(x), b.zero_extend(y))
        zero = b.compare(y, b.scalar(0, y), "EQ")
        return b.select(zero, b.constant(np.iinfo(kind.numpy).max, kind, x.shape), b.convert(quotient, kind)), b.select(
            zero, x, b.convert(rest, kind)
        )
    if x.type.bits == 16:  # TruncateMod has no int16
        quotient, rest = integer_divide(b, b.convert(x, I32), b.convert(y, I32))
        return b.convert(quotient, kind), b.convert(rest, kind)
    one, zero = b.scalar(1, y), b.scalar(0, y)
    by_zero = b.compare(y, zero, "EQ")
    known = y.constant
    if known is not None and (known != 0).all() and (kind.kind == "uint" or (known != -1).all()):
        return b.binary("TruncateDiv", x, y), b.binary("TruncateMod", x, y)
    if kind.kind == "uint":
        safe = b.select(by_zero, one, y)
        quotient = b.select(by_zero, b.scalar(255, x), b.binary("TruncateDiv", x, safe))
        return quotient, b.select(by_zero, x, b.binary("TruncateMod", x, safe))
    minus_one = b.scalar(-1, y)
    by_minus_one = b.compare(y, minus_one, "EQ")
    safe = b.select(b.or_(by_zero, by_minus_one), one, y)
    quotient = b.select(by_minus_one, b.subtract(zero, x), b.binary("TruncateDiv", x, safe))
    rest = b.select(by_minus_one, zero, b.binary("TruncateMod", x, safe))
    return b.select(by_zero, minus_one, quotient), b.select(by_zero, x, rest)


def _uint64_divide(b: Lowering, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Through signed division of half the dividend, one step of correction after it."""
    signed_x, signed_y = b.as_signed(x), b.as_signed(y)
    one, zero = b.scalar(1, signed_x), b.scalar(0, signed_x)
    large = b.compare(signed_y, zero, "LT")  # 2^63 or more: the quotient is 0 or 1
    by_zero = b.compare(signed_y, zero, "EQ")
    safe = b.select(b.or_(large, by_zero), one, signed_y)
    half = b.as_signed(b.shift_right_logical(x, b.scalar(1, x)))
    quotient = b.shift_left(b.binary("TruncateDiv", half, safe), one)
    rest = b.subtract(signed_x, b.multiply(quotient, safe))
    more = b.compare(Tensor(x.type, x.shape, rest.parts), Tensor(x.type, x.shape, safe.parts), "GE")
    quotient = b.select(more, b.add(quotient, one), quotient)
    above = b.compare(x, y, "GE")
    quotient = b.select(large, b.select(above, one, zero), quotient)
    quotient = b.select(by_zero, b.scalar(-1, signed_x), quotient)
    rest = b.select(by_zero, signed_x, b.subtract(signed_x, b.multiply(quotient, signed_y)))
    return Tensor(x.type, x.shape, quotient.parts), Tensor(x.type, x.shape, rest.parts)


def complex_divide(b: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """Smith's method: no overflow where the result is finite."""
    (a, i), (c, d) = (b.real(x), b.imag(x)), (b.real(y), b.imag(y))
    div = lambda p, q: b.binary("RealDiv", p, q)  # noqa: E731
    swap = b.compare(b.unary("Abs", c), b.unary("Abs", d), "LT")
    # With |c| < |d|, divide (a + ib) / (c + id) as (b - ia) / (d - ic).
    p, q = b.select(swap, i, a), b.select(swap, b.negate(a), i)
    r, s = b.select(swap, d, c), b.select(swap, b.negate(c), d)
    ratio = div(s, r)
    zero = b.scalar(0, c)
    ratio = b.select(b.compare(s, zero, "EQ"), zero, ratio)
    below = b.add(r, b.multiply(s, ratio))
    real = div(b.add(p, b.multiply(q, ratio)), below)
    imag = div(b.subtract(q, b.multiply(p, ratio)), below)
    # An infinite divisor of a finite number gives zero.
    infinite = b.or_(b._logical("IsInf", c), b._logical("IsInf", d))
    finite = b.and_(infinite, b.and_(b._logical("IsFinite", a), b._logical("IsFinite", i)))
    return b.complex(b.select(finite, zero, real), b.select(finite, zero, imag), x.type)


@elementwise("stablehlo.power")
def power(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    if x.type.kind == "float":
        return b.binary("Pow", x, y)
    if x.type.kind == "complex":
        return _complex_power(b, x, y)
    # Repeated squaring; a negative exponent leaves 1, -1 or 0.
    one = b.scalar(1, x)
    result, base, exponent = one, x, y
    for _ in range(x.type.bits if x.type.kind == "uint" else x.type.bits - 1):
        odd = b.compare(b.and_(exponent, one), one, "EQ")
        result = b.select(odd, b.multiply(result, base), result)
        base = b.multiply(base, base)
        exponent = b.shift_right_logical(exponent, one)
    if x.type.kind == "uint":
        return result
    minus_one, zero = b.scalar(-1, x), b.scalar(0, x)
    odd = b.compare(b.and_(y, one), one, "EQ")
    inverse = b.select(b.compare(x, minus_one, "EQ"), b.select(odd, minus_one, one), zero)
    inverse = b.select(b.compare(x, one, "EQ"), one, inverse)
    return b.select(b.compare(y, zero, "LT"), inverse, result)


def _complex_power(b: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """exp(y log x), with 0^0 = 1 and 0^y = 0."""
    c, d = b.real(y), b.imag(y)
    zero, one = b.scalar(0, c), b.scalar(1, c)
    length = hypot(b, b.real(x), b.imag(x))
    nothing = b.compare(length, zero, "EQ")
    log = b.unary("Log", b.select(nothing, one, length))
    angle = b.binary("Atan2", b.imag(x), b.real(x))
    size = b.multiply(
        b.binary("Pow", b.select(nothing, one, length), c), b.unary("Exp", b.negate(b.multiply(d, angle)))
    )
    turn = b.add(b.multiply(d, log), b.multiply(c, angle))
    real, imag = b.multiply(size, b.unary("Cos", turn)), b.multiply(size, b.unary("Sin", turn))
    plain = b.and_(b.compare(c, zero, "EQ"), b.compare(d, zero, "EQ"))
    at_zero = b.select(plain, one, zero)
    return b.complex(b.select(nothing, at_zero, real), b.select(nothing, zero, imag), x.type)


@elementwise("stablehlo.clamp")
def clamp(b: Lowering, op: Any, low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    return b.clamp(x, b.broadcast_scalar(low, x.shape), b.broadcast_scalar(high, x.shape))


@rule("stablehlo.select")
def select(b: Lowering, op: Any, predicate: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return b.select(b.broadcast_scalar(predicate, x.shape), x, y)


@elementwise("stablehlo.compare")
def compare(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    direction = word(op, "comparison_direction")
    if word(op, "compare_type") == "TOTALORDER" and x.type.kind == "float":
        x, y = total_order(b, x), total_order(b, y)
    if x.type.kind == "bool" and direction not in ("EQ", "NE"):
        x, y = b.convert(x, I32), b.convert(y, I32)
    return b.compare(x, y, direction)


def total_order(b: Lowering, x: Tensor) -> Tensor:
    """Floats as integers in IEEE's total order: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    if x.type.bits < 32:
        x = b.convert(x, F32)
    kind = SIGNED[x.type.bits]
    bits = Tensor(kind, x.shape, (b.bitcast_value(x.value, kind.storage),))
    sign = b.shift_right_arithmetic(bits, b.scalar(x.type.bits - 1, bits))
    return b.xor(bits, b.and_(sign, b.scalar(np.iinfo(kind.numpy).max, bits)))


@rule("stablehlo.convert")
def convert(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.convert(x, tensor_type(op.results[0])[0])


@rule("stablehlo.real")
def real(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.real(x) if x.type.kind == "complex" else x


@rule("stablehlo.imag")
def imag(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.imag(x)


@rule("stablehlo.complex")
def complex_(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    return b.complex(x, y, tensor_type(op.results[0])[0])


@elementwise("stablehlo.popcnt")
def popcnt(b: Lowering, op: Any, x: Tensor) -> Tensor:
    return b.convert(_count_ones(b, *_wide_unsigned(b, x)), x.type)


def _wide_unsigned(b: Lowering, x: Tensor) -> tuple[Tensor, int]:
    """The bits of `x` in an unsigned type of 32 or 64 bits, and how many of them are its own."""
    wide = UNSIGNED[64 if x.type.bits == 64 else 32]
    if x.type.bits >= 32:
        return Tensor(wide, x.shape, x.parts), x.type.bits
    signed = b.convert(x, I32)
    return Tensor(wide, x.shape, b.and_(signed, b.scalar(2**x.type.bits - 1, signed)).parts), x.type.bits


def _count_ones(b: Lowering, x: Tensor, bits: int) -> Tensor:
    repeat = lambda byte: b.scalar(int(f"0x{byte * (x.type.bits // 8)}", 16), x)  # noqa: E731
    shift = lambda t, n: b.shift_right_logical(t, b.scalar(n, t))  # noqa: E731
    x = b.subtract(x, b.and_(shift(x, 1), repeat("55")))
    x = b.add(b.and_(x, repeat("33")), b.and_(shift(x, 2), repeat("33")))
    x = b.and_(b.add(x, shift(x, 4)), repeat("0f"))
    return shift(b.multiply(x, repeat("01")), x.type.bits - 8)


@elementwise("stablehlo.count_leading_zeros")
def count_leading_zeros(b: Lowering, op: Any, x: Tensor) -> Tensor:
    wide, bits = _wide_unsigned(b, x)
    step = 1
    while step < bits:
        wide = b.or_(wide, b.shift_right_logical(wide, b.scalar(step, wide)))
        step *= 2
    count = b.subtract(b.scalar(bits, wide), _count_ones(b, wide, bits))
    return b.convert(count, x.type)


@rule("stablehlo.bitcast_convert")
def bitcast_convert(b: Lowering, op: Any, x: Tensor) -> Tensor:
    kind, shape = tensor_type(op.results[0])
    if x.type.kind == "complex" or kind.kind == "complex":
        raise Unsupported("no lowering for complex operands")
    if x.type.bits == kind.bits:
        return Tensor(kind, shape, (_reinterpret(b, x, kind),))
    if min(x.type.bits, kind.bits) < 8:
        return _regroup(b, x, kind, shape)
    whole = b.full(x)
    bits = Tensor(UNSIGNED[x.type.bits], x.shape, (_reinterpret(b, whole, UNSIGNED[x.type.bits]),))
    narrow_bits = min(x.type.bits, kind.bits)
    count = max(x.type.bits, kind.bits) // narrow_bits
    if x.type.bits > kind.bits:
        wide = b.broadcast_in_dim(bits, (*x.shape, count), range(x.rank))
        shifts = b.constant(np.arange(count) * narrow_bits, wide.type)
        shifts = b.broadcast(shifts, wide.shape)
        parts = b.convert(b.shift_right_logical(wide, shifts), UNSIGNED[kind.bits])
        return Tensor(kind, shape, (_reinterpret(b, parts, kind),))
    wide = b.convert(bits, UNSIGNED[kind.bits])
    shifts = b.broadcast(b.constant(np.arange(count) * narrow_bits, wide.type), wide.shape)
    wide = b.shift_left(wide, shifts)
    signed = Tensor(SIGNED[kind.bits], wide.shape, wide.parts)  # the pieces do not overlap: their sum is their union
    joined = b.reduce("ReduceSum", signed, [wide.rank - 1])
    return Tensor(kind, shape, (_reinterpret(b, Tensor(UNSIGNED[kind.bits], shape, joined.parts), kind),))


def _regroup(b: Lowering, x: Tensor, kind: ElementType, shape: tuple[int, ...]) -> Tensor:
    """A change of width to or from less than a byte, in int32."""
    narrow_bits = min(x.type.bits, kind.bits)
    count = max(x.type.bits, kind.bits) // narrow_bits
    bits = b.full(x)
    if x.type.bits >= 8:
        unsigned = UNSIGNED[x.type.bits]
        bits = b.convert(Tensor(unsigned, x.shape, (_reinterpret(b, bits, unsigned),)), I32)
        bits = b.broadcast_in_dim(bits, (*x.shape, count), range(x.rank))
        bits = b.shift_right_logical(
            bits, b.broadcast(b.constant(np.arange(count, dtype=np.int32) * narrow_bits, I32), bits.shape)
        )
        gap = b.scalar(32 - narrow_bits, bits)
        shift = b.shift_right_arithmetic if kind.kind == "int" else b.shift_right_logical
        return Tensor(kind, shape, (b.cast_value(shift(b.shift_left(bits, gap), gap).value, kind.storage),))
    bits = Tensor(I32, x.shape, (b.cast_value(bits.value, "i32"),))
    bits = b.and_(bits, b.scalar(2**narrow_bits - 1, bits))
    bits = b.shift_left(bits, b.broadcast(b.constant(np.arange(count, dtype=np.int32) * narrow_bits, I32), bits.shape))
    joined = b.convert(b.reduce("ReduceSum", bits, [bits.rank - 1]), UNSIGNED[kind.bits])
    return Tensor(kind, shape, (_reinterpret(b, joined, kind),))


def _reinterpret(b: Lowering, x: Tensor, kind: Any) -> Any:
    """The same bits as another type of the same width. GE's Bitcast has no bfloat16: it goes through float32."""
    if kind.storage == x.type.storage:
        return x.value
    if x.type.storage == "bf16":
        wide = Tensor(I32, x.shape, (b.bitcast_value(b.cast_value(x.value, "f32"), "i32"),))
        high = b.shift_right_arithmetic(wide, b.scalar(16, wide))
        return b.bitcast_value(b.cast_value(high.value, "i16"), kind.storage)
    if kind.storage == "bf16":
        wide = Tensor(I32, x.shape, (b.cast_value(b.bitcast_value(x.value, "i16"), "i32"),))
        high = b.shift_left(wide, b.scalar(16, wide))
        return b.cast_value(b.bitcast_value(high.value, "f32"), "bf16")
    return b.bitcast_value(x.value, kind.storage)


@elementwise("stablehlo.reduce_precision")
def reduce_precision(b: Lowering, op: Any, x: Tensor) -> Tensor:
    exponent, mantissa = integer(op, "exponent_bits"), integer(op, "mantissa_bits")
    if x.type.bits == 16:
        return b.convert(reduce_precision(b, op, b.convert(x, F32)), x.type)
    own_mantissa, own_exponent = (23, 8) if x.type.bits == 32 else (52, 11)
    kind = SIGNED[x.type.bits]
    bits = Tensor(kind, x.shape, (b.bitcast_value(x.value, kind.storage),))
    result = bits
    dropped = own_mantissa - mantissa
    if dropped > 0:  # round to nearest, ties to even
        last = b.and_(b.shift_right_logical(bits, b.scalar(dropped, bits)), b.scalar(1, bits))
        bias = b.add(last, b.scalar(2 ** (dropped - 1) - 1, bits))
        result = b.and_(b.add(bits, bias), b.scalar(-(2**dropped), bits))
    rounded = Tensor(x.type, x.shape, (b.bitcast_value(result.value, x.type.storage),))
    if exponent < own_exponent:
        bias = 2 ** (exponent - 1) - 1
        largest = (2.0 - 2.0**-mantissa) * 2.0**bias
        smallest = 2.0 ** (1 - bias)
        size = b.unary("Abs", rounded)
        signed = lambda v: b.select(  # noqa: E731
            b.compare(bits, b.scalar(0, bits), "LT"), b.scalar(-v, x), b.scalar(v, x)
        )
        rounded = b.select(b.compare(size, b.scalar(largest, x), "GT"), signed(np.inf), rounded)
        rounded = b.select(b.compare(size, b.scalar(smallest, x), "LT"), signed(0.0), rounded)
    return b.select(b.is_nan(x), x, rounded)


@rule("stablehlo.optimization_barrier")
def optimization_barrier(b: Lowering, op: Any, *operands: Tensor) -> tuple[Tensor, ...]:
    return operands


@rule("stablehlo.map")
def map_(b: Lowering, op: Any, *operands: Tensor) -> list[Tensor]:
    return b.inline(op.regions[0], operands)


@rule("stablehlo.after_all", "stablehlo.create_token")
def token(b: Lowering, op: Any, *tokens: Tensor) -> Tensor:
    return b.constant(np.zeros(0, bool), BOOL)


@elementwise("chlo.mulhi")
def mulhi(b: Lowering, op: Any, x: Tensor, y: Tensor) -> Tensor:
    """The upper half of the product."""
    bits = x.type.bits
    if bits > 32:
        return _mulhi64(b, x, y)
    wide = TYPES["i64" if bits == 32 else "i32"]
    product = b.multiply(b.convert(x, wide), b.convert(y, wide))
    return b.convert(b.shift_right_arithmetic(product, b.scalar(bits, product)), x.type)


def _mulhi64(b: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """From products of halves; where a factor's sign was read as a bit, the other one is taken off again."""
    half, mask = b.scalar(32, x), b.scalar(0xFFFFFFFF, x)
    high = lambda t: b.shift_right_logical(t, half)  # noqa: E731
    low = lambda t: b.and_(t, mask)  # noqa: E731
    middle = b.add(b.multiply(high(x), low(y)), high(b.multiply(low(x), low(y))))
    carry = high(b.add(low(middle), b.multiply(low(x), high(y))))
    result = b.add(b.add(b.multiply(high(x), high(y)), high(middle)), carry)
    if x.type.kind == "int":
        zero = b.scalar(0, x)
        for factor, other in ((x, y), (y, x)):
            result = b.subtract(result, b.select(b.compare(factor, zero, "LT"), other, zero))
    return result
