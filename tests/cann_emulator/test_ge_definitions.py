"""The definitions of operators: well-formed, each with a shape rule and something that computes it."""

import re

import pytest
from ge._compiler import build, fuse, shapes, views
from ge._compiler.prototypes import BYTES, SHORT, known_types, prototype

from cann_emulator.kernels.ge.registry import ROW_WORDS, kernels, rows

# What the compiler itself takes apart, and what is refused because it needs communicators.
_OWN = (
    {"Data", "Const", "Constant", "NetOutput", "IdentityN"}
    | build.LOOPS
    | build.CONDITIONALS
    | build.SWITCHES
    | build.CALLS
)
_ATTRIBUTES = {
    "Int",
    "Float",
    "Bool",
    "String",
    "Type",
    "Tensor",
    "ListInt",
    "ListFloat",
    "ListBool",
    "ListString",
    "ListListInt",
}


@pytest.mark.parametrize("type", known_types())
def test_a_definition_is_well_formed(type):
    definition = prototype(type)
    ports = definition.inputs + definition.outputs
    assert definition.outputs
    assert all(port.kind in ("", "optional", "dynamic") and port.dtypes for port in ports)
    names = [port.name for port in definition.inputs]
    assert len(set(names)) == len(names)
    assert all(facts[0] in _ATTRIBUTES and len(facts) in (1, 2) for facts in definition.attrs.values())
    assert all(len(row) == len(ports) for table in definition.tables for row in table)


@pytest.mark.parametrize("type", sorted(set(known_types()) - _OWN))
def test_an_operator_has_a_shape_rule_and_a_kernel(type):
    assert type in shapes.RULES
    assert type in kernels() or type in fuse.KERNELS or type in fuse.HEAVY or type in views.RULES


def test_every_rule_and_kernel_belongs_to_a_defined_operator():
    assert set(kernels()) | set(fuse.KERNELS) | set(fuse.HEAVY) | set(shapes.RULES) <= set(known_types())


def test_dtypes_have_one_name_each():
    assert len(set(SHORT.values())) == len(SHORT) and set(BYTES) == set(SHORT.values())


def test_large_tensors_have_a_kernel_for_what_the_fused_loops_leave_to_aten():
    assert set(fuse.HEAVY) <= set(kernels())


@pytest.mark.parametrize("type", rows())
def test_a_row_names_what_its_operator_has(type):
    match = re.match(r"[\w.:]+\((.*)\)(?: *-> *(.+))?$", rows()[type])
    assert match
    names = set(compile(f"arguments({match[1]})", "row", "eval").co_names) - {"arguments", *ROW_WORDS}
    names |= {name.strip() for name in (match[2] or "").split(",") if name.strip()}
    definition = prototype(type)
    assert names <= {port.name for port in definition.inputs + definition.outputs} | set(definition.attrs)
