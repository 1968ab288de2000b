"""`moeparity show ops --fidelity`, and whether what profiles call verified is backed by a test."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.documents.checked import shipped
from moeparity.errors import Where
from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS
from moeparity.ops.kernels.key_tiles import cuts
from moeparity.ops.norm.reductions import RULES
from moeparity.ops.registry import OPS
from moeparity.plan.engine_profile import check_value, load_profile
from moeparity.profiles import fidelity
from moeparity.profiles.fidelity import LEVELS, NO_ENGINE, PROVED, Compiled, Finding, Key, Proof
from scripts.pages.evidence import DATA, as_text, merged, targets
from scripts.pages.fidelity import tables_of
from tests.command import ROOT, Done, alone, inside
from tests.verified import FOLDER, record

FOUND = fidelity.findings()
OF = {(f.op, f.attribute, f.value): f for f in FOUND}
NAMED = {
    (op.name, attribute.name, value): evidence.source
    for op in OPS.values()
    for attribute in op.attributes
    for value, evidence in attribute.sources.items()
    if value not in {**COLLECTIVES, **SELECTIONS, **RULES}
}


@pytest.mark.parametrize("op", OPS)
def test_every_declared_value_has_a_level(op: str) -> None:
    declared = {(a.name, value) for a in OPS[op].attributes for value in (*a.values, str(a.default))}
    assert declared <= {(f.attribute, f.value) for f in FOUND if f.op == op}


def test_no_value_stands_twice() -> None:
    assert len(OF) == len(FOUND)


def test_what_collectives_and_launch_rules_say_of_themselves() -> None:
    stated = [(("all_reduce", "collective", name), c.evidence) for name, c in COLLECTIVES.items()]
    stated += [(("rms_norm", "order", name), rule.evidence) for name, rule in RULES.items()]
    for key, evidence in stated:
        finding = OF[key]
        assert finding.level == evidence.level or (finding.level in PROVED and finding.proofs), key
        assert finding.level in PROVED or evidence.source in finding.sources, key


def test_levels_of_known_values() -> None:
    """Verified is the data file's word only; a profile's own evidence stands for the rest."""
    assert OF["combine", "order", "sequential"].level == "verified"
    assert OF["rope", "contraction", "none"].level == "verified"
    assert OF["combine", "order", "unordered(0)"].level == "opaque"
    assert OF["linear", "bias", "after"].level == "read"
    assert any("megatron" in source for source in OF["linear", "bias", "after"].sources)
    assert OF["router", "tie_break", "highest_index"].level == "inferred"


@pytest.mark.parametrize("key", NAMED, ids=":".join)
def test_the_declaration_names_that_source(key: Key) -> None:
    attribute = OPS[key[0]].attribute(key[1])
    assert key[2] in {*attribute.values, str(attribute.default)}
    texts = [OPS[key[0]].source, attribute.says, " ".join(str(cuts.__doc__).split())]
    assert any(NAMED[key] in text for text in texts[: 3 if cuts.__module__ in texts[0] else 2])
    assert OF[key].level in {"read", *PROVED}


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_proof_names_a_test_that_is_there() -> None:
    tests = {test for f in FOUND for proof in f.proofs for test in proof.tests}
    assert tests
    gone = [test for test in tests if test.partition("::")[2] not in functions(test.partition("::")[0])]
    assert gone == []
    assert {test.partition("::")[0] for test in tests} <= set(targets()), "they still write down evidence"


def test_every_value_of_the_data_file_is_one_as_it_is_kept() -> None:
    where = Where(Path("evidence.json"))
    for op, attribute, value in fidelity.verified():
        declared = OPS[op].attribute(attribute.partition("->")[0])
        typed: Any = value
        if value not in declared.values and (declared.number or declared.least is not None):
            typed = float(value) if declared.number else int(value)
        assert str(check_value(OPS[op], attribute, typed, where)[1]) == value


def backed(source: str, proofs: tuple[Proof, ...]) -> bool:
    """A claim that names test files needs a proof from one of them."""
    files = {test.partition("::")[0] for proof in proofs for test in proof.tests}
    return bool(proofs) and ("tests/" not in source or any(file in source for file in files))


def test_what_profiles_call_verified_is_in_the_data_file() -> None:
    claimed = [c for c in fidelity.claims() if c.level in PROVED and c.engine != NO_ENGINE]
    assert claimed
    wrong = [f"{c.where}: {':'.join(c.key)}: {c.source}" for c in claimed if not backed(c.source, proofs_for(c))]
    assert wrong == []


def proofs_for(claim: fidelity.Claim) -> tuple[Proof, ...]:
    """Those of at least its level, of the profile's own engine or of a kernel that the source names in full."""
    proofs = [proof for proof in OF[claim.key].proofs if LEVELS.index(proof.level) <= LEVELS.index(claim.level)]
    return tuple(proof for proof in proofs if claim.engine in proof.against or proof.against in claim.source)


