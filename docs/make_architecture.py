"""The figure of docs/architecture.md: the folders that four commands pass through.

    python docs/make_architecture.py

A command passes through a folder if it imports modules of that folder at run time.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

ROOMS = {
    "networks": "architectures",
    "runs": "running, caching, seeds",
    "results": "numbers, results, pages",
    "families": "networks to measure",
    "data": "data sets on disk",
    "tasks": "inputs and tasks",
    "derivatives": "derivatives by inputs",
    "kernels": "derivatives by weights",
    "training": "the training loop",
    "editing": "encoders, merges",
    "measures": "measurements",
    "papers": "figures of six papers",
    "cli": "commands",
}
COMMANDS = {
    "scan": ("cli", "families", "networks", "tasks", "measures", "derivatives", "runs", "kernels", "results"),
    "kernel": ("cli", "families", "data", "tasks", "measures", "kernels", "runs", "results"),
    "merge check": ("cli", "editing", "families", "data", "tasks", "measures", "runs", "results"),
    "reproduce": ("cli", "papers", "data", "tasks", "measures", "training", "runs", "results"),
}
COLOURS = ("#1f5f99", "#c2571a", "#3b7a57", "#7a4a9e")


def architecture() -> Figure:
    """Rows are folders; each command is a line through the folders that it uses, in order."""
    figure = Figure(figsize=(9.5, 6.4), layout="constrained")
    axes = figure.add_subplot()
    heights = {room: -place for place, room in enumerate(ROOMS)}
    for room, height in heights.items():
        axes.axhspan(height - 0.42, height + 0.42, color="#f1f0ea", zorder=0)
        axes.text(-3.15, height, room, va="center", fontsize=11, fontweight="bold")
        axes.text(-1.9, height, ROOMS[room], va="center", fontsize=9.5, color="#555555")
    for column, ((command, passed), colour) in enumerate(zip(COMMANDS.items(), COLOURS, strict=True)):
        places = [(column * 1.5 + 0.9 * step / (len(passed) - 1), heights[room]) for step, room in enumerate(passed)]
        axes.plot(*zip(*places, strict=True), "-", color=colour, alpha=0.45, linewidth=1.6)
        for step, (x, y) in enumerate(places, start=1):
            axes.plot(x, y, "o", color=colour, markersize=13)
            axes.text(x, y, str(step), color="white", ha="center", va="center", fontsize=8)
        axes.text(column * 1.5 + 0.45, 0.75, command, ha="center", color=colour, fontsize=11, fontweight="bold")
    axes.text(6.15, -6.0, "imports point up", ha="center", va="center", rotation=90, fontsize=9)
    axes.annotate("", (6.35, 0.2), (6.35, -12.2), arrowprops={"arrowstyle": "->", "color": "#555555"})
    axes.set_xlim(-3.3, 6.5)
    axes.set_ylim(-12.6, 1.1)
    axes.axis("off")
    return figure


if __name__ == "__main__":
    architecture().savefig(Path(__file__).parent / "images" / "architecture.png", dpi=120, facecolor="white")
