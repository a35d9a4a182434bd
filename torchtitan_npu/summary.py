"""What a run comes to: summary.json, loss.png and a few lines."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Summary:
    steps: int
    first_loss: float
    last_loss: float
    validation_loss: float | None
    tokens_per_second: float | None
    peak_hbm_bytes: int
    kernel_launches_per_step: int | None
    losses: list[float]
    validation_losses: dict[int, float]
    learning_rates: list[float]
    gradient_norms: list[float]
    """Before clipping."""
    launches_by_operator: dict[str, int] | None

    def lines(self) -> list[str]:
        rows = [
            ("steps", f"{self.steps}"),
            ("first loss", f"{self.first_loss:.5f}"),
            ("last loss", f"{self.last_loss:.5f}"),
            ("validation loss", _or_none(self.validation_loss, "{:.5f}")),
            ("tokens/s", _or_none(self.tokens_per_second, "{:,.0f}")),
            ("peak HBM", f"{self.peak_hbm_bytes / 2**20:,.0f} MiB"),
            ("kernel launches a step", _or_none(self.kernel_launches_per_step, "{:,}")),
        ]
        return [f"  {name:<24}{value}" for name, value in rows]


def _or_none(value: float | None, form: str) -> str:
    return "not measured" if value is None else form.format(value)


def write(summary: Summary, folder: Path, steps: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(asdict(summary), indent=2) + "\n", encoding="utf-8")
    _plot(summary, steps, folder / "loss.png")


def _plot(summary: Summary, steps: list[int], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(steps, summary.losses, label="training", linewidth=1)
    if summary.validation_losses:
        axes.plot(list(summary.validation_losses), list(summary.validation_losses.values()), "o-", label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
