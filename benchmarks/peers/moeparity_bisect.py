"""moeparity on the same pair: a recipe whose two profiles state both programs, checked against their logits first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from benchmarks.peers.cases import SEQUENCES, SIDES, Case
from benchmarks.peers.environment import Environment, Session
from benchmarks.peers.result import Result

TOOL = "moeparity bisect"
COMMAND = [sys.executable, "-m", "moeparity.cli"]
GATE = {"metric": "k3", "below": 1e-4}


def run(case: Case, environment: Environment, checkpoint: Path, pair: Path, folder: Path) -> list[Result]:
    """One result. Where the profiles do not give the programs' bits, the answer would be about another pair."""
    profiles = {"reference": "hf-eager", "candidate": str(write_profile(case, folder))}
    wrong = [side for side in SIDES if not same_logits(side, profiles[side], checkpoint, pair, folder)]
    if wrong:
        return [Result(tool=TOOL, verdict=f"not applicable: no profile gives the {' and '.join(wrong)}'s logits")]
    report = folder / "report.json"
    session = Session()
    ran = session.run(
        [*COMMAND, "bisect", str(write_recipe(profiles, checkpoint, pair, folder)), "--json", str(report)]
    )
    if not report.exists():
        return [Result(tool=TOOL, verdict=f"error: {ran.output.strip()[-200:]}", code=ran.code)]
    content = json.loads(report.read_text("utf-8"))
    others: dict[str, Any] = {
        "code": ran.code,
        "seconds": session.seconds,
        "written": report.stat().st_size,
        "lines": (ran.line,),
    }
    return [read(content, **others)]


def write_profile(case: Case, folder: Path) -> Path:
    """The candidate as a profile: the shipped one that describes its arguments, and a rule per plant."""
    rules = [
        {
            "nodes": plant.attribute.partition(":")[0],
            "set": {plant.attribute.partition(":")[2]: plant.setting},
            "evidence": {"level": "verified", "source": "benchmarks/peers, equal logits in this run"},
        }
        for plant in case.plants
        if plant.attribute is not None
    ]
    path = folder / "candidate.yaml"
    text = {"kind": "profile", "name": "candidate", "extends": case.profile, "rules": rules}
    path.write_text(yaml.safe_dump(text, sort_keys=False), "utf-8")
    return path


def write_recipe(profiles: dict[str, str], checkpoint: Path, pair: Path, folder: Path) -> Path:
    """The recipe of the pair, all sequences in one micro-batch as the programs run them."""
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": str(pair / "tokens.safetensors"), "sampled_from": "candidate"},
        **{side: {"profile": profile, "micro_batch": SEQUENCES} for side, profile in profiles.items()},
        "gate": GATE,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")
    return path


def same_logits(side: str, profile: str, checkpoint: Path, pair: Path, folder: Path) -> bool:
    """Whether `moeparity forward` gives the program's logits bit for bit."""
    out = folder / f"{side}.safetensors"
    command = [*COMMAND, "forward", str(checkpoint), "--tokens", str(pair / "tokens.safetensors"), "--out", str(out)]
    Session().must([*command, "--profile", profile])
    ours, theirs = load_file(out)["logits"], load_file(pair / "logits.safetensors")[side]
    same = ours.dtype == theirs.dtype and torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    print(f"{side}: moeparity's logits have {'the' if same else 'NOT the'} bits of the transformers program's")
    return same


def read(report: dict[str, Any], **others: Any) -> Result:
    """A result from the JSON report: the gate's verdict, the root nodes, and the toggles that are to blame.

    A toggle is to blame where restoring it alone lowers the divergence, with the whole paired 95 % interval below 0.
    """
    verdict, roots = report["verdict"], [root["node"] for root in report["roots"]]
    total = report["metrics"]["kl_reverse"]
    acting = sorted(
        (each for each in report["toggles"] if each["restored"] and each["restored_change_high"] < 0),
        key=lambda each: float(each["restored"]["kl"]),
    )
    effects = [each for each in report["toggles"] if not each["had_no_effect"]]
    shares = [f"{each['name']} (restoring it removes {1 - each['restored']['kl'] / total:.0%})" for each in acting]
    none = f"none: {len(effects)} toggles act, restoring any one removes nothing that shows" if effects else "-"
    blamed = tuple(each["name"].partition(":")[0] for each in acting)
    return Result(
        tool=TOOL,
        verdict=f"{verdict['status']}: k3 {verdict['value']['estimate']:.2g}, gate {verdict['below']:.0e}",
        location=", ".join(blamed) or "-",
        places=blamed,
        first=", ".join(roots) or "-",
        first_places=tuple(roots),
        attribute="; ".join(shares) or none,
        attributes=tuple(each["name"] for each in acting),
        **others,
    )
