"""A page of 61 layers, 5,000 tokens and 40 toggles: how large it is, and how soon it is painted and can be used.

`python -m benchmarks.pages [--out FILE]` needs Chromium and playwright. The report is that of the quickstart with its
layers, tokens and toggles multiplied: what stands in it is no result, but as many numbers, names and rows as one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.report import Report
from moeparity.bisection.sections import document
from moeparity.bisection.shares.data import Attribution
from moeparity.inputs.machine import cpu_name
from moeparity.output.html.page import html

ROOT = Path(__file__).parents[1]
LAYERS, SEQUENCES, LENGTH, TOGGLES, TOP_K = 61, 50, 100, 40, 8
RUNS = 3
FLIPPED, COMPARED = 2, 1

TIMES = """() => ({
    paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
    ready: Number(document.documentElement.dataset.ready),
    elements: document.querySelectorAll('*').length,
})"""


def many_tokens(seed: int = 0) -> PerToken:
    """Random tokens, 4 % of whose token-layers flip."""
    draw = np.random.default_rng(seed)
    shape = (LAYERS, SEQUENCES, LENGTH)
    flips = COMPARED + FLIPPED * (draw.random(shape) < 0.04).astype(np.uint8)
    flipped = np.argwhere(flips & FLIPPED)
    delta = draw.normal(0, 0.02, shape[1:]).astype(np.float32)
    experts = np.stack([np.stack([draw.choice(256, TOP_K, replace=False) for _ in "ab"]) for _ in range(len(flipped))])
    scored = np.ones(shape[1:], dtype=bool)
    scored[:, 0] = False
    k3 = np.where(scored, np.expm1(delta) - delta, 0).astype(np.float32)
    draws = -draw.exponential(1.5, shape[1:]).astype(np.float32)
    return PerToken(
        input_ids=draw.integers(0, 150_000, shape[1:]),
        real=np.ones(shape[1:], dtype=bool),
        scored=scored,
        k3=k3,
        kl=k3,
        delta=delta,
        reference_logprob=draws,
        candidate_logprob=(draws - delta).astype(np.float32),
        layers=np.arange(LAYERS),
        flips=flips,
        margin=np.exp2(draw.uniform(0, 24, shape)).astype(np.float32),
        perturbation=np.exp2(draw.uniform(0, 20, shape)).astype(np.float32),
        flipped=flipped,
        experts=experts.astype(np.int64),
    )


def enlarged(report: Report) -> Report:
    """The report with 61 layers, 5,000 tokens and 40 toggles."""
    toggles = [replace(report.toggles[i % len(report.toggles)], name=f"toggle {i}") for i in range(TOGGLES)]
    layers = [layer for layer in report.growth if layer.name.startswith("layers")]
    growth = [replace(layers[i % len(layers)], name=f"layers[{i}]") for i in range(LAYERS)]
    nodes = [
        replace(node, layer=i, node=node.node.replace("[0]", f"[{i}]"))
        for i in range(LAYERS)
        for node in report.nodes
        if node.layer == 0
    ]
    assert report.flips is not None
    assert report.graph is not None
    flips = replace(
        report.flips,
        layers=tuple(replace(report.flips.layers[i % len(report.flips.layers)], layer=i) for i in range(LAYERS)),
    )
    segments = tuple(replace(s, layers=tuple(range(LAYERS)) if s.layers else ()) for s in report.graph.segments)
    return replace(
        report,
        toggles=tuple(toggles),
        growth=tuple(growth),
        nodes=tuple(nodes),
        flips=flips,
        graph=replace(report.graph, segments=segments),
        attribution=_shares(report.attribution),
        per_token=many_tokens(),
    )


def _shares(attribution: Attribution | None) -> Attribution:
    assert attribution is not None
    rows = attribution.shares.rows
    acting = [row for row in rows if row.role != "had no effect"]
    many = [replace(acting[i % len(acting)], name=f"toggle {i}", of_whole=1 / TOGGLES) for i in range(TOGGLES)]
    return replace(attribution, shares=replace(attribution.shares, rows=tuple(many)))


def timed(file: Path) -> dict[str, float]:
    """Milliseconds to the first paint, until everything is drawn and answers, and from a key to its answer."""
    samples: list[dict[str, Any]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(RUNS):
            tab = browser.new_page(viewport={"width": 1440, "height": 900})
            tab.goto(file.as_uri())
            tab.wait_for_timeout(300)
            sample = tab.evaluate(TIMES)
            tab.focus("#plot-flipmap")
            start = time.perf_counter()
            tab.keyboard.press("ArrowDown")
            assert "layer 1," in tab.locator("#say-flipmap").inner_text()
            samples.append({**sample, "key": 1000 * (time.perf_counter() - start)})
            tab.close()
        browser.close()
    return {key: median(sample[key] for sample in samples) for key in samples[0]}


def main() -> None:
    """Make both pages and time them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep the large page here")
    out = parser.parse_args().out
    report = bisect(ROOT / "recipes" / "rounding.yaml", device="cpu", options=Options(attribute=True))
    print(f"{cpu_name()}, {date.today()}; medians of {RUNS} loads in headless Chromium")
    with tempfile.TemporaryDirectory() as folder:
        for name, shown in (("quickstart", report), (f"{LAYERS} x {SEQUENCES * LENGTH}", enlarged(report))):
            start = time.perf_counter()
            page = html(document(shown))
            made_s = time.perf_counter() - start
            file = Path(folder) / "page.html"
            file.write_text(page, "utf-8")
            times = timed(file)
            print(
                f"{name:<12} {len(page.encode()) / 1e6:.2f} MB, made in {made_s:.2f} s; first paint "
                f"{times['paint']:.0f} ms, drawn and ready {times['ready']:.0f} ms, a key answers in "
                f"{times['key']:.0f} ms; {times['elements']:.0f} elements"
            )
            if out is not None and shown is not report:
                shutil.copy(file, out)


if __name__ == "__main__":
    main()
