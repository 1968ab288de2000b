"""The readers of verl, NeMo-RL, SkyRL, OpenRLHF and TRL beside the configurations that these make themselves.

Compared is every setting of which the reader says anything, what it is where nothing is set among them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.profiles.launch.own_configuration import OwnConfiguration, lines, read_otherwise

pytestmark = pytest.mark.live
FILES = Path(__file__).parent / "files"
FIRST: dict[str, tuple[tuple[str, ...], ...]] = {
    "verl": (("model_engine=dp",), ("model_engine=megatron",)),
    "nemo-rl": ((str(FILES / "nemo-rl/megatron.yaml"),), (str(FILES / "nemo-rl/override.yaml"),)),
    "skyrl": ((),),
    "openrlhf": ((),),
    "trl": ((),),
}
"""Words that a line begins with: what makes another set of options."""
COUNTS = {"verl": 8, "nemo-rl": 60, "skyrl": 100, "openrlhf": 150, "trl": 150}


@pytest.mark.parametrize("trainer", list(FIRST))
def test_random_lines_come_to_what_the_trainer_makes_of_them(trainer: str, tmp_path: Path) -> None:
    own = OwnConfiguration(trainer)
    try:
        taken = 0
        for first in FIRST[trainer]:
            own.defaults = own.ask(first)["values"]
            for words in ([*first], *lines(own, first, COUNTS[trainer], seed=1)):
                answer = own.ask(words)
                if "values" in answer:
                    taken += 1
                    assert read_otherwise(own, words, answer["values"], tmp_path) == [], words
        assert taken > COUNTS[trainer] / 2
    finally:
        own.close()
