"""`moeparity flips`: a recipe, or two files of recorded routes, to the terminal, JSON and a map."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from moeparity.bisection.flips.census import MAP_BITS
from moeparity.bisection.flips.run import MAP_SCHEMA, SCHEMA, Flipped, flips, logged_flips
from moeparity.bisection.pipeline import bisect
from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError
from tests.command import alone, inside
from tests.planted.places import random_tokens, write_recipe

OWN = {"layers[*].moe.gate:output": "fp32"}
SEQUENCES, TOKENS = 5, 24
WIDTH = 100
"""Columns of a terminal that the whole picture fits in."""


@dataclass(frozen=True)
class Run:
    """A recipe, and files of the routes that both sides choose when run on their own."""

    recipe: Path
    flipped: Flipped
    reference: Path
    candidate: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Run:
    folder = tmp_path_factory.mktemp("flips")
    ids = random_tokens(SEQUENCES, TOKENS)
    recipe = write_recipe(folder, qwen3_moe, {"input_ids": ids}, {}, {"set": OWN})
    routes = []
    for settings in ({}, OWN):
        out = forward(qwen3_moe, ids, settings=settings)
        by_layer = [out[f"layers.{layer}.router.ids"].view(SEQUENCES, TOKENS, -1) for layer in range(3)]
        routes.append(torch.stack(by_layer, dim=2))
    reference, candidate = folder / "reference.jsonl", folder / "candidate.safetensors"
    write_lines(reference, ids, routes[0])
    save_file({"input_ids": ids, "routed_experts": routes[1].int().contiguous()}, candidate)
    return Run(recipe, flips(recipe, device="cpu"), reference, candidate)


def write_lines(path: Path, ids: torch.Tensor, routes: torch.Tensor, names: list[str] | None = None) -> Path:
    records: list[dict[str, Any]] = [
        {"input_ids": row.tolist(), "routed_experts": own_routes.tolist()}
        for row, own_routes in zip(ids, routes, strict=True)
    ]
    for record, name in zip(records, names or [], strict=False):
        record["id"] = name
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_map_holds_the_tables_counts(run: Run) -> None:
    section, map_ = run.flipped.flips, run.flipped.map
    assert section.detail is not None

    def count(name: str) -> int:
        return int(((map_ & MAP_BITS[name]) != 0).sum())

    origin, margins, rates = section.detail.origin, section.detail.margins, section.detail.rates
    assert origin is not None
    assert margins is not None
    flipped = (map_ & MAP_BITS["set_differs"]) != 0
    assert [layer.set_flips for layer in section.layers] == flipped.sum((1, 2)).tolist()
    assert count("set_differs") == origin.total == sum(layer.set_flips for layer in section.layers) > 0
    assert (count("root"), count("after_own_flip")) == (origin.roots, origin.after_own)
    assert (count("after_others_flip"), count("tied")) == (origin.after_others, margins.ties)
    assert count("slots_differ") == sum(layer.slot_flips for layer in section.layers)
    assert count("zero_overlap") == sum(layer.zero_overlap for layer in section.layers)
    assert section.tokens_any_layer == int(flipped.any(0).sum())
    assert rates.layers_per_token == count("set_differs") / section.tokens
    assert rates.any_layer == section.tokens_any_layer / section.tokens
    slots = section.tokens * 3 * 4
    assert rates.slot_overlap == 1 - sum(layer.slots_replaced for layer in section.layers) / slots
    assert sum(section.detail.layers_per_token) == section.tokens == SEQUENCES * TOKENS
    counted = margins.ties + margins.group_flips + sum(b.token_layers for b in margins.bins)
    assert counted == count("compared") == SEQUENCES * TOKENS * 3
    assert margins.tie_flips + margins.group_flips + sum(b.flips for b in margins.bins) == origin.total
    assert sum(pair.flips for pair in section.detail.pairs) == sum(layer.slots_replaced for layer in section.layers)


def test_it_is_what_bisect_reports(run: Run) -> None:
    report = bisect(run.recipe, device="cpu")
    assert report.flips == run.flipped.flips
    as_json = json.loads(report.to_json())["flips"]["detail"]
    assert as_json["rates"]["any_layer"] == run.flipped.flips.tokens_any_layer / run.flipped.flips.tokens


def test_logs_of_both_sides_give_the_recipes_figures(run: Run) -> None:
    logged = logged_flips(run.reference, run.candidate)
    ours, theirs = run.flipped.flips.detail, logged.flips.detail
    assert ours is not None
    assert theirs is not None
    assert replace(logged.flips, detail=None) == replace(run.flipped.flips, detail=None)
    assert theirs.rates == replace(ours.rates, weight_drift=None, weight_drift_max=None)
    assert (theirs.pairs, theirs.layers_per_token) == (ours.pairs, ours.layers_per_token)
    assert (theirs.origin, theirs.margins, theirs.cost, theirs.left_at) == (None, None, None, ())
    routes_alone = sum(MAP_BITS[name] for name in ("compared", "set_differs", "slots_differ", "zero_overlap"))
    assert torch.equal(logged.map, run.flipped.map & routes_alone)


def test_sequences_are_joined_by_id_in_any_order(run: Run, tmp_path: Path) -> None:
    block = load_file(run.candidate)
    ids, routes = block["input_ids"], block["routed_experts"]
    names = [f"prompt {i}" for i in range(SEQUENCES)]
    ours = [record | {"id": name} for record, name in zip(read_lines(run.reference), names, strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in ours), "utf-8")
    b = write_lines(tmp_path / "b.jsonl", ids.flip(0), routes.flip(0), names[::-1])
    assert logged_flips(tmp_path / "a.jsonl", b).flips == logged_flips(run.reference, run.candidate).flips


def test_tokens_without_a_record_are_left_out(run: Run, tmp_path: Path) -> None:
    records = read_lines(run.reference)
    for record in records:
        record["routed_experts"][-1] = None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    assert logged_flips(tmp_path / "a.jsonl", run.candidate).flips.tokens == SEQUENCES * (TOKENS - 1)


def test_logs_that_are_not_of_the_same(run: Run, tmp_path: Path) -> None:
    records = read_lines(run.reference)

    def refused(changed: list[dict[str, Any]], message: str, ours: list[dict[str, Any]] | None = None) -> None:
        first_file, second_file = tmp_path / "given.jsonl", tmp_path / "ours.jsonl"
        first_file.write_text("".join(json.dumps(record) + "\n" for record in changed), "utf-8")
        second_file.write_text("".join(json.dumps(record) + "\n" for record in ours or records), "utf-8")
        with pytest.raises(MoeparityError, match=message):
            logged_flips(second_file, first_file)

    def all_with(**more: Any) -> list[dict[str, Any]]:
        return [record | {key: value(record) for key, value in more.items()} for record in records]

    def routes_only(rows: slice) -> list[dict[str, Any]]:
        return [{"routed_experts": record["routed_experts"][rows]} for record in records]

    refused(records[1:], "holds 4 sequences; .*ours.jsonl has 5. They are joined by position")
    refused(
        [records[0] | {"input_ids": [0] * TOKENS}, *records[1:]],
        r"given\.jsonl:1: the sequence's token ids differ from those of .*ours\.jsonl:1, first at 0",
    )
    refused(routes_only(slice(1, None)), "routes of 23 tokens; .*:1 has 24", routes_only(slice(None)))
    k_less = all_with(routed_experts=lambda r: [[layer[:3] for layer in row] for row in r["routed_experts"]])
    refused(k_less, "3 layers, top 3; .*ours.jsonl:1 has 3 layers, top 4. Record the same layers")
    refused(
        all_with(routed_experts=lambda r: [row[1:] for row in r["routed_experts"]]),
        "2 layers, top 4; .*ours.jsonl:1 has 3 layers, top 4",
    )
    mixed = [k_less[0], *records[1:]]
    refused(mixed, "3 layers, top 4; .*ours.jsonl:1 has 3 layers, top 3", mixed)
    named_records = [record | {"id": f"{i}"} for i, record in enumerate(records)]
    refused(named_records[1:], "given.jsonl: no sequence with id '0', which .*ours.jsonl:1 has", named_records)
    refused(named_records, "ours.jsonl: no sequence with id '0', which .*given.jsonl:1 has", named_records[1:])
    refused([named_records[0], named_records[0]], "id '0' is given twice, before in .*given.jsonl:1", named_records)
    none = [{"routed_experts": [[[0]], None]}]
    refused([{"routed_experts": [None, [[0]]]}], "no token has routes in both files", none)


def with_dense(records: list[dict[str, Any]], at: int, path: Path) -> Path:
    """The same routes beside a dense layer, as an engine records it that counts all layers."""
    dense = [0] * len(records[0]["routed_experts"][0][0])
    routes = [[[*row[:at], dense, *row[at:]] for row in record["routed_experts"]] for record in records]
    changed = [{**record, "routed_experts": routed} for record, routed in zip(records, routes, strict=True)]
    path.write_text("".join(json.dumps(record) + "\n" for record in changed), "utf-8")
    return path


def test_an_engine_that_records_dense_layers_too_against_one_that_does_not(run: Run, tmp_path: Path) -> None:
    dense = with_dense(read_lines(run.reference), 0, tmp_path / "dense.jsonl")
    plain, of_dense = logged_flips(run.reference, run.candidate), logged_flips(dense, run.candidate)
    assert [layer.layer for layer in of_dense.flips.layers] == [1, 2, 3], "as the model counts them"
    assert torch.equal(of_dense.map, plain.map)
    assert of_dense.flips.detail is not None
    assert plain.flips.detail is not None
    assert of_dense.flips.detail.rates == plain.flips.detail.rates
    dense_too = with_dense(read_lines(run.reference), 1, tmp_path / "other.jsonl")
    with pytest.raises(MoeparityError, match=r"other\.jsonl:1: records the layers \[0, 2, 3\]; .*has \[1, 2, 3\]"):
        logged_flips(dense, dense_too)


def test_a_completion_is_held_to_the_end_of_a_sequence(run: Run, tmp_path: Path) -> None:
    def served(wrong: int, path: Path) -> Path:
        choices = []
        for record in read_lines(run.reference):
            ids = record["input_ids"][4:]
            tokens = {"token_ids": [ids[0] + wrong, *ids[1:]], "routed_experts": record["routed_experts"]}
            choices.append({"choices": [tokens]})
        path.write_text("".join(json.dumps(record) + "\n" for record in choices), "utf-8")
        return path

    right = served(0, tmp_path / "right.jsonl")
    for pair in ((right, run.candidate), (run.candidate, right)):
        assert logged_flips(*pair).same_tokens == SEQUENCES
    with pytest.raises(
        MoeparityError, match=r"the completion's token ids differ from those of .*wrong\.jsonl:1, first at 0\."
    ):
        logged_flips(served(1, tmp_path / "wrong.jsonl"), run.candidate)


def test_what_is_not_known_to_be_of_the_same_tokens_is_said(run: Run, tmp_path: Path) -> None:
    bare = [{"routed_experts": record["routed_experts"]} for record in read_lines(run.reference)]
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(record) + "\n" for record in bare), "utf-8")
    assert logged_flips(tmp_path / "bare.jsonl", run.candidate).same_tokens == 0
    words = " ".join(inside("diff", tmp_path / "bare.jsonl", run.candidate).stdout.split())
    assert "none has token ids in both files, so their tokens are not compared" in words
    output = inside("diff", run.reference, run.candidate).stdout
    assert "token ids agree as far as both files give them" in output


def test_a_model_without_routers_is_refused(tmp_path: Path, qwen3: Path) -> None:
    path = write_recipe(tmp_path, qwen3, {"input_ids": random_tokens(2, 4, vocab=301)}, {}, {})
    with pytest.raises(MoeparityError, match="qwen3: has no router, so nothing can flip"):
        flips(path, device="cpu")


def test_the_command(run: Run, tmp_path: Path) -> None:
    out, map_ = tmp_path / "flips.json", tmp_path / "map.safetensors"
    done = alone("flips", run.recipe, "--json", out, "--map", map_, "--device", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    as_json = json.loads(out.read_text("utf-8"))
    assert as_json["schema"] == SCHEMA
    assert as_json["flips"]["tokens_any_layer"] == run.flipped.flips.tokens_any_layer
    with safe_open(str(map_), framework="pt") as file:
        assert (file.metadata()["schema"], json.loads(file.metadata()["bits"])) == (MAP_SCHEMA, MAP_BITS)
    written = load_file(map_)
    assert torch.equal(written["flips"], run.flipped.map)
    assert written["layers"].tolist() == [0, 1, 2]
    for title in ("Flips by every definition", "By layer", "Root or inherited", "Choices", "Margin at the cut", "Cost"):
        assert f"\n{title}\n" in done.stdout
    assert [line for line in map(str.rstrip, done.stdout.splitlines()) if len(line) > WIDTH] == []


def test_the_command_on_logs(run: Run) -> None:
    done = inside("diff", run.reference, run.candidate)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Expert pairs" in done.stdout
    for absent in ("Root or inherited", "Margin at the cut", "Cost", "weight drift"):
        assert absent not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("flips",), "Missing argument 'recipe'"),
        (("flips", "recipe.yaml", "--top-k", "8"), "No such option: --top-k"),
        (("diff", "recipes", "recipes", "--top-k", "8"), "diff: --top-k is for files of routes"),
        (("diff", "a.npy", "b.npy"), "a.npy: does not exist. Expected traces, kept runs or files of routes"),
        (("diff", "recipes/quickstart.yaml", "recipes"), "Give two of one kind"),
        (("flips", "recipe.yaml", "--map", "nowhere/map.safetensors"), "there is no folder nowhere"),
    ],
)
def test_a_usage_error(arguments: tuple[str, ...], message: str) -> None:
    done = inside(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("below", "code"), [(1.0, 0), (1e-9, 1)])
def test_bounds_of_the_recipe_decide_the_exit_code(run: Run, below: float, code: int) -> None:
    path = run.recipe.with_name(f"bounded-{code}.yaml")
    recipe = json.loads(run.recipe.read_text("utf-8"))
    expect = {"verdict": "pass", "flips": {"token_layers": {"below": below}}}
    path.write_text(json.dumps(recipe | {"expect": expect}), "utf-8")
    outcome = flips(path, device="cpu")
    assert ([finding.expectation for finding in outcome.findings], outcome.exit_code) == (
        [f"flipped token-layers below {below:g}"],
        code,
    )
