"""A page: one file, with a policy that lets nothing in, and a library that is the one of its makers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text

from moeparity.output.html import page as module
from moeparity.output.html.packing import packed, script_data
from moeparity.output.html.page import SCRIPTS
from moeparity.output.html.strips import Scale, bar, whisker
from moeparity.output.html.transcript import Transcript
from moeparity.output.status import status_line

STATIC = Path(module.__file__).parent / "static"
LARGEST_LIBRARY = 60_000


def test_the_library_is_the_one_of_its_makers() -> None:
    vendor = json.loads((STATIC / "vendor" / "vendor.json").read_text("utf-8"))
    files = {file.name: file for file in (STATIC / "vendor").iterdir() if file.name != "vendor.json"}
    assert files.keys() == vendor["sha256"].keys()
    for name, digest in vendor["sha256"].items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest, name
    assert vendor["version"] in (STATIC / "vendor" / "uPlot.iife.min.js").read_text("utf-8")[:200]
    assert sum(file.stat().st_size for file in files.values()) < LARGEST_LIBRARY
    assert {path.name for path in STATIC.glob("*.js")} == set(SCRIPTS)


def test_arrays_come_back() -> None:
    values = np.array([[1.5, np.nan], [-np.inf, 0.0]], dtype=np.float32)
    box = packed(values)
    assert (box["kind"], box["shape"]) == ("f4", [2, 2])
    assert np.frombuffer(base64.b64decode(box["base64"]), dtype="<f4").tobytes() == values.tobytes()
    with pytest.raises(KeyError):
        packed(np.zeros(1))


def test_data_holds_nothing_that_html_knows() -> None:
    text = script_data({"name": "</script><!--<script>&\u202e", "inf": float("inf")})
    assert not set("<>&\u202e") & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>&\\u202e", "inf": "inf"}


def recorded() -> Transcript:
    transcript = Transcript()
    opening = status_line("done", "k3 1e-4, no gate; exit 0")
    for item in (opening, "files  a<b", Text("\nMetrics", style="bold"), Text("one"), opening):
        transcript.print(item)
    return transcript


def test_what_a_command_prints_becomes_sections() -> None:
    html = recorded().page("metrics", "<log>.jsonl", "done").to_html()
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", html) == ["The answer", "Metrics"]
    assert html.count("k3 1e-4, no gate") == 1, "the closing line is left out"
    assert "&lt;log&gt;.jsonl" in html
    assert "uPlot" not in html, "without pictures nothing is needed to draw them"


def test_scripts_and_styles_are_those_that_the_policy_names() -> None:
    html = recorded().page("metrics", "x", "done").to_html()
    for kind, name in (("script", "script"), ("style", "style")):
        (body,) = re.findall(rf"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{name}-src &#39;sha256-{digest.replace('+', '&#43;')}&#39;" in html or f"sha256-{digest}" in html


def test_a_scale_holds_nought_and_its_values() -> None:
    scale = Scale.over([3.0, -1.0, float("inf")])
    assert (scale.low < -1.0, scale.high > 3.0) == (True, True)
    assert 0.0 in scale.ticks
    assert 'width="' in bar(scale, 0.0, 3.0, "look")
    assert whisker(scale, -float("inf"), 2.0).count("<line") == 2, "an end without bound has no stop"
    assert Scale.over([]).ticks
