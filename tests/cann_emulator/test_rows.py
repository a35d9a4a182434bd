"""The row tables fit ATen's schemas and the aclnn signatures. Needs no emulator."""

import inspect

import pytest
import torch

from cann_emulator.kernels import registry

ROWS = registry.rows()


def _schema(row: registry.Row) -> torch.FunctionSchema:
    return torch._C._get_schema(f"aten::{row.op}", row.overload)


@pytest.mark.parametrize("name", ROWS)
def test_row_fits_aten(name: str) -> None:
    row = ROWS[name]
    wanted = _schema(row).arguments
    positional = [a for a in row.arguments if a.keyword is None]
    assert len(positional) <= sum(not a.kwarg_only for a in wanted), "too many positional arguments"
    given = [a.name for a in wanted[: len(positional)]] + [a.keyword for a in row.arguments if a.keyword]
    assert len(set(given)) == len(given), "an argument is given twice"
    assert set(given) <= {a.name for a in wanted}, "ATen has no such argument"
    missing = [a.name for a in wanted if a.name not in given and not a.has_default_value()]
    assert not missing, "ATen has no default for these"


@pytest.mark.parametrize("name", ROWS)
def test_row_writes_its_outputs(name: str) -> None:
    """A row writes either through ATen's out or in-place arguments, or copies results, and never neither."""
    row = ROWS[name]
    schema = _schema(row)
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert bool(written) != bool(row.outputs)
    kinds = [kind for _, kind in registry.signatures()[name]["args"]]
    if row.outputs and kinds[row.outputs[0]] != "tensor_list":
        assert len(row.outputs) <= len(schema.returns)


def test_no_operator_is_both_row_and_function() -> None:
    assert not set(ROWS) & set(registry.functions())


def test_functions_take_the_operators_arguments() -> None:
    for name, function in registry.functions().items():
        arguments = [None] * len(registry.signatures()[name]["args"])
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            pytest.fail(f"{name}: {function} cannot take {len(arguments)} arguments: {error}")


def test_dtype_limits_name_real_arguments() -> None:
    assert all(mask > 0 for _, _, mask in registry.dtype_limits())
