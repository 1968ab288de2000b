"""prime-rl: `token_exports/step_{s}/rank_{r}.jsonl`, written with `trainer.enable_token_export = true`.

Index t is about token t. Read in PrimeIntellect-ai/prime-rl 559b44772, src/prime_rl/trainer/rl/token_export.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity import paths
from moeparity.errors import LogError, Where
from moeparity.logs.formats.fields import Fields
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.record import Sequence

SCHEMA_VERSION = 1
_ROUNDING = 1e-5
"""Tolerance relative to the larger of two log-probabilities: they and their difference are written in fp32."""


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is of such a file."""
    return "schema_version" in record and "inference_logprobs" in record


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequence of a line. Raises LogError."""
    version = fields.whole("schema_version")
    if version != SCHEMA_VERSION:
        raise LogError(f"{fields.where}: schema_version is {version}; this reader knows {SCHEMA_VERSION}.")
    ids = fields.tokens("token_ids")
    size = len(ids)
    step, rank, number = (fields.whole(key) for key in ("step", "rank", "export_sequence_idx"))
    rollout, trainer = (fields.floats(key, size) for key in ("inference_logprobs", "trainer_logprobs"))
    mask = fields.mask("loss_mask", size) & _sampled(fields, size)
    # The trainer shifts its scores to the right and fills index 0 with log(1 / vocabulary).
    mask[0] = False
    _check_ratio(fields, rollout, trainer, mask)
    scored = mask.nonzero()
    return [
        Sequence(
            id=f"{step}/{rank}/{number}",
            where=fields.where,
            token_ids=ids,
            mask=mask,
            rollout=rollout,
            trainer=trainer,
            prompt=int(scored[0]) if len(scored) else None,
            step=step,
            group=fields.optional_word("env_name"),
            entropy=fields.floats("entropy", size),
            extra={"advantages": fields.floats("advantages", size)},
        )
    ]


def _sampled(fields: Fields, size: int) -> Tensor:
    """Which tokens the policy sampled. Those trained by cross-entropy alone have placeholders (as train.py says)."""
    lists = {key: fields.need(key) for key in ("rl_weights", "ref_kl_weights")}
    weighted = {key for key, value in lists.items() if isinstance(value, list) and any(w is not None for w in value)}
    if not weighted:
        return torch.ones(size, dtype=torch.bool)
    sampled = fields.floats("rl_weights", size) != 0 if "rl_weights" in weighted else torch.ones(size, dtype=torch.bool)
    return sampled | (fields.floats("ref_kl_weights", size) != 0) if "ref_kl_weights" in weighted else sampled


def _check_ratio(fields: Fields, rollout: Tensor, trainer: Tensor, mask: Tensor) -> None:
    """Check both columns against their difference, which the file states too: columns that are shifted show here."""
    ratios = fields.floats("log_importance_ratio", len(mask))
    off = (ratios - (trainer - rollout)).abs() > _ROUNDING * torch.maximum(trainer.abs(), rollout.abs()).clamp(min=1)
    bad = (off & mask).nonzero()
    if len(bad):
        at = int(bad[0, 0])
        raise LogError(
            f"{fields.where}: log_importance_ratio[{at}] is {float(ratios[at]):g}; trainer_logprobs - "
            f"inference_logprobs there is {float(trainer[at] - rollout[at]):g}. The columns do not belong together."
        )


def check_finished(path: Path) -> None:
    """Refuses a file of a step that the trainer has not marked as written by every rank. Raises LogError."""
    step = path.resolve().parent
    if step.parent.name == "token_exports" and not paths.present(step / "STABLE"):
        raise LogError(
            f"{Where(path)}: {step.name} has no file STABLE, which prime-rl writes once every rank has exported the "
            "step. Wait for it; if the run has ended without it, the step is not whole."
        )


FORMAT = Format(
    name="prime-rl",
    producer="prime-rl token_exports/step_*/rank_*.jsonl",
    container="json",
    claims=claims,
    read=read,
    source="PrimeIntellect-ai/prime-rl 559b44772, src/prime_rl/trainer/rl/token_export.py",
    fixture="made by prime-rl 559b44772",
)
