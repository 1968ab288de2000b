"""The ablation table on a terminal of 80 columns."""

from __future__ import annotations

from dataclasses import replace

from moeparity.bisection.ablation.report import Ablation, RestoredSetting, Setting
from moeparity.bisection.ablation.show import document
from tests.bisection.reports import fill
from tests.printed import printed

TEMPERATURE = fill(
    Setting,
    name="logprobs_mode",
    tier="semantics",
    option=True,
    first="processed_logprobs",
    second="raw_logprobs",
    first_where="default of vLLM V0 0.8.5",
    second_where="new.sh:2",
    cure="logprobs_mode processed_logprobs",
    choices=("log_probs:temperature",),
    alone=0.1,
    back=0.0005,
    change_low=-0.2,
    change_high=-0.1,
    effect="lowers",
)
ROPE = replace(
    TEMPERATURE,
    name="op rope:products",
    tier="inference path",
    option=False,
    first="model (bf16)",
    second="fp32",
    cure="",
    choices=("rope:products",),
    alone=0.0004,
    back=0.0006,
    change_low=0.00001,
    change_high=0.0002,
    effect="raises",
)
SCHEDULING = replace(
    TEMPERATURE,
    name="async_scheduling",
    first="false",
    second="true",
    tier="inference path",
    cure="",
    alone=None,
    back=None,
    effect="no effect",
    says="which requests run together",
)
ABLATION = fill(
    Ablation,
    first="old.sh",
    second="new.sh",
    first_release="vLLM V0 0.8.5",
    second_release="vLLM 0.18.1",
    checkpoint="checkpoints/quickstart",
    sequences=32,
    tokens=512,
    tiers={"semantics": 0.1, "inference path": 0.0005, "objective": 0.0},
    kl=0.1,
    k3=0.06,
    settings=(TEMPERATURE, ROPE, SCHEDULING),
    order=(
        RestoredSetting(name="logprobs_mode", cure=TEMPERATURE.cure, left=0.0005, change_low=-0.2, change_high=-0.1),
        RestoredSetting(
            name="enforce_eager", cure="enforce_eager true", left=0.0006, change_low=0.00001, change_high=0.001
        ),
    ),
    left=0.0006,
)


def shown(ablation: Ablation) -> str:
    return "\n".join(line.rstrip() for line in printed(document(ablation).blocks, 80).splitlines())


def test_it_fits_and_says_what_each_does() -> None:
    text = shown(ABLATION)
    assert max(map(len, text.splitlines())) <= 80
    for line in (
        "DONE    3 settings differ, 2 change bits; KL of all together 0.1 nats per token,",
        "Semantics: what the log-probabilities are of",
        "  processed_logprobs -> raw_logprobs",
        "  model (bf16) -> fp32 [no flag]",
        "  - async_scheduling: false -> true (default of vLLM V0 0.8.5 -> new.sh:2):",
        "  1. logprobs_mode processed_logprobs: leaves KL 0.0005 (under 1%)",
        "  2. enforce_eager true: leaves KL 0.0006 (under 1%), which raises it",
        "  3. no flag for op rope:products: KL 0.0006 stays",
    ):
        assert line in text, text


def test_nothing_that_differs() -> None:
    text = shown(replace(ABLATION, settings=(), order=(), exact=True, kl=0.0, k3=0.0, left=0.0))
    assert "0 settings differ, 0 change bits; together they change none; exit 0" in text
    assert "  - nothing that can be set acts" in text
