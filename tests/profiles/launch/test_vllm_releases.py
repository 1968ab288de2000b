"""A launch file that pins a release of vLLM which was read: its defaults and its profile, in place of a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.reader import configurations
from moeparity.profiles.launch.server_schedule import schedule, scheduling_options

SERVE = "vllm serve Qwen/Qwen3-30B-A3B"
PINNED = {
    "V0": f"pip install vllm==0.8.5\nVLLM_USE_V1=0 {SERVE}",
    "V1": f"uv pip install vllm==0.8.5.post1\n{SERVE}",
    "0.18.1": f"pip install vllm==0.18.1\n{SERVE}",
    "0.33.0": SERVE,
}


def written(folder: Path, text: str) -> Path:
    (folder / "serve.sh").write_text(f"{text}\n", "utf-8")
    return folder / "serve.sh"


@pytest.mark.parametrize(
    ("release", "profile", "mode", "prefixes", "chunks"),
    [
        ("V0", "vllm-0.8.5-v0", "processed_logprobs", "false", "false"),
        ("V1", "vllm-0.8.5-v1", "raw_logprobs", "true", "true"),
        ("0.18.1", "vllm-0.18.1", "raw_logprobs", "true", "true"),
        ("0.33.0", "vllm", "raw_logprobs", "true", "true"),
    ],
)
def test_what_is_unset_is_what_it_is_in_that_release(
    release: str, profile: str, mode: str, prefixes: str, chunks: str, tmp_path: Path
) -> None:
    path = written(tmp_path, PINNED[release])
    (configuration,) = configurations(path)
    (side,) = read(path).sides
    assert side.profile == profile
    names = ("logprobs_mode", "enable_prefix_caching", "enable_chunked_prefill")
    values = [configuration.value(name) for name in names]
    assert [value.text for value in values] == [mode, prefixes, chunks]
    assert {value.where for value in values} == {f"default of {configuration.release}"}
    assert not [warning for warning in read(path).warnings if "are read from" in warning.says]


def test_cascade_attention_and_asynchronous_scheduling_turned_round_in_between(tmp_path: Path) -> None:
    values = {}
    for release in ("V0", "V1", "0.18.1"):
        (configuration,) = configurations(written(tmp_path, PINNED[release]))
        values[release] = [configuration.value(n).text for n in ("disable_cascade_attn", "async_scheduling")]
    assert values == {"V0": ["true", "false"], "V1": ["false", "false"], "0.18.1": ["true", "true"]}


def test_eager_is_kernels_in_c_in_0_8_5_and_unstated_in_0_18_1(tmp_path: Path) -> None:
    eager = read(written(tmp_path, PINNED["V1"] + " --enforce-eager"))
    assert eager.sides[0].profile == "vllm-0.8.5-v0"
    later = read(written(tmp_path, PINNED["0.18.1"] + " --enforce-eager"))
    assert later.sides[0].profile == "vllm-0.18.1"
    assert [warning.name for warning in later.warnings] == ["enforce_eager"]


def test_a_head_in_fp32_is_ignored_there_and_not_in_0_33(tmp_path: Path) -> None:
    head = """ --hf-overrides '{"head_dtype": "float32"}'"""
    earlier, later = (read(written(tmp_path, PINNED[release] + head)) for release in ("0.18.1", "0.33.0"))
    assert (earlier.sides[0].profile, later.sides[0].profile) == ("vllm-0.18.1", "vllm-fp32-head")
    assert any("pooling models alone" in setting.implies for setting in earlier.settings)


def test_the_release_of_0_8_5_has_no_logprobs_mode(tmp_path: Path) -> None:
    path = written(tmp_path, PINNED["V1"] + " --logprobs-mode processed_logprobs")
    with pytest.raises(SpecError, match=r"serve\.sh:2: vLLM 0\.8\.5 has no --logprobs-mode: its V0 returns processed"):
        read(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PINNED["V0"], {"rule": "vllm-v1", "decode": {"from": "prompt"}, "prefill": "whole"}),
        (PINNED["V1"], {"rule": "vllm-v1", "decode": {"from": "prompt"}, "prefix": {"block": 16}}),
        (
            PINNED["0.18.1"] + " --no-enable-prefix-caching --max-num-batched-tokens 64 --max-num-seqs 4",
            {"rule": "vllm-v1", "decode": {"from": "prompt"}, "prefill": {"chunk": 64}, "sequences": 4},
        ),
        (
            "python -m sglang.launch_server --model-path m --chunked-prefill-size -1 --page-size 64",
            {"rule": "sglang", "decode": {"from": "prompt"}, "prefill": "whole", "prefix": {"block": 64}},
        ),
        (
            "python -m sglang.launch_server --model-path m --disable-radix-cache --chunked-prefill-size 256",
            {"rule": "sglang", "decode": {"from": "prompt"}, "prefill": {"chunk": 256}},
        ),
    ],
)
def test_options_of_the_scheduler_as_a_schedule(text: str, expected: dict[str, object], tmp_path: Path) -> None:
    (configuration,) = configurations(written(tmp_path, text), further=scheduling_options)
    assert schedule(configuration) == expected
