"""What the examples share: their command line, and what they print, draw and write."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(about: str | None, train: Callable[[int], Iterable[float]], steps: int) -> None:
    """Runs `train`, shows the loss as it falls, and ends with JSON ({"device", "losses", "seconds"}) if asked."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help=f"training steps ({steps})")
    parser.add_argument("--json", action="store_true", help="print the losses as JSON at the end")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the loss curve (needs matplotlib)")
    options = parser.parse_args()
    import jax

    device = jax.devices()[0]
    say(f"{jax.default_backend()}: {device.device_kind}")
    losses: list[float] = []
    begin = time.monotonic()
    for loss in train(options.steps):
        losses.append(loss)
        if len(losses) == 1 or len(losses) % 10 == 0 or len(losses) == options.steps:
            say(f"step {len(losses):4d}  loss {loss:.5f}  {time.monotonic() - begin:6.1f} s")
    if options.plot:
        _plot(losses, options.plot)
    if options.json:
        print(json.dumps({"device": device.platform, "losses": losses, "seconds": time.monotonic() - begin}))


def _plot(losses: list[float], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats)")
    axes.plot(range(1, len(losses) + 1), losses, linewidth=1)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
