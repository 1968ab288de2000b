"""The choices of `log_probs` by which a sampler changes logits of tokens that occurred: repetition, frequency and
presence penalties.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.ops.attribute import OTHER_THAN_1, Attribute, Condition, Value

DIVIDE, RECIPROCAL = "divide", "reciprocal"
TEXT, OUTPUT = "text", "output"
FIRST, LAST = "first", "last"

_REPEATED: Condition = {"repetition_penalty": (OTHER_THAN_1,)}


def penalizes(values: Mapping[str, Value]) -> bool:
    """Whether logits of tokens that occurred are changed. A user's function in place of the op has no values."""
    repeats = values.get("repetition_penalty", 1) != 1
    return bool(repeats or values.get("presence_penalty") or values.get("frequency_penalty"))


def refused(values: Mapping[str, Value]) -> tuple[str, str] | None:
    """The penalty that cannot be as it is, and why; None if all can."""
    if not float(values["repetition_penalty"]) > 0:
        return "repetition_penalty", "logits are divided by it. Set a number above 0 (1: no penalty)."
    return None


PENALTIES = (
    Attribute(
        name="repetition_penalty",
        kind="semantics",
        default=1.0,
        number=True,
        says="a logit above 0 of a token that occurred is divided by it, another one multiplied, before the "
        "temperature (1: none)",
    ),
    Attribute(
        name="repetition_form",
        kind="form",
        default=DIVIDE,
        values=(DIVIDE, RECIPROCAL),
        when=_REPEATED,
        says="the logit is divided (transformers), or multiplied by the reciprocal (vLLM in torch and Triton)",
    ),
    Attribute(
        name="repetition_tokens",
        kind="semantics",
        default=TEXT,
        values=(TEXT, OUTPUT),
        when=_REPEATED,
        says="a token occurred if it stands in the prompt or the output so far (transformers, vLLM), or in the output "
        "alone (SGLang)",
    ),
    Attribute(
        name="presence_penalty",
        kind="semantics",
        default=0.0,
        number=True,
        says="is subtracted from the logit of each token that stands in the output so far",
    ),
    Attribute(
        name="frequency_penalty",
        kind="semantics",
        default=0.0,
        number=True,
        says="is subtracted, times the number of its occurrences, from the logit of each token of the output so far, "
        "before presence_penalty is",
    ),
    Attribute(
        name="subtracted",
        kind="semantics",
        default=LAST,
        values=(FIRST, LAST),
        when=_REPEATED,
        says="frequency and presence penalties are subtracted after the repetition penalty (vLLM), or before it "
        "(SGLang)",
    ),
)
"""In the dtype of the logits, as they are before the temperature."""
