"""Draw the curves of a disturbed and an undisturbed job as one SVG."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from e2e.recipe.curves import Training

COLORS = ("tab:orange", "tab:green", "tab:purple")


def draw(path: Path, title: str, disturbed: Training, undisturbed: Training) -> None:
    """Write a figure with the losses above, and the number of slices of the disturbed job below."""
    mpl.rcParams["svg.hashsalt"] = title  # the same curves give the same file
    figure = Figure(figsize=(8, 5), layout="constrained")
    losses, slices = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
    draw_losses(losses, disturbed, undisturbed)
    losses.set_title(title)
    last = max(disturbed.loss)
    starts = [first for first, _ in disturbed.slices]
    numbers = [number for _, number in disturbed.slices]
    slices.stairs(numbers, [*starts, last], fill=True, color="tab:blue", alpha=0.4)
    slices.set(ylabel="slices", xlabel="step", ylim=(0, max(numbers) + 0.3), yticks=range(max(numbers) + 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def draw_losses(axes: Axes, disturbed: Training, undisturbed: Training) -> None:
    """Draw the training losses of both jobs, and the evaluations of both."""
    axes.plot(*columns(undisturbed.loss), color="0.6", linewidth=3, label="training, undisturbed")
    axes.plot(*columns(disturbed.loss), color="tab:blue", linewidth=1, label="training, slice lost")
    for color, (name, curve) in zip(COLORS, undisturbed.evaluations.items(), strict=False):
        axes.plot(*columns(curve), color=color, linewidth=4, alpha=0.3, label=f"{name}, undisturbed")
        axes.plot(*columns(disturbed.evaluations[name]), "o", color=color, markersize=4, label=f"{name}, slice lost")
    axes.set_ylabel("loss (nats)")
    axes.grid(alpha=0.3)
    axes.legend()


def columns(curve: dict[int, float]) -> tuple[list[int], list[float]]:
    """Return the steps and the values of a curve."""
    return list(curve), list(curve.values())
