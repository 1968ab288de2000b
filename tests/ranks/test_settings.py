"""Settings come from arguments, else from the environment, and nothing mistyped is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.errors import RankError
from moeparity.ranks.settings import GuardSettings, settings


def test_arguments_come_before_the_environment_before_the_defaults() -> None:
    environment = {"MOEPARITY_RANKS_INPUTS_EVERY": "4", "MOEPARITY_RANKS_FOLDER": "logs/x", "OTHER": "1"}
    got = settings({"inputs_every": 2, "sample_bytes": None}, environment)
    assert got == GuardSettings(inputs_every=2, folder=Path("logs/x"), sample_bytes=None)
    assert settings({}, {}) == GuardSettings()
    assert settings({}, {"MOEPARITY_RANKS_SAMPLE_BYTES": "all"}).sample_bytes is None


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ({"watchdog": 3}, {}, r"watchdog=: no such setting; .* Did you mean 'watchdog_s'\?"),
        ({}, {"MOEPARITY_RANKS_RNGS": "x"}, r"\$MOEPARITY_RANKS_RNGS: no such setting"),
        ({"rng": "lock-step"}, {}, r"rng= 'lock-step': expected one of lockstep, broadcast. Did you mean 'lockstep'\?"),
        ({}, {"MOEPARITY_RANKS_COLLECTIVES": "on"}, "expected one of log, check, off"),
        ({"inputs_every": -1}, {}, "inputs_every= -1: expected a number of 0 or more"),
        ({"inputs_every": 1.5}, {}, "expected a number of 0 or more"),
        ({"watchdog_s": "nan"}, {}, r"expected a number of 0\.05 or more"),
        ({"heartbeat_s": 0}, {}, r"expected a number of 0\.05 or more"),
    ],
)
def test_what_is_no_setting_is_refused(arguments: dict[str, object], environment: dict[str, str], words: str) -> None:
    with pytest.raises(RankError, match=words):
        settings(arguments, environment)
