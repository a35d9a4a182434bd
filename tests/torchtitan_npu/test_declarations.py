"""The tables of converters and patches, against the upstream that is installed; and what importing must not do."""

import importlib
import subprocess
import sys

import pytest
from torchtitan.config.configurable import Configurable

from torchtitan_npu import converters, doctor, patches


@pytest.mark.parametrize("declared", converters.CONVERTERS, ids=lambda declared: declared.name)
def test_converter_is_what_its_entry_says(declared: converters.Converter) -> None:
    owner, name = patches.resolve(declared.target)
    target = getattr(owner, name)
    assert issubclass(target, Configurable.Config)
    module, _, function = declared.factory.rpartition(".")
    getattr(importlib.import_module(module), function)
    from torchtitan.config.override import _REGISTRY

    registered = _REGISTRY[declared.factory]
    assert registered.target_cls is target
    replacement = doctor._attribute_of_annotation(registered.factory)
    assert issubclass(replacement, Configurable.Config) and replacement is not target
    assert declared.saves and declared.delete_when
    documentation = importlib.import_module(module).__doc__
    assert documentation
    if declared.operator:
        assert declared.operator in documentation


def test_no_preset_names_a_target_twice() -> None:
    for preset in ("npu", "reference", "none"):
        targets = [declared.target for declared in converters.of_preset(preset)]
        assert len(targets) == len(set(targets))


def test_every_override_of_the_package_is_declared() -> None:
    from torchtitan.config.override import _REGISTRY

    for declared in converters.CONVERTERS:
        importlib.import_module(declared.factory.rpartition(".")[0])
    ours = {name for name in _REGISTRY if name.startswith("torchtitan_npu.")}
    assert ours == {declared.factory for declared in converters.CONVERTERS}


def test_doctor_finds_nothing_broken() -> None:
    for check in (doctor._packages, doctor._cann, doctor._converters, doctor._patches, doctor._operators):
        assert [finding for finding in check() if finding.state == doctor.BROKEN] == []


def test_doctors_lines_fit_80_columns() -> None:
    said: list[str] = []
    doctor.run(as_json=False, say=lambda text: said.extend(text.splitlines()))
    assert len(said) > len(converters.CONVERTERS) + len(patches.PATCHES)
    assert max(map(len, said)) <= 80


def test_doctor_notices_a_target_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = converters.Converter(
        name="gone",
        part="rope",
        target="torchtitan.models.common.rope.Gone.Config",
        factory="os.getcwd",
        operator="",
        saves="",
        delete_when="",
    )
    monkeypatch.setattr(converters, "CONVERTERS", (entry,))
    (finding,) = doctor._converters()
    assert finding.state == doctor.BROKEN and "Gone" in finding.text


def test_doctor_notices_a_changed_signature() -> None:
    from torchtitan_npu.converters import attention

    class Upstream:
        def forward(self, q_BLNH, k_BLNH, v_BLNH, sinks, *, attention_masks): ...

    class Target:
        _owner = Upstream

    assert "sinks" in (doctor._forward_differs(Target, attention.varlen_attention) or "")


@pytest.mark.parametrize(
    ("visible", "advice"),
    [("1,0", "must ascend (CANN error 207004): use 0,1"), ("9", "beyond the number"), ("a", "separated by commas")],
)
def test_doctor_explains_visible_devices(visible: str, advice: str) -> None:
    assert advice in doctor._explain_visible(visible)


@pytest.mark.parametrize("library", ["libascend_hal.so", "libhccl.so"])
def test_doctor_explains_a_missing_library(library: str) -> None:
    cause = f"ImportError: {library}: cannot open shared object file"
    assert "--device emulator" in doctor._explain_import(cause)


def test_importing_the_package_changes_nothing() -> None:
    program = (
        "import os, sys, multiprocessing; before = dict(os.environ); import torchtitan_npu.entry, torchtitan_npu.cli; "
        "assert dict(os.environ) == before and 'torch' not in sys.modules; "
        "assert multiprocessing.get_start_method(allow_none=True) is None"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_emulator_is_never_imported() -> None:
    program = "import sys, torch, torch_npu; import torchtitan_npu.train; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.partition(".")[0] == "cann_emulator"]


def test_patches_are_applied_once_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    calls = []

    def replacement(original):
        calls.append(original)
        return lambda *args: original(*args)

    module = sys.modules[__name__]
    monkeypatch.setattr(module, "replacement_for_test", replacement, raising=False)
    patch = patches.Patch("probe", "shutil.which", f"{__name__}.replacement_for_test", "a test", "never")
    monkeypatch.setattr(patches, "PATCHES", (patch,))
    monkeypatch.setitem(sys.modules, __name__, module)
    original = shutil.which
    monkeypatch.setattr(shutil, "which", original)
    patches.apply_all()
    patches.apply_all()
    assert calls == [original] and shutil.which.__npu_patch__ == "probe"
