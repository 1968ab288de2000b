"""The choices of `log_probs` by which a sampler leaves tokens out: top-k, top-p and min-p, and their evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.ops.attribute import OTHER_THAN_0, OTHER_THAN_1, Attribute, Condition, Value, site

ALL_TIED, FIRST_TIED = "all", "first"
BEFORE_TOP_K, AFTER_TOP_P = "first", "last"
SORTS_ALL, SORTS_KEPT = "all", "kept"
PROBABILITIES, LOGITS = "probabilities", "logits"

_TOP_K: Condition = {"top_k": (OTHER_THAN_0,)}
_TOP_P: Condition = {"top_p": (OTHER_THAN_1,)}
_MIN_P: Condition = {"min_p": (OTHER_THAN_0,)}


def truncates(values: Mapping[str, Value]) -> bool:
    """Whether tokens may be left out, so that their log-probability is -inf and that of the others is over the kept
    set. A user's function in place of the op has no values.
    """
    return bool(values.get("top_k") or values.get("top_p", 1) != 1 or values.get("min_p"))


def refused(values: Mapping[str, Value]) -> tuple[str, str] | None:
    """The filter that cannot be as it is, and why; None if all can."""
    if not 0 < float(values["top_p"]) <= 1:
        return "top_p", "it is the mass that is kept. Set a number above 0, at most 1 (1: every token is kept)."
    if not 0 <= float(values["min_p"]) <= 1:
        return (
            "min_p",
            "it is a fraction of the largest probability. Set a number from 0 to 1 (0: no token is left out).",
        )
    return None


FILTERS = (
    Attribute(
        name="top_k",
        kind="semantics",
        default=0,
        least=0,
        says="only so many of the largest logits are kept, and log-probabilities are over those that are (0: all)",
    ),
    Attribute(
        name="top_k_ties",
        kind="semantics",
        default=ALL_TIED,
        values=(ALL_TIED, FIRST_TIED),
        when=_TOP_K,
        says="of logits equal to the k-th largest, all are kept, so that more than k may be (transformers, vLLM's "
        "torch path); or those of the lowest ids, so that k are",
    ),
    Attribute(
        name="top_p",
        kind="semantics",
        default=1.0,
        number=True,
        says="only the fewest of the likeliest tokens whose probabilities, after top-k, add up to this are kept (1: "
        "all). From the least likely on, in torch's sort, tokens are left out while their cumulated softmax is at most "
        "1 - top_p; the last one is always kept",
    ),
    site(
        "kept_mass",
        "the bound 1 - top_p is computed of numbers in this dtype, and cast to that of the logits",
        default="fp32",
        when=_TOP_P,
    ),
    Attribute(
        name="sorted",
        kind="semantics",
        default=SORTS_ALL,
        values=(SORTS_ALL, SORTS_KEPT),
        when={**_TOP_K, **_TOP_P},
        says="top-p's sort is of all logits (vLLM, which takes top-k from it too), or of what top-k leaves "
        "(transformers). torch's sort is not stable, so of equal logits at the bound others are kept",
    ),
    Attribute(
        name="min_p",
        kind="semantics",
        default=0.0,
        number=True,
        says="only tokens at least this fraction as likely as the likeliest one are kept (0: all)",
    ),
    Attribute(
        name="min_p_place",
        kind="semantics",
        default=BEFORE_TOP_K,
        values=(BEFORE_TOP_K, AFTER_TOP_P),
        when=_MIN_P,
        says="min-p is taken before top-k and top-p, which then see what it leaves (vLLM's V1 engine), or after them "
        "(transformers, vLLM's V0 sampler)",
    ),
    Attribute(
        name="min_p_form",
        kind="form",
        default=PROBABILITIES,
        values=(PROBABILITIES, LOGITS),
        when=_MIN_P,
        says="a token's softmax is compared with min_p times the largest one; or its logit with the largest one plus "
        "log(min_p) (vLLM's V2 runner)",
    ),
)
"""In the dtype of the logits, as they are behind the temperature."""
