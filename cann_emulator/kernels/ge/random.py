"""Random numbers. The streams are torch's, seeded by the node's seeds or its key and counter: not those of hardware."""

import torch

from .registry import Node, kernel


@kernel("RandomUniform", "RandomStandardNormal", "RandomUniformInt")
def stateful(n: Node) -> None:
    """Other numbers at every execution; seeds of 0 take a random one."""
    seed = n.attr("seed", 0) << 32 | n.attr("seed2", 0)
    generator = torch.Generator()
    generator.manual_seed(seed) if seed else generator.seed()
    limits = (n.min, n.max) if n.type == "RandomUniformInt" else ()
    n.run(_draw, n.y, n.type, generator, *limits)


def _draw(
    y: torch.Tensor,
    kind: str,
    generator: torch.Generator,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> None:
    if low is not None and high is not None:
        y.copy_(torch.randint(int(low), int(high), y.shape, generator=generator))
    else:
        draw = torch.randn if "Normal" in kind else torch.rand
        y.copy_(draw(y.shape, generator=generator))


@kernel("StatelessRandomUniformV2", "StatelessRandomNormalV2")
def stateless(n: Node) -> None:
    """The same numbers for the same key and counter."""
    n.run(_draw_keyed, n.y, n.type, n.key, n.counter)


def _draw_keyed(y: torch.Tensor, kind: str, key: torch.Tensor, counter: torch.Tensor) -> None:
    words = [*key.view(torch.int64).reshape(-1).tolist(), *counter.view(torch.int64).reshape(-1).tolist()]
    generator = torch.Generator().manual_seed(hash(tuple(words)) & (1 << 63) - 1)
    _draw(y, kind, generator)