def test_a_claim_needs_a_run_of_that_engine_or_of_what_its_source_names() -> None:
    key = ("combine", "order", "sequential")
    claim = fidelity.Claim(
        key=key, level="verified: ptx", source="x", profile="vllm", engine="vLLM", where=Where(Path("x.yaml"))
    )
    assert OF[key].proofs
    assert not any("Megatron" in proof.against for proof in OF[key].proofs)
    others = replace(claim, engine="Megatron-LM")
    assert proofs_for(others) == proofs_for(replace(others, level="verified")) == ()
    against = OF[key].proofs[0].against
    assert {proof.against for proof in proofs_for(replace(others, level="verified: ptx", source=against))} == {against}


def test_what_collectives_call_verified_is_in_the_data_file() -> None:
    claimed = {name: c.evidence.source for name, c in COLLECTIVES.items() if c.evidence.level in PROVED}
    assert claimed
    for name, source in claimed.items():
        assert backed(source, OF["all_reduce", "collective", name].proofs), name
    assert not any(rule.evidence.level in PROVED for rule in RULES.values()), "then check these too"


def test_no_shipped_rule_is_lost_for_naming_nodes_and_no_op() -> None:
    profiles = [load_profile(name, Where(Path("here"))) for name in shipped("profiles")]
    assert all(rule.nodes is None for profile in profiles for layer in profile.layers for rule in layer)


def test_the_data_file_is_as_the_script_writes_it() -> None:
    text = DATA.read_text("utf-8")
    data = json.loads(text)
    assert as_text(data) == text
    assert as_text(merged(data, [], "2000-01-01")) == text
    assert len(text) < 100_000


LINE: dict[str, Any] = {
    "op": "combine",
    "values": {"order": ["sequential"], "output": ["bf16", "model"]},
    "source": {
        "against": "some engine 1.0",
        "device": "some GPU",
        "torch": "2.13.0",
        "how": "kernel",
        "compiled": None,
    },
    "test": "tests/test_a.py::test_b",
}


def test_a_run_replaces_what_was_known_of_its_device_and_nothing_else() -> None:
    first = merged({"sources": [], "tests": [], "values": {}}, [LINE, LINE], "2000-01-01")
    assert first["sources"] == [
        {"against": "some engine 1.0", "device": "some GPU", "torch": "2.13.0", "date": "2000-01-01"}
    ]
    assert first["values"]["combine"] == {
        "order": {"sequential": [[0, 0]]},
        "output": {"bf16": [[0, 0]], "model": [[0, 0]]},
    }
    again = [LINE | {"values": {"order": ["reverse"]}, "test": f"tests/test_a.py::test_{name}"} for name in "zc"]
    other_line = LINE | {
        "source": LINE["source"] | {"device": "another GPU"},
        "values": {"order": ["reverse"]},
        "test": "tests/test_d.py::test_e",
    }
    both_runs = merged(merged(first, [other_line], "2000-01-02"), again, "2000-01-03")
    proofs = fidelity.proofs_of(both_runs)
    assert proofs.keys() == {("combine", "order", "reverse")}
    old, new = proofs["combine", "order", "reverse"]
    assert (old.device, old.date, old.tests) == ("another GPU", "2000-01-02", ("tests/test_d.py::test_e",))
    assert (new.device, new.date, new.tests) == ("some GPU", "2000-01-03", ("tests/test_a.py::test_c",))


PTX = Compiled(
    compiler="CUDA 13.5.37", architecture="sm_90", flags=("-O3",), assumed=("ex2.approx.f32",), contractible=8
)


