"""The choices of `log_probs` by which a sampler applies what each request asks for, by token ids: biases, bad words,
allowed ids, stop tokens of a minimum length, and grammars.
"""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.ops.attribute import Attribute, Condition, Value

IGNORED, APPLIED = "ignored", "applied"
NAMED, ALL = "named", "all"
FIRST, LAST = "first", "last"
FILLED, ADDED, FORCED = "filled", "added", "forced"
TEXT, OUTPUT = "text", "output"

LOGIT_BIAS, BAD_WORDS, ALLOWED = "logit_bias", "bad_words", "allowed_token_ids"
MIN_TOKENS, GRAMMAR = "min_tokens", "grammar"
ASKED_FOR = (LOGIT_BIAS, BAD_WORDS, ALLOWED, MIN_TOKENS, GRAMMAR)
MASKS = (BAD_WORDS, ALLOWED, MIN_TOKENS, GRAMMAR)


def applied(values: Mapping[str, Value]) -> tuple[str, ...]:
    """What is applied of that which requests ask for. A user's function in place of the op has no values."""
    return tuple(name for name in ASKED_FOR if values.get(name) == APPLIED)


def masks(values: Mapping[str, Value]) -> bool:
    """Whether tokens may be left out because requests ask for it."""
    return any(name in MASKS for name in applied(values))


def _choice(name: str, says: str) -> Attribute:
    return Attribute(
        name=name, kind="semantics", default=IGNORED, values=(IGNORED, APPLIED), by_request=True, says=says
    )


def _where(name: str) -> Condition:
    return {name: (APPLIED,)}


def _form(name: str, of: str, says: str) -> Attribute:
    return Attribute(name=name, kind="form", default=FILLED, values=(FILLED, ADDED), when=_where(of), says=says)


REQUESTS = (
    _choice(
        LOGIT_BIAS,
        "biases that requests ask for are added to logits; that of several ids to the last of them, where the text "
        "ends with those before it",
    ),
    Attribute(
        name="bias_form",
        kind="form",
        default=NAMED,
        values=(NAMED, ALL),
        when=_where(LOGIT_BIAS),
        says="biases are added to the logits that requests name (vLLM); or a row of them, 0 elsewhere, to all "
        "(transformers, SGLang), which makes 0 of -0",
    ),
    Attribute(
        name="bias_place",
        kind="semantics",
        default=FIRST,
        values=(FIRST, LAST),
        when=_where(LOGIT_BIAS),
        says="biases are added before penalties (transformers, vLLM), or after them (SGLang)",
    ),
    _choice(BAD_WORDS, "the last id of a bad word is left out where the text ends with those before it"),
    _form(
        "bad_words_form",
        BAD_WORDS,
        "logits left out become -inf (vLLM; transformers' suppress_tokens); or a row of -inf and 0 is added to all "
        "(transformers' bad_words_ids), which makes 0 of -0 and NaN of infinity",
    ),
    Attribute(
        name="bad_words_tokens",
        kind="semantics",
        default=TEXT,
        values=(TEXT, OUTPUT),
        when=_where(BAD_WORDS),
        says="a bad word may begin in the prompt (transformers), or in the output alone (vLLM)",
    ),
    _choice(ALLOWED, "only ids that the request allows are kept"),
    _choice(MIN_TOKENS, "stop tokens are left out while the output is shorter than the request's least length"),
    _form(
        "min_tokens_form",
        MIN_TOKENS,
        "logits of stop tokens become -inf (transformers, vLLM); or a row of -inf and 0 is added to all (SGLang), "
        "which makes 0 of -0 and NaN of infinity",
    ),
    _choice(GRAMMAR, "only ids that the request's grammar allows as this token are kept"),
    Attribute(
        name="grammar_form",
        kind="semantics",
        default=FILLED,
        values=(FILLED, FORCED),
        when=_where(GRAMMAR),
        says="logits left out become -inf (xgrammar, for vLLM and SGLang); or a row of -inf and 0 is added to all, and "
        "takes their place where that leaves no token (transformers' prefix_allowed_tokens_fn)",
    ),
)
"""In the dtype of the logits, as they are before the temperature. A grammar comes last; in which order other tokens are
left out changes no bit.
"""
