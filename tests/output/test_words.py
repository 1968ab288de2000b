"""Numbers and intervals as reports write them."""

from __future__ import annotations

import math

from moeparity.metrics.verdict import Interval
from moeparity.output.words import after_estimate, between, shortened


def test_a_bound_that_is_not_there_is_no_number() -> None:
    assert between(0.12345, 3.0) == "[0.123, 3]"
    assert between(0.1, math.inf) == "[0.1, no bound]"
    assert between(-math.inf, 0.1, ".1f") == "[no bound, 0.1]"
    assert between(-math.inf, math.inf) == "no interval"


def test_what_follows_an_estimate() -> None:
    interval = Interval(estimate=0.2, low=0.1, high=0.3, level=0.95, method="bootstrap-t")
    unknown = Interval(estimate=0.2, low=-math.inf, high=math.inf, level=0.95, method="none")
    assert after_estimate(interval) == " [0.1, 0.3] (95%, bootstrap-t over sequences)"
    assert after_estimate(unknown) == ", no interval"


def test_a_message_is_as_long_as_one_can_be_read() -> None:
    """Keys and values out of files may be as long as the files; what to do about it stands at the end."""
    usual = f"recipe.yaml:3: unknown key 'k'; expected one of {', '.join(f'name{i}' for i in range(150))}. Did you?\n"
    assert shortened(usual) == usual
    long = shortened(f"recipe.yaml:3: unknown key '{'a' * 100_000}'; expected one of kind.")
    assert long == f"recipe.yaml:3: unknown key '{'a' * 149}...{'a' * 148}'; expected one of kind."
    assert max(map(len, shortened("x " * 100_000 + "\n" + "y " * 100_000).split("\n"))) == 1803
