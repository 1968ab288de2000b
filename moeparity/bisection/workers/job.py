"""Makes the `Job` of a plan: what a worker needs to prepare the same plan, and to check that it is the same."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import torch

from moeparity.bisection.options import Options
from moeparity.bisection.plan import Plan
from moeparity.bisection.resume.fingerprint import parts
from moeparity.bisection.workers.message import Job
from moeparity.inputs.machine import numerics_key, precisions


def job_of(plan: Plan, options: Options) -> Job:
    """The job of a plan that was prepared with these options."""
    device = plan.model.device
    return Job(
        recipe=str(plan.path),
        folder=str(Path.cwd()),
        device=device.type,
        options=options,
        tokens=None if plan.recipe.tokens.sample is None else plan.tokens,
        threads=torch.get_num_threads(),
        precisions=precisions(),
        machine=numerics_key(device),
        parts=parts(plan),
        functions=functions_of(plan),
    )


def functions_of(plan: Plan) -> dict[str, str]:
    """By `module:function`, the SHA-256 of the file that a user's function is in; its imports are not looked at."""
    digests = {}
    for call in plan.functions:
        file = getattr(sys.modules[call.partition(":")[0]], "__file__", None)
        digests[call] = "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return digests
