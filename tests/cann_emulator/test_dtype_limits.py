"""Dtypes that hardware refuses are refused with its code and its words."""

import pytest
import torch


def test_repeat_interleave_refuses_double() -> None:
    with pytest.raises(RuntimeError, match=r"161002(.|\n)*EZ1001(.|\n)*DT_DOUBLE(.|\n)*DT_BFLOAT16"):
        torch.ones(2, dtype=torch.float64, device="npu").repeat_interleave(2)


def test_random_numbers_refuse_complex32() -> None:
    with pytest.raises(RuntimeError, match=r"161002(.|\n)*DT_COMPLEX32(.|\n)*DT_FLOAT16"):
        torch.randn(2, dtype=torch.complex32, device="npu")


def test_indexing_refuses_complex64() -> None:
    table = torch.ones(4, dtype=torch.complex64, device="npu")
    with pytest.raises(RuntimeError, match=r"161002(.|\n)*DT_COMPLEX64"):
        table[torch.tensor([0, 2], device="npu")]


def test_matrix_products_refuse_integers() -> None:
    ones = torch.ones(2, 2, dtype=torch.int64, device="npu")
    with pytest.raises(RuntimeError, match=r"161002(.|\n)*DT_INT64"):
        ones @ ones
