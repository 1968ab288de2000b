"""Names, counts and fractions, as all reports write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from moeparity.metrics.verdict import Interval


def enumerated(names: Sequence[str], word: str = "and") -> str:
    """`a, b and c`; `word` replaces `and`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def few(names: Sequence[str], most: int) -> str:
    """`a`, `a and b`, `a, b and 2 more`: at most `most` names."""
    if len(names) <= most:
        return enumerated(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def more(count: int, shown: int) -> str:
    """`, and 2 more`, after the first `shown` of `count` things; empty if all are shown."""
    return f", and {count - shown} more" if count > shown else ""


def quantity(count: int, noun: str) -> str:
    """`1 node`, `3 nodes`, `2 passes`."""
    ending = "es" if noun.endswith(("s", "x")) else "s"
    return f"{count} {noun}{ending * (count != 1)}"


def percent(share: float) -> str:
    """`12.34%`."""
    return f"{share:.2%}"


def two_digits(error: float) -> str:
    """A relative error in two digits."""
    return "not finite" if math.isinf(error) else f"{error:.1e}"


def between(low: float, high: float, digits: str = ".3g") -> str:
    """`[0.1, 0.3]`, `[0.1, no bound]`; `no interval` without any bound."""
    if math.isinf(low) and math.isinf(high):
        return "no interval"
    return f"[{', '.join('no bound' if math.isinf(bound) else f'{bound:{digits}}' for bound in (low, high))}]"


def after_estimate(value: Interval) -> str:
    """The text after an estimate: ` [0.1, 0.3] (95%, bootstrap-t over sequences)`, or `, no interval`."""
    if value.method == "none":
        return ", no interval"
    return f" {between(value.low, value.high)} ({value.level:.0%}, {value.method} over sequences)"


def of_whole(value: float | None, whole: float) -> str:
    """A trial's KL and its fraction of the candidate's KL: `1.20e-04  37%`; without the fraction if `whole` is 0."""
    if value is None:
        return "cannot run"
    return f"{value:.2e} {value / whole:>4.0%}" if whole > 0 else f"{value:.2e}"


def fitted(text: str, width: int) -> str:
    """The text for lines of this width. A longer path loses its middle; other longer words are broken after a dot, a
    colon or the like.
    """
    return re.sub(r"\S+", lambda match: match[0] if len(match[0]) <= width else _fitted_word(match[0], width), text)


_PATH = re.compile(r"[^\s/]*(?:/[^\s/]+)+/?")
_BREAKS = ".:,/|=_-)]"


def _fitted_word(word: str, width: int) -> str:
    if _PATH.fullmatch(word):
        tail = (width - len(_LEFT_OUT)) * 2 // 3
        return f"{word[: width - len(_LEFT_OUT) - tail]}{_LEFT_OUT}{word[len(word) - tail :]}"
    lines = []
    while len(word) > width:
        at = 1 + max((word.rfind(mark, 0, width) for mark in _BREAKS), default=-1)
        cut = at if at > 1 else width
        lines.append(word[:cut])
        word = word[cut:]
    return "\n".join((*lines, word))


_LEFT_OUT = "..."


_UNPRINTABLE = re.compile(
    # Control characters except tab and line feed; marks that change the direction of text; line ends that terminals do
    # not know; halves of surrogate pairs, which can't be encoded.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with every character that controls a terminal, or hides text, written as its number: `\x1b`, `\u202e`.

    Names come from other people's files. So whatever is printed and is not moeparity's own text goes through this.
    """
    return _UNPRINTABLE.sub(lambda match: _number(ord(match[0])), text)


_LONG_WORD = re.compile(r"\S{301,}")
_LONGEST_LINE = 1_800


def shortened(text: str) -> str:
    """The text, with the middle of very long words and lines left out. Messages quote keys, ids and values of users'
    files, and one of these may be as long as its file.
    """
    text = _LONG_WORD.sub(lambda match: ends(match[0], 300), text)
    return "\n".join(ends(line, _LONGEST_LINE) for line in text.split("\n"))


def ends(text: str, most: int) -> str:
    """The text, or its first and last `most` characters, since the end of a message says what to do."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[len(text) - most // 2 :]}"


def _number(character: int) -> str:
    return f"\\x{character:02x}" if character < 0x100 else f"\\u{character:04x}"
