"""How sure it is that a value of an attribute computes what an engine does: by levels, from verified to opaque.

`verified` and `verified: ptx` rest on `evidence.json` alone, which `python -m scripts.pages evidence` makes of what the
tests wrote down; everything else on what profiles, launch rules, collectives and ops say of their sources. No torch
here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, get_args

from moeparity.documents.checked import shipped
from moeparity.errors import Where
from moeparity.numerics.collectives.declaration import Evidence, Level
from moeparity.ops.attribute import Attribute
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from moeparity.output.json import to_json as as_json
from moeparity.plan.engine_profile import check_value, load_profile
from moeparity.plan.rule import Rule

SCHEMA = "moeparity.fidelity/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""

Key = tuple[str, str, str]
"""An op, an attribute of it (or `site->consumer`), and a value as text."""

LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""The surest first."""
PROVED: Final = LEVELS[:3]
"""Levels that rest on runs."""
How = Literal["kernel", "recorded", "triton_interpreter", "python", "ptx"]
HOW: Final[Mapping[How, str]] = {
    "kernel": "the kernel or program itself, as it runs on that device",
    "recorded": "what it computed on that GPU, recorded there; no GPU when it was compared",
    "triton_interpreter": "the engine's Triton code in Triton's interpreter",
    "python": "the engine's own Python on a CPU, where its users run it on a GPU",
    "ptx": "what a compiler made of its CUDA source (PTX), in this project's interpreter",
}
"""In which ways code that this project did not write was run."""
_LEVEL_OF: Final[Mapping[How, Level]] = {"recorded": "verified: vectors", "ptx": "verified: ptx"}
FILE = "evidence.json"
NO_ENGINE = "none"
"""Engine of a profile that speaks of no library: what it calls verified is held against this project's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a run of PTX rests on beside the source: the compiler with its version, its flags, the architecture.

    assumed: instructions of which no document fixes the result, which were taken to be correctly rounded. contractible:
    how many products and sums the assembler may still make one fma: above 0 the machine code may have other bits.
    """

    compiler: str
    architecture: str
    flags: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    contractible: int = 0

    def __str__(self) -> str:
        parts = [" ".join((self.compiler, f"for {self.architecture}", *self.flags))]
        parts += [f"assumed: {', '.join(self.assumed)}"] if self.assumed else ["nothing assumed"]
        parts += [f"ptxas may fuse {self.contractible} products into sums"] if self.contractible else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One kernel that was run beside ours on one device, with equal bits, and the tests that did so.

    how: in which way it was run; `compiled` where that is `ptx`.
    """

    against: str
    device: str
    torch: str
    date: str
    tests: tuple[str, ...]
    how: How = "kernel"
    compiled: Compiled | None = None

    @property
    def says(self) -> str:
        """All but the tests, for people."""
        compiler = "" if self.compiled is None else f" [{self.compiled}]"
        return f"{self.against}{compiler} on {self.device} (torch {self.torch}, {self.date})"

    @property
    def level(self) -> Level:
        """How sure a value is that rests on it."""
        return _LEVEL_OF.get(self.how, "verified")

    @property
    def source(self) -> dict[str, Any]:
        """It in the data file, without its tests, and without what is as usual."""
        fields = asdict(self)
        del fields["tests"]
        usual = {"how": "kernel", "compiled": None}
        return {name: value for name, value in fields.items() if usual.get(name, value) != value or name not in usual}


def proof_of(source: Mapping[str, Any], tests: Iterable[str]) -> Proof:
    """A source of the data file and its tests, as a proof."""
    compiled = source.get("compiled")
    if compiled is not None:
        lists = {name: tuple(compiled.get(name, ())) for name in ("flags", "assumed")}
        compiled = Compiled(**{**compiled, **lists})
    return Proof(**{**source, "compiled": compiled}, tests=tuple(tests))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One value of one attribute, how sure it is, and what that rests on."""

    op: str
    attribute: str
    value: str
    level: Level
    sources: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a rule of a shipped profile says of one value; `engine` is the one the profile is of."""

    key: Key
    level: str
    source: str
    profile: str
    engine: str
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values of one attribute that are equally sure for the same reasons; `kernels` are those of the proofs."""

    op: str
    attribute: str
    values: tuple[str, ...]
    level: Level
    sources: tuple[str, ...]
    kernels: tuple[str, ...]


def findings(ops: Iterable[Op] | None = None) -> list[Finding]:
    """Every value of every attribute of some ops, of all by default: declared, set by a profile, or verified."""
    values_in_use: dict[tuple[str, str], dict[str, None]] = {}
    for name, attribute_name, value in (*verified(), *(claim.key for claim in claims())):
        values_in_use.setdefault((name, attribute_name), {})[value] = None
    rows = []
    for op in OPS.values() if ops is None else ops:
        for attribute in op.attributes:
            further = values_in_use.get((op.name, attribute.name), {})
            rows += [_finding((op.name, attribute.name, value)) for value in _values(attribute, further)]
        declared = {attribute.name for attribute in op.attributes}
        for (op_name, name), values in values_in_use.items():
            if op_name == op.name and name not in declared:
                rows += [_finding((op_name, name, value)) for value in values]
    return rows


