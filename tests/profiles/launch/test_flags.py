"""A flag of a profile, given on a command line, is read as the profile that it becomes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import Where
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.flags import known_flags
from moeparity.plan.spec import reader
from moeparity.profiles.launch import read

COMMANDS = {
    # Batch-invariant, this model is not compiled unless it is asked for: the profile is then another one.
    "vllm": "env VLLM_USE_BREAKABLE_CUDAGRAPH=0 vllm serve Qwen/Qwen3-30B-A3B",
    "sglang": "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B",
    "megatron": "torchrun pretrain_gpt.py --bf16",
}
NOT_READ = {
    # No reader has TRITON_MLA's profile: it warns that no profile speaks of it.
    ("vllm", "--attention-backend TRITON_MLA"),
    # The overlay of a placement: it is read on several ranks.
    ("sglang", "--flashinfer-allreduce-fusion-backend trtllm"),
}


def flags() -> Iterator[tuple[str, str, str]]:
    """Of the profiles that commands start as: each flag that becomes another one, of whatever model and ranks."""
    for base in COMMANDS:
        spec = reader.read_profile(shipped("profiles")[base])
        for flag in spec.flags:
            if flag.becomes and not flag.is_conditional and (base, flag.flag) not in NOT_READ:
                yield base, flag.flag, flag.becomes


@pytest.mark.parametrize(("base", "flag", "becomes"), list(flags()))
def test_a_flag_of_a_profile_is_read_as_what_it_becomes(base: str, flag: str, becomes: str, tmp_path: Path) -> None:
    command = COMMANDS[base]
    words = (
        f"{flag} {command}" if "=" in flag.split(maxsplit=1)[0] and not flag.startswith("-") else f"{command} {flag}"
    )
    path = tmp_path / "start.sh"
    path.write_text(f"{words}\n", "utf-8")
    assert shlex.split(words)
    side = read(path).sides[0]
    assert becomes in (side.profile, *side.further), f"{words}: {side}"


def test_every_flag_that_is_not_read_is_one() -> None:
    for base, flag in NOT_READ:
        assert flag in {flag_known.text for flag_known in known_flags(load_profile(base, Where(Path("x"))))}
