"""Pictures of the quickstart's page for docs/html.md: `python -m scripts.screenshots`, with Chromium and playwright.

Light, dark, printed, narrow and wide. Another processor gives other digits in them.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import sync_playwright

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.sections import document
from moeparity.output.html.page import html

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "screenshots"
LARGEST = 150_000
"""Bytes of one picture."""


PACK = """async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.9);
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A window of the page: from which section on, how wide and high, in which colours, on screen or paper."""

    name: str
    section: str
    width: int = 1440
    height: int = 900
    colours: Literal["light", "dark"] = "light"
    media: Literal["screen", "print"] = "screen"


SHOTS = (
    Shot(name="answer", section="answer"),
    Shot(name="blame", section="blame"),
    Shot(name="growth-dark", section="growth", colours="dark", height=760),
    Shot(name="flips-dark", section="flips", colours="dark", height=640),
    Shot(name="tokens", section="tokens", height=560),
    Shot(name="graph", section="graph"),
    Shot(name="narrow", section="answer", width=380, height=800),
    Shot(name="narrow-blame", section="blame", width=380, height=800),
    Shot(name="print", section="blame", width=794, height=1000, media="print"),
)


def main() -> None:
    """Run the recipe and take the pictures."""
    report = bisect(ROOT / "recipes" / "rounding.yaml", device="cpu", options=Options(attribute=True))
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        file.write_text(html(document(report)), "utf-8")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for shot in SHOTS:
            size = _shoot(browser, file, shot)
            print(f"{shot.name}: {size / 1000:.0f} kB")
            assert size <= LARGEST, "make the window smaller"
        browser.close()


def _shoot(browser: Any, file: Path, shot: Shot) -> int:
    """Take one picture; its bytes."""
    tab = browser.new_page(viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.colours)
    tab.goto(file.as_uri())
    tab.emulate_media(media=shot.media, reduced_motion="reduce")
    if shot.section != "answer":
        tab.evaluate(f"document.getElementById('{shot.section}').scrollIntoView()")
    if shot.section == "flips":
        tab.focus("#plot-flipmap")
        tab.keyboard.press("Shift+ArrowRight")
        tab.locator("#plot-flipmap canvas").hover(position={"x": 333, "y": 60})
    tab.wait_for_timeout(300)
    picture = base64.b64encode(tab.screenshot()).decode()
    tab.close()
    # The browser packs pictures better than PNG does.
    blank = browser.new_page()
    packed = blank.evaluate(PACK, f"data:image/png;base64,{picture}").partition(",")[2]
    blank.close()
    path = FOLDER / f"{shot.name}.webp"
    path.write_bytes(base64.b64decode(packed))
    return path.stat().st_size


if __name__ == "__main__":
    main()
