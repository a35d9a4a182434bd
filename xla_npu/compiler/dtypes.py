"""Element types: what StableHLO calls them, how they are stored in a GE graph, and their numpy and XLA names.

Unsigned types of 16 bits and more are stored as the signed type of the same width, since CANN has next to no unsigned
arithmetic and two's complement addition, multiplication and bitwise operations are the same; the rules that depend on
the sign say so. Complex numbers are two real tensors. Sub-byte integers and float8 are stored one element a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class ElementType:
    """One StableHLO element type.

    Attributes:
        name: MLIR's spelling, such as `ui32` or `complex<f32>`.
        kind: `bool`, `int`, `uint`, `float` or `complex`.
        bits: width of one element (of one of the two parts for complex).
        storage: GE's type of a part.
        numpy: numpy's type of the whole element.
        xla: XLA's primitive type name, as the reply to the plugin has it.
    """

    name: str
    kind: str
    bits: int
    storage: str
    numpy: Any
    xla: str

    @property
    def parts(self) -> int:
        """Number of GE tensors that hold one tensor of this type."""
        return 2 if self.kind == "complex" else 1

    @property
    def emulated(self) -> bool:
        """Whether arithmetic goes through a wider type because GE has no type of this width."""
        return self.bits < 8 or self.name.startswith("f8") or self.name.startswith("f4")


def _types() -> dict[str, ElementType]:
    rows = [
        ("i1", "bool", 8, "bool", np.bool_, "pred"),
        ("i2", "int", 2, "i8", ml_dtypes.int2, "s2"),
        ("i4", "int", 4, "i8", ml_dtypes.int4, "s4"),
        ("i8", "int", 8, "i8", np.int8, "s8"),
        ("i16", "int", 16, "i16", np.int16, "s16"),
        ("i32", "int", 32, "i32", np.int32, "s32"),
        ("i64", "int", 64, "i64", np.int64, "s64"),
        ("ui2", "uint", 2, "u8", ml_dtypes.uint2, "u2"),
        ("ui4", "uint", 4, "u8", ml_dtypes.uint4, "u4"),
        ("ui8", "uint", 8, "u8", np.uint8, "u8"),
        ("ui16", "uint", 16, "i16", np.uint16, "u16"),
        ("ui32", "uint", 32, "i32", np.uint32, "u32"),
        ("ui64", "uint", 64, "i64", np.uint64, "u64"),
        ("f16", "float", 16, "f16", np.float16, "f16"),
        ("bf16", "float", 16, "bf16", ml_dtypes.bfloat16, "bf16"),
        ("f32", "float", 32, "f32", np.float32, "f32"),
        ("f64", "float", 64, "f64", np.float64, "f64"),
        ("complex<f32>", "complex", 32, "f32", np.complex64, "c64"),
        ("complex<f64>", "complex", 64, "f64", np.complex128, "c128"),
        ("f8E4M3FN", "float", 8, "u8", ml_dtypes.float8_e4m3fn, "f8e4m3fn"),
        ("f8E5M2", "float", 8, "u8", ml_dtypes.float8_e5m2, "f8e5m2"),
        ("f8E4M3", "float", 8, "u8", ml_dtypes.float8_e4m3, "f8e4m3"),
        ("f8E3M4", "float", 8, "u8", ml_dtypes.float8_e3m4, "f8e3m4"),
        ("f8E4M3B11FNUZ", "float", 8, "u8", ml_dtypes.float8_e4m3b11fnuz, "f8e4m3b11fnuz"),
        ("f8E4M3FNUZ", "float", 8, "u8", ml_dtypes.float8_e4m3fnuz, "f8e4m3fnuz"),
        ("f8E5M2FNUZ", "float", 8, "u8", ml_dtypes.float8_e5m2fnuz, "f8e5m2fnuz"),
        ("f8E8M0FNU", "float", 8, "u8", ml_dtypes.float8_e8m0fnu, "f8e8m0fnu"),
        ("f4E2M1FN", "float", 4, "u8", ml_dtypes.float4_e2m1fn, "f4e2m1fn"),
    ]
    return {row[0]: ElementType(*row) for row in rows}


TYPES = _types()
BOOL, I8, I32, I64, F32 = (TYPES[name] for name in ("i1", "i8", "i32", "i64", "f32"))
UNSIGNED = {bits: TYPES[f"ui{bits}"] for bits in (8, 16, 32, 64)}
SIGNED = {bits: TYPES[f"i{bits}"] for bits in (8, 16, 32, 64)}

# numpy's type of a GE storage type, for constants.
STORAGE_NUMPY = {
    "bool": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}

# ge::DataType, as attributes such as Cast's dst_type carry it.
GE_ENUM = {
    "f32": 0,
    "f16": 1,
    "i8": 2,
    "i32": 3,
    "u8": 4,
    "i16": 6,
    "u16": 7,
    "u32": 8,
    "i64": 9,
    "u64": 10,
    "f64": 11,
    "bool": 12,
    "bf16": 27,
}

# ge.proto.DataType, as tensor descriptors in the serialised graph carry it.
PROTO_ENUM = {
    "f32": 1,
    "f16": 2,
    "i8": 3,
    "u8": 4,
    "i16": 5,
    "u16": 6,
    "i32": 7,
    "i64": 8,
    "u32": 9,
    "u64": 10,
    "bool": 11,
    "f64": 12,
    "bf16": 27,
}

# Where an operator does not take a type: the type that holds all its values, in which to compute instead.
WIDER = {"bool": "u8", "i8": "i32", "u8": "i32", "i16": "i32", "i32": "i64", "f16": "f32", "bf16": "f32"}
