"""Runs one (operator, dtype): every sample forward and backward, from strided inputs, in place and into `out=`."""

import contextlib
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch

from conformance import launches, registered
from conformance.catalog import DTYPES, UNINITIALISED, Deviation, deviations, differentiable, operators
from conformance.values import copy_to, differences, map_sample, tensors_of, to_device, widen
from conformance.verdicts import Verdict, of_error

CALLS_FROM = 3  # samples whose ATen calls are recorded


class Outcome(NamedTuple):
    """What became of one sample."""

    sample: int
    verdict: Verdict
    stage: str = ""  # where that was decided
    message: str = ""


class Probe:
    """One (operator, dtype) on a device, against the CPU."""

    def __init__(self, name: str, dtype: str, device: str = "npu") -> None:
        self.op = operators()[name]
        self.dtype_name, self.dtype = dtype, DTYPES[dtype]
        self.device = device
        self.backward = differentiable(self.op, self.dtype)
        self.seed = zlib.crc32(name.encode())
        self.uninitialised = name in UNINITIALISED
        self.deviation = deviations().get(name, Deviation()) if device != "cpu" else Deviation()
        self.calls: set[str] = set()  # ATen overloads that were reached
        self.variants: Counter[str] = Counter()  # what the same call in another form met

    def samples(self, limit: int | None = None) -> Iterator[partial[Outcome | None]]:
        """One callable for each of the database's samples: its outcome, or None where it says nothing.

        With a limit, about so many of them, evenly spread.
        """
        self.seed_all()
        samples = list(self.op.sample_inputs("cpu", self.dtype, requires_grad=self.backward))
        for index in range(0, len(samples), max(1, len(samples) // limit) if limit else 1):
            yield partial(self.judge, index, samples[index])

    def judge(self, index: int, sample: Any) -> Outcome | None:
        if not tensors_of((sample.input, sample.args, sample.kwargs)) and "device" not in sample.kwargs:
            return None  # nothing in the call names a device
        try:
            state = self.seed_all()
            expected = _Run(self, sample, "cpu")
            drawn = not torch.equal(state, torch.get_rng_state())
        except Exception:
            return None
        if index < CALLS_FROM:
            self.calls |= registered.calls_of(lambda: _Run(self, sample, self.device))
        before = launches.computing_launches()
        compare = _Comparison(self, sample, expected, drawn)
        for stage, check in (("forward", compare.forward), ("backward", compare.backward)):
            if outcome := self._attempt(index, stage, check):
                return outcome
        kernels = launches.computing_launches() - before
        for stage, check in (("strided", compare.strided), ("in place", compare.in_place), ("out=", compare.out)):
            # What these refuse or lack is no fault of the call that was looked at; a wrong result is.
            if outcome := self._attempt(index, stage, check):
                if outcome.verdict is Verdict.WRONG:
                    return outcome
                self.variants[f"{stage} {outcome.verdict}"] += 1
        return Outcome(index, Verdict.PASSES if kernels else Verdict.NO_KERNEL)

    def _attempt(self, index: int, stage: str, check: Callable[[], list[str]]) -> Outcome | None:
        """None if the check finds nothing."""
        try:
            problems = check()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            expected = re.search(self.deviation.error, message)
            return Outcome(index, Verdict.REFUSED if expected else of_error(message), stage, message)
        return Outcome(index, Verdict.WRONG, stage, "; ".join(problems)) if problems else None

    def seed_all(self, offset: int = 0) -> torch.Tensor:
        """Every generator that a sample or an operator may draw from; the state of the CPU's."""
        # Not torch.manual_seed: for devices that are not initialised it keeps a formatted traceback, 100 times slower.
        seed = self.seed + offset
        torch.default_generator.manual_seed(seed)
        if self.device != "cpu":
            torch.get_device_module(self.device).default_generators[0].manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        return torch.get_rng_state()


class _Run:
    """One call of the operator on a device, and its gradients."""

    def __init__(
        self, probe: Probe, sample: Any, device: str, convert: Callable[[Any], Any] | None = None, seed: int = 0
    ):
        self.probe = probe
        self.input, self.args, self.kwargs = map_sample(sample, convert or to_device(device))
        probe.seed_all(seed)
        result = probe.op(self.input, *self.args, **self.kwargs)
        self.result = sample.output_process_fn_grad(result)

    def gradients(self) -> list[torch.Tensor | None]:
        """Those of the inputs, for fixed random gradients of the results."""
        leaves = [t for t in tensors_of((self.input, self.args, self.kwargs)) if t.requires_grad]
        results = [t for t in tensors_of(self.result) if t.requires_grad]
        if not leaves or not results:
            return []
        generator = torch.Generator().manual_seed(self.probe.seed)
        directions = []
        for result in results:
            direction = torch.randn(result.shape, generator=generator, dtype=torch.float32)
            # Rounded to the probed dtype first, so that a run in float32 for comparison starts from the same numbers.
            rounded = direction.to(self.probe.dtype) if self.probe.dtype.is_floating_point else direction
            directions.append(rounded.to(result.device, result.dtype))
        return list(torch.autograd.grad(results, leaves, directions, allow_unused=True))


class _Comparison:
    """The checks of one sample: each returns what is wrong, or raises what the NPU raises."""

    def __init__(self, probe: Probe, sample: Any, expected: _Run, drawn: bool) -> None:
        self.probe, self.sample, self.expected, self.drawn = probe, sample, expected, drawn
        self.values = not drawn and not probe.uninitialised
        self.actual: _Run

    def differences(
        self, actual: Any, expected: Any, truth: Callable[[_Run], Any], sample: Any = None, part: str = "results"
    ) -> list[str]:
        """Against the CPU; where that differs, also against what `truth` takes from the same call in a wider dtype."""
        facts = {
            "dtype": self.probe.dtype,
            "values": self.values,
            "device": self.probe.device,
            "skip": getattr(self.probe.deviation, part),
            "absolute": self.probe.deviation.absolute.get(self.probe.dtype_name, 0.0),
        }
        problems = differences(actual, expected, None, **facts)
        if not problems or not self.values:
            return problems
        try:
            with _wider_default():
                best = truth(_Run(self.probe, sample or self.sample, "cpu", widen(self.probe.dtype)))
        except Exception:  # not everything that takes a dtype takes the wider one
            return problems
        return differences(actual, expected, best, **facts)

    def forward(self) -> list[str]:
        self.actual = _Run(self.probe, self.sample, self.probe.device)
        problems = self.differences(self.actual.result, self.expected.result, lambda run: run.result)
        if self.drawn and not problems:
            problems = self._repeatable()
        return problems

    def _repeatable(self) -> list[str]:
        """Drawn numbers are the same for the same seed, and others for another, as they are on the CPU."""
        again = _Run(self.probe, self.sample, self.probe.device)
        if not _same(self.actual.result, again.result):
            return ["the same seed gave other numbers"]
        if sum(t.numel() for t in tensors_of(self.expected.result)) < 32:
            return []
        if _same(self.expected.result, _Run(self.probe, self.sample, "cpu", seed=1).result):
            return []
        other = _Run(self.probe, self.sample, self.probe.device, seed=1)
        return ["another seed gave the same numbers"] if _same(self.actual.result, other.result) else []

    def backward(self) -> list[str]:
        if not self.probe.backward:
            return []
        try:
            expected = self.expected.gradients()
        except Exception:
            return []  # the CPU has no derivative for this sample
        return self.differences(self.actual.gradients(), expected, lambda run: run.gradients(), part="gradients")

    def strided(self) -> list[str]:
        """Non-contiguous inputs."""
        if self.drawn:
            return []
        try:
            sample = self.sample.noncontiguous()
            with torch.no_grad():
                expected = _Run(self.probe, sample, "cpu").result
        except Exception:
            return []
        with torch.no_grad():
            actual = _Run(self.probe, sample, self.probe.device).result
        return self.differences(actual, expected, lambda run: run.result, sample)

    def in_place(self) -> list[str]:
        """The method with an underscore: it changes its tensor and returns it."""
        variant = self.probe.op.inplace_variant
        if variant is None or self.sample.broadcasts_input or not isinstance(self.sample.input, torch.Tensor):
            return []

        def run(device: str) -> list[Any]:
            first, args, kwargs = map_sample(self.sample, to_device(device))
            first = copy_to(first.detach(), device)
            self.probe.seed_all()
            with torch.no_grad():
                returned = variant(first, *args, **kwargs)
            return [first, returned is first]

        try:
            expected = run("cpu")
        except Exception:
            return []
        return self.differences(run(self.probe.device), expected, lambda run: [run.result, True])

    def out(self) -> list[str]:
        """Into tensors that the caller gives: they are written, and returned."""
        results = tensors_of(self.expected.result)
        if not self.probe.op.supports_out or not results or "out" in self.sample.kwargs:
            return []

        def run(device: str, like: list[torch.Tensor]) -> list[Any]:
            first, args, kwargs = map_sample(self.sample, to_device(device))
            given = [torch.full_like(t.detach(), 1, device=device) for t in like]
            self.probe.seed_all()
            with torch.no_grad():
                returned = self.probe.op(first, *args, **kwargs, out=given[0] if len(given) == 1 else tuple(given))
            return [given, [r is g for r, g in zip(tensors_of(returned), given, strict=True)]]

        try:
            expected = run("cpu", results)
        except Exception:
            return []
        # Of the shape and dtype that the device itself gives, but for float64, which is asked for and not given.
        like = [
            e if e.dtype is torch.float64 else a for a, e in zip(tensors_of(self.actual.result), results, strict=True)
        ]
        actual = run(self.probe.device, like)
        return self.differences(actual, expected, lambda run: [tensors_of(run.result), expected[1]])


@contextlib.contextmanager
def _wider_default() -> Iterator[None]:
    """Integers become float64 where they would become float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _same(left: Any, right: Any) -> bool:
    pairs = zip(tensors_of(left), tensors_of(right), strict=True)
    return all(torch.equal(torch.nan_to_num(a.detach().cpu()), torch.nan_to_num(b.detach().cpu())) for a, b in pairs)
