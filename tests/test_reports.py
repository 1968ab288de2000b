"""What every command writes with `--json` fits the schema that is published, key by key, and its digest is of it."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import re
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from moeparity.cli.schemas import REPORTS, report_schema
from moeparity.output.json import digest, to_json
from tests.command import inside
from tests.errors.base import BASE

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests/logs/fixtures/moeparity/log.jsonl"
LAUNCH = ROOT / "tests/profiles/launch/files"
RECIPE = (BASE / "recipe.yaml").read_text("utf-8").replace("checkpoint: .", f"checkpoint: {BASE}")
EVERYTHING = RECIPE.replace("tokens.safetensors", str(BASE / "tokens.safetensors")) + (
    "attribute: true\nfloor: true\noracle: true\nreplay: true\nenvelope: 2\nsplit: 1\nswap: ['layers[*].moe']\n"
)


@cache
def closed(name: str) -> Any:
    """A validator that takes no key the schema does not name: what is written is all there."""
    schema = report_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)

    def close(node: Any) -> None:
        if isinstance(node, dict):
            if "properties" in node:
                node["additionalProperties"] = False
            for item in node.values():
                close(item)
        elif isinstance(node, list):
            for item in node:
                close(item)

    schema = copy.deepcopy(schema)
    close(schema)
    return jsonschema.Draft202012Validator(schema)


def refused(name: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in closed(name).iter_errors(document)]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("everything") / "recipe.yaml"
    path.write_text(EVERYTHING, "utf-8")
    return path


COMMANDS = {
    "report": ("bisect", "{recipe}", "--device", "cpu"),
    "sweep": ("sweep", "{recipe}", "--over", "candidate.dtype=bf16,fp16", "--device", "cpu"),
    "variance": ("variance", "{recipe}", "--device", "cpu"),
    "flips": ("flips", "{recipe}", "--device", "cpu"),
    "mine": ("flips", "{recipe}", "--mine", "{prompts}", "--device", "cpu"),
    "metrics": ("metrics", LOG, "--gate", "k3<1e-3"),
    "repeats": ("metrics", LOG, LOG, "--repeats"),
    "engines": ("show", "engines", "hf-eager", "hf-default"),
    "fidelity": ("show", "ops", "combine", "--fidelity"),
    "launch": ("show", "launch", LAUNCH / "vllm/serve.sh"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_writes_fits(name: str, recipe: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input_ids": [1, 5, 9, 3, 7, 2]}\n{"input_ids": [4, 4, 6, 8, 30, 1]}\n', "utf-8")
    words = [str(word).format(recipe=recipe, prompts=prompts) for word in COMMANDS[name]]
    done = inside(*words, "--json", tmp_path / "out.json")
    assert done.returncode in {0, 1, 3}, done.stderr
    document = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert refused(name, document) == []
    assert document["digest"] == digest(document)
    if isinstance(document.get("cost"), dict):
        assert list(document)[-1] == "cost"
        assert refused(name, {key: item for key, item in document.items() if key != "cost"}), "its cost is demanded"
    document["of nobody"] = 1
    assert refused(name, document), "the validator is closed"


@pytest.mark.parametrize("words", [("show", "engines"), ("show", "engines", "hf-eager")])
def test_the_other_documents_of_engines_fit(words: tuple[str, ...], tmp_path: Path) -> None:
    assert inside(*words, "--json", tmp_path / "out.json").returncode == 0
    assert refused("engines", json.loads((tmp_path / "out.json").read_text("utf-8"))) == []


def test_the_same_run_writes_the_same_bytes_but_for_its_cost(recipe: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        inside("bisect", recipe, "--json", tmp_path / name, "--device", "cpu")
        texts.append((tmp_path / name).read_text("utf-8"))
    stable, costs = zip(*(text.split('\n "cost": {') for text in texts), strict=True)
    assert stable[0] == stable[1]
    assert "seconds" in costs[0]
    assert not any(word in stable[0] for word in ('seconds"', 'memory_peak"', 'evaluations"'))


def test_a_digest_is_of_all_but_the_cost() -> None:
    first, second, another = (
        json.loads(to_json("s/1", {"value": value, "cost": {"seconds": seconds}}))
        for value, seconds in ((math.nan, 1.0), (math.nan, 2.0), (0.5, 1.0))
    )
    assert first["value"] == "nan"
    assert first["digest"] == second["digest"] != another["digest"]
    written = rb'{"a":"\u00e9","b":[1,0.5],"schema":"s/1"}'
    document = {"schema": "s/1", "b": [1, 0.5], "a": "\u00e9", "cost": {}}
    assert digest(document) == f"sha256:{sha256(written).hexdigest()}"


def test_the_program_of_the_document_takes_the_same_digest(recipe: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/ci.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    inside("bisect", recipe, "--json", tmp_path / "report.json", "--device", "cpu")
    with contextlib.chdir(tmp_path):
        exec(program, {})  # noqa: S102
    (tmp_path / "report.json").write_text((tmp_path / "report.json").read_text().replace("hf-eager", "hf-other"))
    with contextlib.chdir(tmp_path), pytest.raises(AssertionError):
        exec(program, {})  # noqa: S102


def test_every_schema_is_held_to_a_file() -> None:
    # tests/check, tests/evidence/{diff,explain,weights}, tests/ranks, tests/doctor, tests/bisection/ablation
    held_elsewhere = {"baseline", "diff", "explain", "ranks", "weights", "contract", "examination", "ablation"}
    assert {*COMMANDS, *held_elsewhere} == set(REPORTS)


@pytest.mark.parametrize("name", ["report", "metrics", "baseline"])
def test_the_command_prints_the_schema(name: str) -> None:
    done = inside("show", "schema", name)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(report_schema(name)))
