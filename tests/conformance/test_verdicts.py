"""What the conformance run concludes from results and errors, without a device."""

import pytest
import torch

from conformance.report import operators, summary
from conformance.values import copy_to, differences
from conformance.verdicts import Verdict, of_error, worst

FRAME = "add:op.cpp:9 NPU function error: call aclnnAdd failed, error code is {}\nERR00100 PTA call acl api failed."


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        (FRAME.format(561003), Verdict.NOT_IMPLEMENTED),
        (FRAME.format(161002), Verdict.REFUSED),
        (FRAME.format(561000), Verdict.WRONG),
        ("only float is supported\n[ERROR] ... ERR01002 OPS invalid type", Verdict.REFUSED),
        (
            "The operator 'aten::i0.out' ..., but CPU fallback is disabled by TORCH_NPU_FALLBACK_CPU_DISABLE=1.",
            Verdict.FALLBACK,
        ),
        ("Could not run 'aten::x' with arguments from the 'SparseCsrnpu' backend.", Verdict.REFUSED),
        ("index out of range", Verdict.WRONG),
    ],
    ids=["no kernel", "parameter", "failure inside", "torch_npu's check", "fallback", "layout", "anything else"],
)
def test_errors(message, verdict):
    assert of_error(message) is verdict


def test_the_worst_sample_decides():
    assert worst({Verdict.PASSES, Verdict.FALLBACK, Verdict.REFUSED}) is Verdict.FALLBACK
    assert worst({Verdict.PASSES, Verdict.WRONG}) is Verdict.WRONG


def test_a_view_among_the_samples_does_not_take_the_pass_away():
    assert worst({Verdict.PASSES, Verdict.NO_KERNEL}) is Verdict.PASSES
    assert worst({Verdict.NO_KERNEL}) is Verdict.NO_KERNEL


def compare(actual, expected, truth=None, dtype=torch.float32, **facts):
    return differences(actual, expected, truth, dtype=dtype, values=True, device="cpu", **facts)


def test_equal_results():
    values = torch.tensor([1.0, float("nan"), float("inf")])
    assert compare(values, values.clone()) == []
    assert compare([values, 3], [values + 1e-8, 3]) == []


@pytest.mark.parametrize(
    ("actual", "says"),
    [
        (torch.tensor([1.0, 2.001]), "1 of 2 elements differ; at (1,)"),
        (torch.tensor([1.0, float("nan")]), "1 of 2 elements differ"),
        (torch.tensor([1.0]), "shape (1,), not (2,)"),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), "torch.float64, not torch.float32"),
        (None, "NoneType, not Tensor"),
        ([torch.tensor([1.0, 2.0])] * 2, "the result is"),
    ],
    ids=["value", "nan", "shape", "dtype", "kind", "structure"],
)
def test_differences(actual, says):
    (found,) = compare(actual, torch.tensor([1.0, 2.0]))
    assert says in found


def test_a_result_on_the_wrong_device():
    (found,) = differences(torch.ones(1), torch.ones(1), None, dtype=torch.float32, values=True, device="npu")
    assert found == "on cpu, not on npu"


def test_bfloat16_may_be_better_than_the_cpu_but_not_worse():
    truth = torch.tensor([1.0, 100.0])
    cpu = torch.tensor([1.1, 100.0], dtype=torch.bfloat16)
    assert compare(truth.bfloat16(), cpu, dtype=torch.bfloat16)
    assert compare(truth.bfloat16(), cpu, truth, dtype=torch.bfloat16) == []
    assert compare(torch.tensor([2.0, 100.0]).bfloat16(), cpu, truth, dtype=torch.bfloat16)
    assert compare(torch.tensor([1.0, 200.0]).bfloat16(), cpu, truth, dtype=torch.bfloat16)


def test_what_cancels_is_measured_by_the_largest_element():
    truth = torch.tensor([1e-7, 10.0], dtype=torch.float64)
    cpu = torch.tensor([1e-6, 10.000008])
    assert compare(torch.tensor([1.4e-5, 10.0]), cpu, truth) == []
    assert compare(torch.tensor([1.0e-4, 10.0]), cpu, truth)


def test_results_that_are_not_compared():
    assert compare([torch.ones(1), torch.ones(1)], [torch.ones(1), torch.zeros(1)], skip={1}) == []


def test_a_copy_has_the_strides_and_the_offset_of_the_original():
    original = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[1:, :, ::2]
    copy = copy_to(original, "cpu")
    assert (copy.stride(), copy.storage_offset()) == (original.stride(), original.storage_offset())
    assert torch.equal(copy, original) and copy.data_ptr() != original.data_ptr()
    expanded = torch.ones(1, 3).expand(4, 3)
    assert copy_to(expanded, "cpu").stride() == (0, 1)


def case(op, dtype, verdict, calls):
    return {"op": op, "dtype": dtype, "verdict": verdict, "calls": calls, "samples": {verdict: 1}, "failures": []}


def test_the_share_is_of_the_operators_that_torch_npu_registers():
    results = [
        case("add", "float32", "passes", {"aten::add.Tensor": True}),
        case("add", "int64", "passes", {"aten::add.Tensor": True}),
        case("mm", "float32", "passes", {"aten::mm": True}),
        case("mm", "int64", "refused", {"aten::mm": True}),
        case("i0", "float32", "fallback", {"aten::i0.out": False}),
        case("view", "float32", "no kernel", {}),
    ]
    figures = summary(operators(results))
    assert (figures["operators"], figures["registered"], figures["passes"]) == (4, 2, 1)
    assert figures["passes_in_dtypes_taken"] == 2
    assert figures["all_by_verdict"]["fallback"] == 1
