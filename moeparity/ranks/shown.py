"""Which choices of a profile an environment report shows, that is, what is in effect in a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeparity.ops.registry import OPS

_ATTENTION = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
}
"""`config._attn_implementation` of transformers -> `implementation` of the attention ops."""
_EXPERTS = {"eager": "loop", "grouped_mm": "grouped"}
"""`config._experts_implementation` of transformers -> `implementation` of the op experts."""
_MODEL = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChoice:
    """A choice of an op, its value, and the field of the report that shows it."""

    op: str
    attribute: str
    value: str
    field: str


def shown(fields: Mapping[str, str]) -> Iterator[ShownChoice]:
    """The choices that a report's fields show. If two models of a process have different values, none is shown."""
    attending, by_slot = (
        [op for op in OPS.values() if op.tokens.mixes],
        [op for op in OPS.values() if op.role.slot_order],
    )
    for kind, words, ops in (("attention", _ATTENTION, attending), ("experts", _EXPERTS, by_slot)):
        values = {fields[name] for name in fields if name.startswith(_MODEL) and name.endswith(f".{kind}")}
        value = words.get(*values) if len(values) == 1 else None
        for op in ops:
            choice = op.attribute("implementation")
            if value is not None and choice is not None and value in choice.values:
                field = next(f for f in fields if f.startswith(_MODEL) and f.endswith(f".{kind}"))
                yield ShownChoice(op=op.name, attribute="implementation", value=value, field=field)
    yield from _tf32(fields)


def _tf32(fields: Mapping[str, str]) -> Iterator[ShownChoice]:
    """Whether fp32 operands are rounded to TF32; only for a GPU, since the switch has no effect elsewhere."""
    field = "switch.fp32_precision.cuda.matmul"
    if fields.get("device", "cpu") == "cpu" or field not in fields:
        return
    value = "yes" if fields[field] == "tf32" else "no"
    for name, op in OPS.items():
        for attribute in ("tf32", "kv_b_tf32"):
            if op.attribute(attribute) is not None:
                yield ShownChoice(op=name, attribute=attribute, value=value, field=field)
