"""What a kernel refuses only when it sees the shapes names the node, and who set the attribute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moeparity.engine.forward import forward
from moeparity.errors import SpecError
from moeparity.inputs.model import Model, open_model
from tests.planted.places import random_tokens


@pytest.fixture(scope="module")
def model(qwen3_moe: Path) -> Model:
    return open_model(qwen3_moe, device="cpu", residency="resident")


def refused(model: Model, settings: dict[str, str | int], **placement: int | bool) -> str:
    with pytest.raises(SpecError) as caught:
        forward(model, random_tokens(1, 5), settings=settings, placement=placement)
    return str(caught.value)


def test_a_message_for_which_a_table_chooses_nothing(model: Model) -> None:
    node = "layers[0].attention.reduce"
    message = refused(model, {f"{node}:collective": "trtllm.all_reduce"}, tensor=2, sequence=True)
    assert message == (
        f"forward ({node}): {node}:collective: trtllm.one_shot, which adds up a message of 640 bytes, has no "
        "reduce-scatter here, which `sequence: scattered` (sequence parallel) asks for. Set another `collective`."
    )


@pytest.mark.parametrize(
    ("table", "ranks"), [("vllm.custom", 16), ("trtllm.all_reduce", 32), ("openmpi.allreduce_algorithm_4", 2)]
)
def test_a_table_without_a_row_for_so_many_ranks_is_refused_when_binding(model: Model, table: str, ranks: int) -> None:
    """openmpi's algorithms are known for fp32."""
    node = "layers[1].attention.reduce"
    message = refused(model, {f"{node}:collective": table, "layers[1].attention.o_proj:tensor": ranks})
    says = f"{table} chooses nothing for {ranks} ranks and partial sums in bf16."
    assert message == f"forward ({node}): {node}:collective: {says}"


def test_a_norm_whose_kernel_does_not_take_the_dtype(model: Model) -> None:
    """When binding the rows may still be in bf16; they turn out to be what the edge hands over."""
    settings: dict[str, str | int] = {
        "layers[0].attention.residual:output->layers[0].moe.norm": "fp32",
        "layers[0].moe.norm:output": "fp32",
        "layers[0].moe.norm:order": "vllm.batch_invariant",
    }
    message = refused(model, settings)
    assert re.fullmatch(
        r".*: layers\[0\]\.moe\.norm:order: vllm\.batch_invariant needs 16-bit elements, not 64 elements in fp32\. "
        r"Set another `order`\.",
        message,
    )