def test_a_run_of_ptx_is_surer_than_reading_and_less_sure_than_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its compiler, flags, architecture, assumptions and what may still be fused, and says them."""
    by_ptx = LINE | {"source": LINE["source"] | {"how": "ptx", "compiled": asdict(PTX)}}
    data = merged({"sources": [], "tests": [], "values": {}}, [by_ptx], "2000-01-01")
    again = json.loads(as_text(data))
    assert as_text(merged(again, [], "2001-01-01")) == as_text(data)
    (proof,) = fidelity.proofs_of(again)["combine", "order", "sequential"]
    assert (proof.how, proof.compiled, proof.level) == ("ptx", PTX, "verified: ptx")
    assert proof.says == (
        "some engine 1.0 [CUDA 13.5.37 for sm_90 -O3; assumed: ex2.approx.f32; ptxas may fuse 8 products into sums] "
        "on some GPU (torch 2.13.0, 2000-01-01)"
    )
    for lines, level in (([by_ptx], "verified: ptx"), ([by_ptx, LINE], "verified")):
        proofs = fidelity.proofs_of(merged(data, lines, "2000-01-01"))
        monkeypatch.setattr(fidelity, "verified", lambda proofs=proofs: proofs)
        (row,) = [f for f in fidelity.findings([OPS["combine"]]) if (f.attribute, f.value) == ("order", "sequential")]
        assert row.level == level
        page = tables_of(fidelity.findings([OPS["combine"]]))
        assert f"| order | `sequential` | {level} | V1" in page
        assert "2000-01-01) | ptx | tests/test_a.py |" in page
    assert LEVELS == ("verified", "verified: vectors", "verified: ptx", "verified: trace", "read", "inferred", "opaque")


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text("utf-8").splitlines()]


def test_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what takes effect, and nothing of sites where nothing is rounded; without the folder nothing at all."""
    at: dict[str, Any] = {"weighted": torch.bfloat16, "accumulate": torch.float32, "order": "sequential"}
    at |= {"output": torch.bfloat16, "partial": torch.bfloat16, "expert": 1, "score_site": "combine"}
    monkeypatch.delenv(FOLDER, raising=False)
    record("combine", at, "this test")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr("tests.verified._written", set())
    assert written(tmp_path) == []
    record("combine", at, "this test", operands=torch.bfloat16)
    record("combine", at, "this test", operands=torch.bfloat16)
    record("combine", at | {"score_site": "epilogue"}, "this", operands=torch.bfloat16, blind=("order",))
    record("combine", dict.fromkeys(("output", "accumulate"), torch.float32), "fp32", operands=torch.float32)
    full, blind, plain = written(tmp_path)
    dtypes = ["bf16", "model"]
    sites = {"accumulate": ["fp32"], "output": dtypes}
    assert full["values"] == {**sites, "expert": ["1"], "order": ["sequential"], "weighted": dtypes}
    assert full["test"] == "tests/profiles/test_fidelity.py::test_record"
    assert (full["source"]["against"], full["source"]["torch"]) == ("this test", torch.__version__)
    assert blind["values"] == {**sites, "expert": ["1"]}
    assert plain["values"] == {}
    monkeypatch.setattr("tests.verified._written", set())
    record("combine", {"order": "sequential"}, "a kernel", how="ptx", compiled=PTX)
    assert Compiled(**written(tmp_path)[-1]["source"]["compiled"]).contractible == 8
    with pytest.raises(AssertionError, match="names its compiler"):
        record("combine", {"order": "sequential"}, "a kernel", how="ptx")
    with pytest.raises(AssertionError, match="combine has no"):
        record("combine", {"ordre": "sequential"}, "a misspelt attribute")


def command(*arguments: str) -> Done:
    return inside("show", "ops", *arguments)


def test_all_ops_on_the_command_line(tmp_path: Path) -> None:
    done = alone("show", "ops", "--fidelity", "--json", tmp_path / "all.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(op in done.stdout for op in OPS if OPS[op].attributes)
    findings = json.loads((tmp_path / "all.json").read_text("utf-8"))["found"]
    assert [(f["op"], f["attribute"], f["value"], f["level"]) for f in findings] == [
        (f.op, f.attribute, f.value, f.level) for f in FOUND
    ]


def test_an_op_without_attributes() -> None:
    assert command("split", "--fidelity").stdout == "no attributes: nothing about it can differ\n"


def test_one_op_on_the_command_line() -> None:
    done = command("combine", "--fidelity")
    assert (done.returncode, done.stderr) == (0, "")
    assert "transformers" in done.stdout
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    assert ["shared", "add", "verified"] in rows
    assert any(row[:1] == ["leaves"] for row in rows)
    assert "router" not in done.stdout.split()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("combin", "--fidelity"), "error: op 'combin' is unknown; expected one of"),
        (("--json", "x.json"), "error: show ops: --json writes what --fidelity finds."),
        (("--fidelity", "--json", "no/such/folder/x.json"), "cannot be written: there is no folder"),
    ],
)
def test_a_users_mistake(arguments: tuple[str, ...], says: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_it_takes_no_torch() -> None:
    code = "import sys, moeparity.cli.fidelity as f; f.findings(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_lines_join_values_that_rest_on_the_same() -> None:
    of = [Finding(op="a", attribute="x", value=value, level="inferred") for value in ("1", "3")]
    of.insert(1, Finding(op="a", attribute="x", value="2", level="opaque"))
    of.append(Finding(op="a", attribute="y", value="1", level="inferred"))
    assert [(line.attribute, line.values, line.level) for line in fidelity.lines(of)] == [
        ("x", ("1", "3"), "inferred"),
        ("x", ("2",), "opaque"),
        ("y", ("1",), "inferred"),
    ]
    groups = [key for key, _ in groupby(FOUND, key=lambda f: (f.op, f.attribute))]
    assert len(groups) == len(set(groups)), "what belongs together stands together"
