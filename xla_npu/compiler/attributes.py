"""Reads types and attributes of MLIR operations."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from xla_npu.compiler.dtypes import TYPES, ElementType
from xla_npu.compiler.errors import Unsupported

_TYPE = re.compile(r"tensor<((?:[0-9?]+x)*)(.+?)(?:, [^>]*)?>$")
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?)|true|false")
# Why a quantised type is refused.
QUANTISED = (
    "is a quantised type, which the NPU's graphs do not have. Compute with the stored integers, scale and zero point "
    "instead: the pass stablehlo-legalize-quant-to-math rewrites a program so"
)
_known: dict[str, tuple[ElementType, tuple[int, ...]]] = {}


def tensor_type(value: Any) -> tuple[ElementType, tuple[int, ...]]:
    """Element type and shape of an MLIR value (or of a type)."""
    return parse_type(str(value.type if isinstance(value, ir.Value) else value))


def parse_type(text: str) -> tuple[ElementType, tuple[int, ...]]:
    """Element type and shape of a ranked tensor type's text; tokens count as empty booleans."""
    known = _known.get(text)
    if known is None:
        if text == "!stablehlo.token":
            return TYPES["i1"], (0,)
        match = _TYPE.match(text)
        if match is None:
            raise Unsupported(f"type {text} is not a ranked tensor of numbers")
        dimensions, element = match.groups()
        if "?" in dimensions:
            raise Unsupported(
                f"{text} has a dimension whose size is not known when the program is compiled. NPU programs have "
                "static shapes: jit with concrete shapes, or refine an exported program's shapes before running it"
            )
        if element.startswith("!quant."):
            raise Unsupported(f"{element} {QUANTISED}")
        if element not in TYPES:
            raise Unsupported(f"element type {element} does not exist on the NPU")
        known = TYPES[element], tuple(int(d) for d in dimensions.split("x") if d)
        _known[text] = known
    return known


def constant_array(op: Any, element: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    """The value of a constant operation, 0-dimensional when all elements are the same."""
    if element.kind != "complex" and element.bits >= 8 and element.name in _BUFFERS:
        attribute = op.attributes["value"]
        if attribute.is_splat:
            return np.asarray(attribute.get_splat_value().value).astype(element.numpy)
        return np.array(attribute, element.numpy).reshape(shape)
    return _parse_dense(str(op), element, shape)


_BUFFERS = frozenset({"i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "f32", "f64"})


def _parse_dense(text: str, element: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    """MLIR's bindings hand out neither bfloat16, float8, 4-bit nor complex constants: read the printed form."""
    numpy = np.dtype(element.numpy)
    body = text[text.index("dense<") + 6 : text.rindex("> : tensor")]
    if body.startswith('"0x'):
        raw = bytes.fromhex(body[3:-1])
        values = np.frombuffer(raw, numpy)
        return values.reshape(shape) if values.size == int(np.prod(shape)) else values.reshape(())
    tokens = _NUMBER.findall(body)
    if element.kind == "complex":
        real = np.dtype(np.float32 if element.bits == 32 else np.float64)
        flat = np.array([_number(t, real) for t in tokens], real).view(numpy)
    else:
        flat = np.array([_number(t, numpy) for t in tokens], numpy)
    return flat.reshape(shape) if flat.size == int(np.prod(shape)) else flat.reshape(())


def _number(token: str, numpy: np.dtype) -> Any:
    if token.startswith("0x"):
        return np.array(int(token, 16), f"u{numpy.itemsize}").view(numpy)[()]
    if token in ("true", "false"):
        return token == "true"
    return numpy.type(float(token)) if any(c in token for c in ".eE") else numpy.type(int(token))


def ints(op: Any, name: str, default: Any = None) -> list[int]:
    """A list of integers: a dense array or a dense elements attribute."""
    attributes = op.attributes
    if name not in attributes:
        return default
    attribute = attributes[name]
    if isinstance(attribute, ir.DenseElementsAttr):
        return [int(v) for v in np.array(attribute).reshape(-1)]
    return [int(v) for v in attribute]


def integer(op: Any, name: str) -> int:
    """An integer attribute."""
    return int(ir.IntegerAttr(op.attributes[name]).value)


def flag(op: Any, name: str, default: bool = False) -> bool:
    """A boolean attribute."""
    return bool(ir.BoolAttr(op.attributes[name]).value) if name in op.attributes else default


def word(op: Any, name: str, default: str = "") -> str:
    """The word of an enumeration attribute: `#stablehlo<comparison_direction LT>` is LT."""
    if name not in op.attributes:
        return default
    return str(op.attributes[name]).removesuffix(">").split()[-1].removesuffix(">")


def text(op: Any, name: str, default: str = "") -> str:
    """A string attribute."""
    return ir.StringAttr(op.attributes[name]).value if name in op.attributes else default


def precisions(op: Any) -> set[str]:
    """The precisions that a product or convolution asks for: DEFAULT, HIGH or HIGHEST, one for each operand."""
    if "precision_config" not in op.attributes:
        return {"DEFAULT"}
    return set(re.findall(r"precision (\w+)", str(op.attributes["precision_config"]))) or {"DEFAULT"}
