"""The places that a page's scripts draw in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from moeparity.output.html.markup import tag


def legend(words: Mapping[str, str]) -> Markup:
    """What the looks of a picture mean, by the name that the style sheet has for each."""
    return keys(words.items())


def keys(words: Iterable[tuple[str, str]]) -> Markup:
    """The same of looks that come again."""
    return tag("div", [tag("span", text, class_=f"key k-{name}") for name, text in words], class_="keys")


def plot(name: str, label: str, tools: Markup | None = None) -> Markup:
    """Where `name` is drawn: reached by the keyboard, with a line that says what is pointed at. `tools` stand above."""
    canvas = tag(
        "div",
        id=f"plot-{name}",
        class_="plot",
        tabindex="0",
        role="application",
        aria_label=f"{label}. Arrow keys move.",
    )
    readout = tag("p", "Point at it, or use the arrow keys.", id=f"say-{name}", class_="say", aria_live="polite")
    return (tools or Markup("")) + canvas + readout
