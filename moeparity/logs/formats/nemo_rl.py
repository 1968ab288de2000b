"""NeMo-RL: `train_data_step{N}.jsonl` in the log folder of a GRPO run.

Every value is a batch of one, padded to the longest sequence of the step. Index t is about token t. Index 0, which
nothing predicts, is dropped, as the loss drops it. Read in NVIDIA-NeMo/RL 7ea279abf, nemo_rl/algorithms/grpo.py and
nemo_rl/utils/logger.py (log_batched_dict_as_jsonl).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from moeparity.errors import LogError, shown
from moeparity.logs.formats.fields import Fields
from moeparity.logs.formats.format import Format, Role, Unreadable
from moeparity.logs.record import Sequence

_STEP = re.compile(r"train_data_step(\d{1,18})")


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is of such a file."""
    return "generation_logprobs" in record and "token_loss_mask" in record


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequence of a line, without its padding. Raises LogError."""
    row = Fields(fields.where, {key: _element(fields, key) for key in fields.values if key not in _UNUSED})
    length, width = row.whole("input_lengths", least=1), row.length("token_ids")
    if length > width:
        raise LogError(f"{row.where}: input_lengths is {length}; token_ids has {width} entries, padding included.")
    mask = row.mask("token_loss_mask", width)
    if bool(mask[length:].any()):
        raise LogError(f"{row.where}: token_loss_mask scores padding, which begins at token {length} (input_lengths).")
    ids, mask = row.tokens("token_ids", first=length), mask[:length]
    scored = mask.nonzero()
    # Text that an environment inserts between turns is masked too, so the prompt is what comes before the first answer.
    prompt = int(scored[0]) if len(scored) else None
    if prompt == 0:
        raise LogError(f"{row.where}: token_loss_mask scores token 0, which nothing predicts. Shifted by one?")
    step = _STEP.search(row.where.path.name)
    name = step.group(1) if step else row.where.path.stem
    return [
        Sequence(
            id=f"{name}/{row.whole('idx')}",
            where=row.where,
            token_ids=ids,
            mask=mask & _counts(row),
            rollout=row.floats("generation_logprobs", width, scored=mask),
            trainer=row.floats("prev_logprobs", width, scored=mask),
            prompt=prompt,
            step=int(step.group(1)) if step else None,
            group=_group(row.values.get("agent_ref")),
            extra={"advantages": row.floats("advantages", width, scored=mask)},
        )
    ]


_UNUSED = ("content", "rewards", "filtered_rewards")


def _element(fields: Fields, key: str) -> Any:
    """The element of a batch of one; only `idx` is not a batch."""
    value = fields.values[key]
    if key == "idx":
        return value
    if not isinstance(value, list) or len(value) != 1:
        kind = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
        raise LogError(f"{fields.where}: {key} is {kind}; expected a list of one, as NeMo-RL writes its batches.")
    return value[0]


def _counts(row: Fields) -> torch.Tensor:
    """sample_loss_mask: 0 for a sequence that does not count, else 1 (a loss multiplier)."""
    value = row.need("sample_loss_mask")
    if type(value) not in {int, float} or value < 0:
        raise LogError(f"{row.where}: sample_loss_mask is {shown(value)}; expected a number from 0.")
    return torch.tensor(value != 0)


def _group(agent: Any) -> str | None:
    """The environment of NeMo Gym; None without one."""
    name = agent.get("name") if isinstance(agent, dict) else agent
    return name if isinstance(name, str) else None


FORMAT = Format(
    name="nemo-rl",
    producer="NeMo-RL train_data_step*.jsonl",
    container="json",
    claims=claims,
    read=read,
    source="NVIDIA-NeMo/RL 7ea279abf, nemo_rl/utils/logger.py, nemo_rl/algorithms/grpo.py",
    fixture="made by NeMo-RL 7ea279abf",
)
DISTILLATION = Unreadable(
    name="NeMo-RL distillation log",
    claims=lambda record: {"content", "input_lengths", "idx"} == set(record),
    reason="holds text and lengths but no log-probabilities. Only GRPO runs log them: train_data_step*.jsonl with "
    "env.should_log_nemo_gym_responses off.",
)
