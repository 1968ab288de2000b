"""What roots in padding mean, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.report import Report
from moeparity.output.words import enumerated, quantity


def padding_reading(report: Report) -> Iterator[str]:
    """Whether roots at which nothing but padding differs reach a scored token."""
    names = [root.node for root in report.roots if root.pads_only]
    if not names:
        return
    unequal = report.metrics.unequal_tokens
    if not unequal:
        yield "Nothing but padding differs there: no scored token differs in any bit."
    elif len(names) == len(report.roots):
        yield f"Nothing but padding differs there, and yet {_differ(unequal)}: the padding reaches them."
    else:
        yield f"Nothing but padding differs at {enumerated(names)}; {_differ(unequal)} in all."


def _differ(count: int) -> str:
    return f"{quantity(count, 'scored token')} {'differs' if count == 1 else 'differ'}"
