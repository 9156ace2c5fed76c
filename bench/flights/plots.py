"""Draws the plots of the page as small SVG files; equal data gives equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

INK, LINE, MARK = "#30343c", "#d8dbe0", "#b5482f"
OUTLINED_FROM = 100
"""Number of bars from which they are drawn as one shape, which keeps the file small."""
WIDTH_INCHES, HEIGHT_INCHES = 7.2, 2.6


def bars(rows: Sequence[Any], title: str, path: Path, *, mark: Sequence[Any] = ()) -> None:
    """Draw a bar for each row (name, height), and highlight the names in `mark`."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    names, heights = [row[0] for row in rows], [float(row[1]) for row in rows]
    mpl.rcParams |= {"svg.hashsalt": "odradek", "svg.fonttype": "none", "font.size": 9}
    figure, axes = plt.subplots(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    marked = [at for at, name in enumerate(names) if name in mark]
    if len(rows) > OUTLINED_FROM:
        axes.fill_between(range(len(rows)), heights, step="mid", color=INK, linewidth=0)
        axes.bar(marked, [heights[at] for at in marked], width=1, color=MARK)
    else:
        colours = [MARK if at in marked else INK for at in range(len(rows))]
        axes.bar(range(len(rows)), heights, width=0.8, color=colours)
    labels = [str(name) for name in names]
    step = max(1, len(rows) // (12 if max(map(len, labels)) < 6 else 6))
    axes.set_xticks(range(0, len(rows), step), labels[::step])
    axes.set_title(title, loc="left", color=INK, fontsize=10)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