def lines(rows: Iterable[Finding]) -> list[Line]:
    """The findings with equal neighbours on one line, the surest of an attribute first."""
    ordered: list[Finding] = []
    for _, group in groupby(rows, key=lambda f: (f.op, f.attribute)):
        ordered += sorted(group, key=lambda f: (LEVELS.index(f.level), f.sources, _kernels(f)))
    return [
        Line(
            op=op,
            attribute=attribute,
            values=tuple(f.value for f in equal),
            level=level,
            sources=sources,
            kernels=kernels,
        )
        for (op, attribute, level, sources, kernels), equal in groupby(
            ordered, key=lambda f: (f.op, f.attribute, f.level, f.sources, _kernels(f))
        )
    ]


def _kernels(finding: Finding) -> tuple[str, ...]:
    return tuple(proof.says for proof in finding.proofs)


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityDocument:
    """What `moeparity show ops --fidelity --json` writes."""

    found: tuple[Finding, ...]


def to_json(rows: Iterable[Finding]) -> str:
    """The findings as JSON, with the name of their schema."""
    return as_json(SCHEMA, FidelityDocument(found=tuple(rows)), indent=2)


@cache
def verified() -> Mapping[Key, tuple[Proof, ...]]:
    """The data file: of each verified value, one proof for each kernel and device."""
    return proofs_of(json.loads((resources.files("moeparity.profiles") / FILE).read_text("utf-8")))


def proofs_of(data: Mapping[str, Any]) -> dict[Key, tuple[Proof, ...]]:
    """What the file holds: `sources` and `tests` as lists, and `values` by op, attribute and value as index pairs."""
    proofs: dict[Key, tuple[Proof, ...]] = {}
    for op, attributes in data["values"].items():
        for attribute, values in attributes.items():
            for value, pairs in values.items():
                tests_by_source: dict[int, list[str]] = {}
                for source, test in pairs:
                    tests_by_source.setdefault(source, []).append(data["tests"][test])
                proofs[op, attribute, value] = tuple(
                    proof_of(data["sources"][source], tests) for source, tests in tests_by_source.items()
                )
    return proofs


@cache
def claims() -> tuple[Claim, ...]:
    """What the shipped profiles say themselves, without what they take over, profile by profile."""
    return tuple(claim for name in shipped("profiles") for claim in _claims(name))


def _claims(name: str) -> Iterator[Claim]:
    profile = load_profile(name, Where(Path("--fidelity")))
    engine = "-" if profile.engine is None else profile.engine.name
    on_gpus = (rule for _, rule in profile.on_gpus if rule.profile == name)
    for rule in (*profile.layers[-2], *profile.layers[-1], *on_gpus):
        for key in _keys(rule):
            yield Claim(key=key, level=rule.level, source=rule.source, profile=name, engine=engine, where=rule.where)


def _keys(rule: Rule) -> Iterator[Key]:
    """What a rule sets; a selector of nodes names no op, and no shipped profile has one."""
    for name, value in rule.values:
        op, _, attribute = name.partition(":") if rule.chain else (rule.op, "", name)
        if op is not None:
            yield op, attribute, str(check_value(OPS[op], attribute, value, rule.where)[1])


def _values(attribute: Attribute, further: Iterable[str]) -> Iterator[str]:
    """The words it allows, its default, values in use somewhere, and what else may stand there."""
    yield from dict.fromkeys((*attribute.values, str(attribute.default), *further))
    if attribute.number:
        yield "any other number"
    if attribute.least is not None:
        yield f"any other whole number from {attribute.least}"
    if attribute.order:
        yield "any other order"


def _finding(key: Key) -> Finding:
    op, attribute, value = key
    proofs = verified().get(key, ())
    if proofs:
        surest = min((proof.level for proof in proofs), key=LEVELS.index)
        return Finding(op=op, attribute=attribute, value=value, level=surest, proofs=proofs)
    statements = [*_declared(key), *_profile_evidence().get(key, ())]
    levels = {evidence.level for evidence in statements}
    level: Level = next((level for level in LEVELS if level in levels), "inferred")
    sources = tuple(dict.fromkeys(e.source for e in statements if e.level == level))
    return Finding(op=op, attribute=attribute, value=value, level=level, sources=sources)


def _level(name: str) -> Level:
    return next(level for level in LEVELS if level == name)


@cache
def _profile_evidence() -> Mapping[Key, tuple[Evidence, ...]]:
    """What profiles say but for levels that are the data file's to give."""
    evidence_of: dict[Key, tuple[Evidence, ...]] = {}
    for claim in claims():
        if claim.level in LEVELS and claim.level not in PROVED and claim.engine != NO_ENGINE:
            evidence = Evidence(_level(claim.level), f"{claim.source} ({claim.profile})")
            evidence_of[claim.key] = (*evidence_of.get(claim.key, ()), evidence)
    return evidence_of


def _declared(key: Key) -> Iterator[Evidence]:
    """What the op's own declaration says of the value."""
    op, name, value = key
    attribute = OPS[op].attribute(name)
    if attribute is not None and value in attribute.sources:
        yield _unproved(attribute.sources[value])


def _unproved(evidence: Evidence) -> Evidence:
    """What is left of a `verified` that the data file does not know: its source."""
    return Evidence("read", evidence.source) if evidence.level in PROVED else evidence
