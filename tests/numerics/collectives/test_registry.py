"""Names, evidence and the tables that choose by size."""

from __future__ import annotations

import pytest

from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS, find
from moeparity.numerics.order_map import Message

KIB = 1 << 10


def test_every_table_names_collectives_there_are() -> None:
    for table in SELECTIONS.values():
        assert {use for _, use in table.rows} <= set(COLLECTIVES)
        assert table.name not in COLLECTIVES


def test_only_what_runs_live_here_is_verified() -> None:
    levels = {name: collective.evidence.level for name, collective in COLLECTIVES.items()}
    verified = {name for name, level in levels.items() if level == "verified"}
    assert verified == {
        "gloo.all_reduce",
        "gloo.reduce_scatter_tensor",
        "gloo.reduce_scatter_list",
        "openmpi.ring",
        "openmpi.recursive_doubling",
    }
    assert {name for name, level in levels.items() if level == "opaque"} == {"nccl.nvls", "torch.symm_mem_multimem"}


@pytest.mark.parametrize(
    ("table", "message", "name"),
    [
        ("vllm.custom", Message(256 * KIB - 4, 2, 4), "vllm.one_stage"),
        ("vllm.custom", Message(256 * KIB, 2, 4), "vllm.two_stage"),
        ("vllm.custom", Message(128 * KIB - 4, 2, 8), "vllm.one_stage"),
        ("vllm.custom", Message(128 * KIB, 2, 8), "torch.symm_mem_multimem"),
        ("vllm.custom", Message(128 * KIB, 2, 6), "vllm.two_stage"),
        ("vllm.custom", Message(256 * KIB, 2, 6), "torch.symm_mem_multimem"),
        ("vllm.custom", Message(4096 * KIB, 2, 4), "torch.symm_mem_multimem"),
        ("vllm.custom", Message(4096 * KIB - 8, 2, 2), "vllm.one_stage"),
        ("vllm.custom", Message(4096 * KIB, 2, 2), "torch.symm_mem_two_shot"),
        ("vllm.custom_0_8", Message(128 * KIB - 4, 2, 8), "vllm.one_stage"),
        ("vllm.custom_0_8", Message(128 * KIB, 2, 8), "vllm.two_stage"),
        ("vllm.custom_0_8", Message(4096 * KIB - 8, 2, 4), "vllm.two_stage"),
        ("vllm.custom_0_8", Message(4096 * KIB - 8, 2, 2), "vllm.one_stage"),
        ("flashinfer.mnnvl", Message(64 * KIB, 2, 8), "flashinfer.mnnvl_one_shot"),
        ("flashinfer.mnnvl", Message(64 * KIB + 8, 2, 8), "flashinfer.mnnvl_two_shot"),
        ("trtllm.all_reduce", Message(128 * 64, 2, 4, width=64), "trtllm.one_shot"),
        ("trtllm.all_reduce", Message(129 * 64, 2, 4, width=64), "trtllm.two_shot"),
        ("vllm.symm_mem", Message(512, 2, 4, arch="sm90"), "torch.symm_mem_multimem"),
        ("vllm.symm_mem", Message(512, 2, 4, arch="sm100"), "torch.symm_mem_two_shot"),
        ("vllm.symm_mem", Message(512, 2, 8, arch="sm100"), "torch.symm_mem_multimem"),
        ("vllm.symm_mem", Message(512, 2, 3, arch="sm90"), "torch.symm_mem_two_shot_looped"),
        ("openmpi.allreduce_algorithm_4", Message(4, 4, 5), "openmpi.recursive_doubling"),
        ("openmpi.allreduce_algorithm_4", Message(5, 4, 5), "openmpi.ring"),
    ],
)
def test_tables_at_their_limits(table: str, message: Message, name: str) -> None:
    assert find(table, message).name == name


def test_a_message_no_row_takes_and_an_unknown_name() -> None:
    with pytest.raises(
        ValueError, match=r"no row of its table holds\nvllm.custom\n  ranks in \[2\] and bytes < 8388608"
    ):
        find("vllm.custom", Message(32 * 1024 * KIB + 8, 2, 8))
    with pytest.raises(ValueError, match=r"unknown collective 'gloo.allreduce'. Did you mean 'gloo.all_reduce'\?"):
        find("gloo.allreduce", Message(1, 4, 2))


def test_a_collective_prints_itself() -> None:
    assert str(COLLECTIVES["gloo.all_reduce"]).startswith(
        "gloo.all_reduce: gloo_segments | rotate(-1, -1) | each add rounded to io\n  verified: live torch 2.13"
    )
    assert str(COLLECTIVES["vllm.two_stage"]).startswith(
        "vllm.two_stage: packs16 | rotate(+0, +1) | each add rounded to fp32\n  read: vLLM csrc/"
    )


# Tokens of hidden size 2048 in bf16, 4 KiB a token and rank.
@pytest.mark.parametrize(
    ("table", "ranks", "tokens", "name"),
    [
        ("vllm.all_reduce_sm90", 4, 64, "flashinfer.mnnvl_one_shot"),
        ("vllm.all_reduce_sm90", 4, 65, "flashinfer.mnnvl_two_shot"),
        ("vllm.all_reduce_sm90", 4, 512, "flashinfer.mnnvl_two_shot"),
        ("vllm.all_reduce_sm90", 4, 513, "vllm.two_stage"),
        ("vllm.all_reduce_sm90", 4, 2048, "torch.symm_mem_multimem"),
        ("vllm.all_reduce_sm90", 8, 32, "flashinfer.mnnvl_one_shot"),
        ("vllm.all_reduce_sm90", 8, 128, "flashinfer.mnnvl_two_shot"),
        ("vllm.all_reduce_sm90", 8, 129, "torch.symm_mem_multimem"),
        ("vllm.all_reduce_sm90", 6, 1, "vllm.one_stage"),
        ("vllm.all_reduce_trtllm_sm90", 4, 512, "flashinfer.one_shot_fp32"),
        ("vllm.all_reduce_trtllm_sm90", 4, 513, "vllm.two_stage"),
        ("vllm.all_reduce_trtllm_sm90", 2, 8193, "flashinfer.two_shot_fp32"),
        ("vllm.all_reduce_trtllm_unfused_sm90", 2, 8193, "flashinfer.one_shot"),
        ("vllm.all_reduce_trtllm_unfused_sm90", 4, 512, "flashinfer.one_shot"),
        ("vllm.all_reduce_trtllm_unfused_sm90", 4, 513, "vllm.two_stage"),
    ],
)
def test_vllm_chooses_by_the_tokens_of_a_call(table: str, ranks: int, tokens: int, name: str) -> None:
    assert find(table, Message(tokens * 2048, 2, ranks, width=2048)).name == name


def test_what_nccl_adds_has_no_row() -> None:
    with pytest.raises(ValueError, match="no row of its table holds"):
        find("vllm.all_reduce_sm90", Message(8193 * 2048, 2, 4, width=2048))
