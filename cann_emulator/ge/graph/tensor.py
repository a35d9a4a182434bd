"""Tensors on the host: constants, and what a session is run with."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from .tensor_desc import Shape, TensorDesc, checked_dims
from .types import DataType, Format, Placement

# The dtypes that numpy has, by DataType.
NUMPY = {
    DataType.DT_FLOAT: np.float32,
    DataType.DT_FLOAT16: np.float16,
    DataType.DT_INT8: np.int8,
    DataType.DT_INT16: np.int16,
    DataType.DT_INT32: np.int32,
    DataType.DT_INT64: np.int64,
    DataType.DT_UINT8: np.uint8,
    DataType.DT_UINT16: np.uint16,
    DataType.DT_UINT32: np.uint32,
    DataType.DT_UINT64: np.uint64,
    DataType.DT_DOUBLE: np.float64,
    DataType.DT_BOOL: np.bool_,
    DataType.DT_COMPLEX64: np.complex64,
    DataType.DT_COMPLEX128: np.complex128,
}
_FROM_LISTS = NUMPY.keys() - {DataType.DT_DOUBLE, DataType.DT_COMPLEX64, DataType.DT_COMPLEX128}


class Tensor:
    """A tensor with its data.

    Args:
        data: a flat list of numbers.
        file_path: a file of little-endian elements, instead of `data`.
        data_type: dtype.
        format: what the dimensions mean.
        shape: sizes; None is a scalar.
        placement: only the host is supported.

    Raises:
        RuntimeError: both of data and file are given, the dtype cannot be made from a list, or the number of elements
            is not the shape's.
    """

    def __init__(
        self,
        data: list[Any] | None = None,
        file_path: str | None = None,
        data_type: DataType = DataType.DT_FLOAT,
        format: Format = Format.FORMAT_ND,
        shape: list[int] | None = None,
        placement: Placement = Placement.PLACEMENT_HOST,
    ) -> None:
        if not isinstance(placement, Placement):
            raise TypeError("Placement must be a Placement")
        if data is not None and file_path is not None:
            raise RuntimeError("Tensor should be created either by data or by file")
        dims = checked_dims(shape, "Shape")
        self._desc = TensorDesc(dims, format, data_type)
        self._placement = placement
        self._bytes = b""
        if file_path is not None:
            self._bytes = Path(file_path).read_bytes()
        elif data is not None:
            if not isinstance(data, list):
                raise TypeError("data should be List")
            if data_type == DataType.DT_DOUBLE:
                raise RuntimeError("DT_DOUBLE is not supported in python Tensor constructor")
            if data_type not in _FROM_LISTS:
                raise RuntimeError(f"Failed to create Tensor with data type: {data_type.name}")
            if len(data) != math.prod(dims):
                raise RuntimeError(f"Failed to create Tensor: {len(data)} elements for shape {dims}")
            self._bytes = np.array(data, dtype=NUMPY[data_type]).tobytes()

    @classmethod
    def _from_bytes(cls, desc: TensorDesc, data: bytes) -> "Tensor":
        tensor = cls.__new__(cls)
        tensor._desc, tensor._bytes, tensor._placement = desc, data, Placement.PLACEMENT_HOST
        return tensor

    def __str__(self) -> str:
        return f"Tensor({self._desc})"

    @property
    def placement(self) -> Placement:
        """Where the data lies."""
        return self._placement

    @property
    def format(self) -> Format:
        """What the dimensions mean."""
        return self._desc.format

    @property
    def data_type(self) -> DataType:
        """Dtype."""
        return self._desc.data_type

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions."""
        return self._desc.shape

    @property
    def data(self) -> Any:
        """The elements as nested lists, a number for a scalar."""
        if self.data_type not in NUMPY:
            raise RuntimeError("Failed to get Tensor data")
        return np.frombuffer(self._bytes, NUMPY[self.data_type]).reshape(list(self.shape)).tolist()

    def get_placement(self) -> Placement:
        """See `placement`."""
        return self._placement

    def get_format(self) -> Format:
        """See `format`."""
        return self._desc.format

    def get_data_type(self) -> DataType:
        """See `data_type`."""
        return self._desc.data_type

    def get_shape(self) -> Shape:
        """See `shape`."""
        return self._desc.shape

    def get_data(self) -> Any:
        """See `data`."""
        return self.data

    def get_tensor_desc(self) -> TensorDesc:
        """The description."""
        return self._desc

    def set_format(self, format: Format) -> "Tensor":
        """Sets the format."""
        self._desc.set_format(format)
        return self

    def set_data_type(self, data_type: DataType) -> "Tensor":
        """Sets the dtype."""
        self._desc.set_data_type(data_type)
        return self

    def to_host(self) -> "Tensor":
        """Raises ValueError: the emulator's tensors lie on the host already."""
        raise ValueError("to_host() only supports device tensors")
