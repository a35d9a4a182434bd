"""Random numbers of DTensors whose parts are on the host, as CPU offload has them when parameters are initialised."""

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch

_MIX = 6364136223846793005  # of Knuth's linear congruential generator


def draw_on_host(original: Callable) -> Callable:
    """`OffsetBasedRNGTracker._distribute_region`, in which the host's generator too is at the shard's own place.

    The region seeds the device's generator alone and puts the host's back where it was: every draw on the host gave
    the same numbers, on every rank, and a loop that rejects some of them (`trunc_normal_`) never ended.
    """

    @wraps(original)
    @contextlib.contextmanager
    def region(self: Any, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        with original(self, spec, generator=generator):
            if self.distribute_region_enabled:
                seed, offset = self._device_handle.get_rng_state().view(torch.int64).tolist()[:2]
                torch.default_generator.manual_seed((seed * _MIX + offset) % 2**63)
            yield

    return region
