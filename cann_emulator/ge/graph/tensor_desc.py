"""Shapes and descriptions of tensors."""

from typing import Any

from .types import DataType, Format


def checked_dims(dims: list[int] | None, name: str) -> list[int]:
    """`dims` as a list; None is a scalar's.

    Raises:
        TypeError: not a list of exact ints.
    """
    if dims is None:
        return []
    if not isinstance(dims, list) or not all(type(dim) is int for dim in dims):
        raise TypeError(f"{name} must be a list of integers")
    return dims


class Shape(list):
    """The sizes of a tensor's dimensions."""

    def __init__(self, dims: list[int] | None = None) -> None:
        super().__init__(checked_dims(dims, "dims"))

    def get_shape_size(self) -> int:
        """The number of elements; -1 where a dimension is unknown."""
        size = 1
        for dim in self:
            if dim < 0:
                return -1
            size *= dim
        return size

    def is_unknown_shape(self) -> bool:
        """Whether a dimension is not known."""
        return any(dim < 0 for dim in self)


class TensorDesc:
    """Shape, format and dtype of a tensor.

    Args:
        shape: sizes; None is a scalar.
        format: what the dimensions mean.
        data_type: dtype.
    """

    def __init__(
        self,
        shape: list[int] | None = None,
        format: Format = Format.FORMAT_ND,
        data_type: DataType = DataType.DT_FLOAT,
    ) -> None:
        if not isinstance(format, Format):
            raise TypeError("Format must be a Format")
        if not isinstance(data_type, DataType):
            raise TypeError("Data type must be a DataType")
        self._shape = Shape(shape)
        self._origin_shape = Shape(shape)
        self._format = self._origin_format = format
        self._data_type = data_type
        self._attrs: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"TensorDesc(shape={list(self._shape)}, format={self._format.name}, data_type={self._data_type.name})"

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions."""
        return self._shape

    @property
    def origin_shape(self) -> Shape:
        """The shape before formats were chosen."""
        return self._origin_shape

    @property
    def format(self) -> Format:
        """What the dimensions mean."""
        return self._format

    @property
    def origin_format(self) -> Format:
        """The format before formats were chosen."""
        return self._origin_format

    @property
    def data_type(self) -> DataType:
        """Dtype."""
        return self._data_type

    def get_shape(self) -> Shape:
        """See `shape`."""
        return self._shape

    def get_origin_shape(self) -> Shape:
        """See `origin_shape`."""
        return self._origin_shape

    def get_format(self) -> Format:
        """See `format`."""
        return self._format

    def get_origin_format(self) -> Format:
        """See `origin_format`."""
        return self._origin_format

    def get_data_type(self) -> DataType:
        """See `data_type`."""
        return self._data_type

    def set_shape(self, shape: list[int]) -> "TensorDesc":
        """Sets the shape."""
        self._shape = Shape(shape)
        return self

    def set_origin_shape(self, shape: list[int]) -> "TensorDesc":
        """Sets the origin shape."""
        self._origin_shape = Shape(shape)
        return self

    def set_format(self, format: Format) -> "TensorDesc":
        """Sets the format."""
        if not isinstance(format, Format):
            raise TypeError("Format must be a Format")
        self._format = format
        return self

    def set_origin_format(self, format: Format) -> "TensorDesc":
        """Sets the origin format."""
        if not isinstance(format, Format):
            raise TypeError("Format must be a Format")
        self._origin_format = format
        return self

    def set_data_type(self, data_type: DataType) -> "TensorDesc":
        """Sets the dtype."""
        if not isinstance(data_type, DataType):
            raise TypeError("Data type must be a DataType")
        self._data_type = data_type
        return self
