"""Curves over the updates, drawn with matplotlib, which comes with the extra `plot`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.rl_loop.seeds import Seeds

SHOWN = ("bf16 head", "fp8", "raw", "stale prefix", "lag 16")
PANELS = {"k3": ("k3, nats", True), "mean_ratio": ("mean ratio", False), "ess_fraction": ("ESS, of 1", False)}
PANELS |= {"clip rate": ("clip rate", False), "entropy": ("entropy, nats", False), "reward": ("reward", False)}
SMOOTHED = 5


def plot(trainings: Mapping[str, Seeds], path: Path) -> None:
    """A panel for each column: moving means of `SMOOTHED` steps, averaged over seeds; the band holds all seeds."""
    mpl.use("Agg")
    # Names of elements are then the same in each file.
    mpl.rcParams["svg.hashsalt"], mpl.rcParams["font.size"] = "rl-loop", 8
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), layout="constrained")
    for panel, (name, (label, log)) in zip(axes.flat, PANELS.items(), strict=True):
        for setting in SHOWN + (() if log else ("matched",)):
            curves = [_smooth([row[name] for row in rows]) for rows in trainings[setting]]
            steps, columns = range(len(curves[0])), list(zip(*curves, strict=True))
            means = [statistics.fmean(column) for column in columns]
            color = "black" if setting == "matched" else None
            (line,) = panel.plot(steps, means, label=setting, linewidth=1, color=color)
            low, high = [min(column) for column in columns], [max(column) for column in columns]
            panel.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        panel.set(xlabel="updates", title=label, yscale="log" if log else "linear")
        panel.spines[["top", "right"]].set_visible(False)
    # The last panel has all of them.
    figure.legend(*axes.flat[-1].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _smooth(values: list[float]) -> list[float]:
    return [statistics.fmean(values[max(0, step - SMOOTHED + 1) : step + 1]) for step in range(len(values))]
