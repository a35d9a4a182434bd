"""The plugin's own declaration of the PJRT C API lies in memory as an independent binding of the same ABI says."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from pypjrt._abi import pjrt_0_114 as abi

from xla_npu.library import find_library

NATIVE = Path(__file__).parents[2] / "xla_npu" / "native"
HEADER = (NATIVE / "pjrt.h").read_text()

# Structures of the binding that the header declares.
STRUCTURES = [
    name
    for name, value in vars(abi).items()
    if isinstance(value, type) and issubclass(value, ctypes.Structure) and re.search(rf"\b{name}\b[ ,]", HEADER)
    if name.startswith("PJRT_") and not name.endswith("_Callback_Args")
]


def fields(structure: type[ctypes.Structure]) -> list[str]:
    """The fields of a structure, those of anonymous unions included, the function tables' without their prefix."""
    anonymous = getattr(structure, "_anonymous_", ())
    names = []
    for field in structure._fields_:
        names += [inner[0] for inner in field[1]._fields_] if field[0] in anonymous else [field[0]]
    return names


def member(structure: str, field: str) -> str:
    """The header's name of a field: function tables name their entries without the common prefix."""
    if structure == "PJRT_Api":
        return field.removeprefix("PJRT_")
    if structure.endswith("_Extension") and field != "base":
        slots = re.findall(r"X\((\w+)\)", HEADER)
        wanted = field.removeprefix("PJRT_").replace("_", "").lower()
        return next((slot for slot in slots if slot.replace("_", "").lower().endswith(wanted)), field)
    return field


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler makes of the header: `offset`s by structure and field, and sizes by structure."""
    folder = tmp_path_factory.mktemp("abi")
    lines = []
    for name in STRUCTURES:
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        for field in fields(getattr(abi, name)):
            lines.append(f'std::printf("{name}.{field} %zu\\n", offsetof({name}, {member(name, field)}));')
    source = folder / "offsets.cpp"
    source.write_text('#include <cstdio>\n#include "pjrt.h"\nint main() {\n' + "\n".join(lines) + "\n}\n")
    program = folder / "offsets"
    subprocess.run(
        ["c++", "-std=c++17", "-Wno-invalid-offsetof", f"-I{NATIVE}", str(source), "-o", str(program)], check=True
    )
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {key: int(value) for key, value in (line.split() for line in output.splitlines())}


def test_every_structure_of_the_function_table_is_declared():
    wanted = {"PJRT_Api", *(f"{slot}_Args" for slot in abi.SLOT)}
    assert wanted <= set(STRUCTURES)


def test_sizes_and_offsets_agree(declared):
    expected = {}
    for name in STRUCTURES:
        structure = getattr(abi, name)
        expected[name] = ctypes.sizeof(structure)
        expected |= {f"{name}.{field}": getattr(structure, field).offset for field in fields(structure)}
    assert declared == expected


def test_enumerations_agree():
    def numbers(prefix: str) -> list[str]:
        found = {value: key for key, value in vars(abi).items() if key.startswith(prefix) and isinstance(value, int)}
        return [re.sub(prefix, "", found[i]) for i in range(len(found))]

    def declared_in(name: str) -> list[str]:
        body = re.search(rf"enum {name} : uint32_t {{(.*?)}};", HEADER, re.S)[1]
        return [entry.strip().removeprefix("PJRT_") for entry in body.split(",")]

    assert declared_in("PJRT_Error_Code") == numbers("PJRT_Error_Code_")
    types = declared_in("PJRT_Buffer_Type")[:-1]
    assert types == numbers("PJRT_Buffer_Type_")[: len(types)]


def test_the_table_is_in_order():
    table = re.search(r"#define PJRT_SLOTS\(X\)(.*?)\n\n", HEADER, re.S)[1]
    assert [f"PJRT_{name}" for name in re.findall(r"X\((\w+)\)", table)] == list(abi.SLOT)


def test_every_slot_answers_and_the_version_is_the_tested_one():
    library = ctypes.CDLL(str(find_library()))
    library.GetPjrtApi.restype = ctypes.POINTER(abi.PJRT_Api)
    table = library.GetPjrtApi().contents
    assert table.struct_size == abi.PJRT_Api_STRUCT_SIZE
    assert (table.pjrt_api_version.major_version, table.pjrt_api_version.minor_version) == (0, 112)
    assert [slot for slot in abi.SLOT if not getattr(table, slot)] == []
