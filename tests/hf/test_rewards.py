"""A head of scores on every model that transformers has one for: its scores, and those of ranks, bit for bit."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSES

from moeparity.documents.checked import read, shipped
from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from moeparity.ops.preference import CHOSEN
from moeparity.plan.spec import reader
from moeparity.plan.spec.graph_schema import HeadFile
from tests.checkpoint_factory import make_random
from tests.command import run_live
from tests.hf import live_rewards
from tests.hf.compare import DTYPES, LIVE, PROFILES, opened, padded, tokens
from tests.hf.reference import ARGUMENTS
from tests.small_models import SMALL
from tests.verified import record_plan

HEAD = read(shipped("heads")["score"], HeadFile)
NAME_OF = {
    model_type: next(n for n, f in SMALL.items() if f["model_type"] == model_type) for model_type in HEAD.model_type
}
PAD, LENGTHS, WIDTH = 0, (11, 4, 7, 2), 11


def test_the_head_is_for_every_model_that_transformers_has_one_for() -> None:
    graphs = {name for path in shipped("models").values() for name in reader.read_graph(path).model_type}
    assert set(HEAD.model_type) == graphs & CLASSES.keys()


@lru_cache(maxsize=1)
def scored(folder: Path, profile: str, dtype: str) -> Any:
    arguments = ARGUMENTS[profile]
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype=DTYPES[dtype], **arguments).eval()


def live_scores(folder: Path, profile: str, dtype: str, ids: Tensor, mask: Tensor) -> Tensor:
    """transformers' own scores [B], pooled by itself."""
    with torch.no_grad():
        scores: Tensor = scored(folder, profile, dtype)(ids, attention_mask=mask, use_cache=False).logits
    return scores[:, 0]


def batch(vocabulary: int, side: Any) -> tuple[Tensor, Tensor]:
    """Ids of four sequences, of which none but the pads is the pad's, and their mask."""
    mask = padded(LENGTHS, WIDTH, side)
    ids = tokens(vocabulary - 1, (len(LENGTHS), WIDTH)) + 1
    return ids.masked_fill(mask == 0, PAD), mask


@pytest.fixture(scope="module", params=sorted(NAME_OF.values()))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small reward model."""
    name: str = request.param
    return make_random({**SMALL[name], "num_labels": 1, "pad_token_id": PAD}, tmp_path_factory.mktemp(name))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
def test_scores(folder: Path, profile: str, dtype: str) -> None:
    model = opened(folder)
    for side in ("left", "right"):
        ids, mask = batch(model.vocab_size, side)
        ours = forward(model, ids, profile=profile, dtype=dtype, attention_mask=mask, save=["reduce", "preference"])
        last = [max(i for i in range(WIDTH) if row[i]) for row in mask.tolist()]
        scores = torch.stack([ours["reduce"][row, place, 0] for row, place in enumerate(last)])
        truth = live_scores(folder, profile, dtype, ids, mask)
        assert same_bits(scores, truth), side
        assert scores.unique().numel() > 1
        for pair in (0, 2):
            margin = ours["preference"][pair, last[pair] - 1, CHOSEN]
            assert float(margin) == float(truth[pair].float() - truth[pair + 1].float())
    record_plan(model, LIVE, profile=profile, dtype=dtype)


def test_scores_do_not_go_by_what_stands_in_one_micro_batch_with_them(tmp_path: Path) -> None:
    """A pair lies in two micro-batches of one sequence each, and transformers is called for each sequence alone."""
    folder = make_random({**SMALL["llama"], "num_labels": 1, "pad_token_id": PAD}, tmp_path / "llama")
    model = opened(folder)
    ids, mask = batch(model.vocab_size, "right")
    ours = forward(model, ids, profile="hf-eager", dtype="fp32", attention_mask=mask, micro_batch=1)["logits"]
    truth = torch.cat(
        [live_scores(folder, "hf-eager", "fp32", i[None], m[None]) for i, m in zip(ids, mask, strict=True)]
    )
    assert [float(ours[pair].sum()) for pair in (0, 2)] == [float(truth[pair] - truth[pair + 1]) for pair in (0, 2)]


WORLDS = (2, 4, 8)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped reward model, and what live groups of ranks gave for it."""
    folder = tmp_path_factory.mktemp("ranks")
    shutil.copytree("checkpoints/reward", folder / "reward")
    run_live("tests.hf.live_rewards", str(folder), *map(str, WORLDS))
    return folder


@pytest.mark.parametrize("world", WORLDS)
def test_simulated_ranks_equal_live_ones(ranks: Path, world: int) -> None:
    truth = load_file(ranks / f"{world}.safetensors")
    assert len(truth) == len(live_rewards.PLANS) * len(live_rewards.DTYPES)
    model, ids = open_model(ranks / "reward", device="cpu", residency="resident"), live_rewards.ids()
    for name, scores in truth.items():
        plan, dtype = name.split("-")
        profile = "dtensor-columnwise" if plan == "column" else "dtensor-rowwise"
        settings = {"score:parallel": "row"} if plan == "score" else {}
        placed: dict[str, Any] = {"settings": settings, "placement": {"tensor": world}}
        ours = forward(model, ids, profile=profile, dtype=dtype, save=["reduce"], **placed)["reduce"]
        assert same_bits(ours[:, -1], scores), name
    assert not same_bits(truth["row-fp32"], truth["score-fp32"])


def test_the_number_of_labels_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    folder = make_random({**SMALL["llama"], "num_labels": 1, "pad_token_id": PAD}, tmp_path / "llama")
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    assert "num_labels" not in fields
    assert open_model(folder, device="cpu").graph.pairs
    del fields["id2label"]
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    with pytest.raises(CheckpointError, match=r"config.json:\d+: architectures gives 2 labels; expected 1, a score"):
        open_model(folder, device="cpu")
