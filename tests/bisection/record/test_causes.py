"""What a record looks like that a side does not reproduce, on distributions written here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moeparity.bisection.record.measure import causes
from moeparity.bisection.record.observe import Records

SHAPE = (32, 40)
VOCABULARY = 50


def records(logprobs: Tensor, computed: Tensor, ids: Tensor) -> Records:
    """A record of all tokens but the first of each sequence, and what the candidate gives them; all [B, T]."""
    mask = torch.ones(SHAPE, dtype=torch.bool).index_fill_(1, torch.tensor([0]), False)
    return Records(
        output="lm_head",
        recorder="candidate",
        draws=(),
        input_ids=ids,
        mask=mask,
        logprobs=logprobs,
        routed_experts=None,
        computed={"candidate": [computed[mask]]},
    )


def distributions(temperature: float) -> Tensor:
    logits = 3 * torch.randn(*SHAPE, VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize("temperature", [0.7, 1.4])
@pytest.mark.parametrize("sampled", ["processed", "raw"])
def test_the_temperature_to_set_is_estimated(temperature: float, sampled: str) -> None:
    """Whichever of the two distributions the tokens were drawn from, the side must divide by what the record did."""
    of_record, of_side = distributions(temperature), distributions(1.0)
    drawn_from = of_record if sampled == "processed" else of_side
    generator = torch.Generator().manual_seed(4)
    ids = torch.multinomial(drawn_from.exp().flatten(0, 1), 1, generator=generator).view(*SHAPE, 1)
    logprobs, computed = (values.gather(-1, ids).squeeze(-1) for values in (of_record, of_side))
    (cause,) = causes(records(logprobs, computed, ids.squeeze(-1)), Path("recipe.yaml"), sampled=True)
    (value,) = re.findall(r'^`set: {"log_probs:temperature": (.+)}` on the candidate', cause.advice)
    assert float(value) == pytest.approx(temperature, rel=0.05)


def test_what_is_equal_or_no_number_has_no_cause() -> None:
    ids = torch.zeros(SHAPE, dtype=torch.int64)
    values = distributions(1.0)[..., 0]
    assert not causes(records(values, values, ids), Path("recipe.yaml"), sampled=True)
    broken = values.index_fill(1, torch.tensor([5]), torch.nan)
    assert not causes(records(values, broken, ids), Path("recipe.yaml"), sampled=True)
