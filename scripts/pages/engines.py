"""What each engine profile states, from the shipped profiles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from moeparity.plan.rule import DEFAULT, NO_FLAG
from moeparity.plan.schedule.cases import described
from moeparity.profiles.compare import architectures, profiles, statements
from moeparity.profiles.report import EngineProfile, Statement

HEAD = """# What each engine profile states

Written by `python -m scripts.pages engines` from `graphs/profiles/`. `moeparity engines` lists the profiles,
`moeparity engines A` prints one, `moeparity engines A B` says how two differ and what may matter most, without any
weights, and `moeparity engines --config FILE` says which of them a launch configuration of vLLM, SGLang, verl or
NeMo-RL implies, with every option that is left unset.

- Evidence: `verified` is bit-equal to the engine's own code on a CPU, `verified: ptx` to what a compiler made of its
  CUDA source, `read` is from the source named, `inferred` was concluded from it, `opaque` cannot be known from outside
  (an order of arrival). No engine was started, and nothing was run on a GPU.
- "set by" is what a user gives the engine to have the value, `default` where it does so by itself; "to change" is what
  would give another, `none` where nothing does.
- What a profile takes over (`extends`) from another engine keeps its value and is printed as `unknown`: it is no
  evidence for this one. What no profile states is the op's default and counts as `unknown` too.
- A fused kernel is an overlay, or one entry of `fusions:`, so that each is a toggle of its own.
- Versions are those read, and they matter: the norm kernels of vLLM 0b9c541280 and 0.33.0 multiply the weight before
  the one cast, some older ones after it; SGLang's fused all-reduce adds in fp32 by default in 0.5.23, not at cc28b8a.

Architectures of `--graph`, with the widths of public checkpoints. No file of the hub was opened: the widths were held
against what is named here, on 2026-11-21.

| `--graph` | sizes of | held against |
|---|---|---|
{architectures}

| profile | engine | version | what it is |
|---|---|---|---|
{overview}
"""


def page(_: str = "") -> str:
    """The whole page."""
    ordered = sorted(profiles(), key=lambda profile: (profile.engine.lower(), profile.name))
    overview = "\n".join(f"| `{p.name}` | {p.engine} | {p.version} | {_cell(p.says)} |" for p in ordered)
    head = HEAD.format(architectures="\n".join(map(_sizes, architectures().values())), overview=overview)
    return "\n".join([head.rstrip(), *(line for profile in ordered for line in _section(profile)), ""])


def _sizes(path: Path) -> str:
    """Of which checkpoint an architecture has its widths, and what was read to check them."""
    config = json.loads(path.read_text("utf-8"))
    return f"| `{path.stem}` | {config['sizes_of']} | {_cell(config.get('sizes_checked', 'unchecked'))} |"


def _section(profile: EngineProfile) -> Iterator[str]:
    """One profile: what it is, its values, what it leaves open."""
    yield f"\n## {profile.name}\n"
    yield profile.about or profile.says
    if profile.extends:
        yield f"\nThe rest is that of `{profile.extends}`."
    yield "\n| on | value | evidence | set by | to change |\n|---|---|---|---|---|"
    for rule, values in groupby(
        statements(profile.name), key=lambda s: (s.on, s.model_types, s.phases, s.source, s.set_by, s.changed_by)
    ):
        yield _row(list(values), rule[1], rule[2])
    if profile.not_stated:
        yield f"\nNot stated: {profile.not_stated}"


def _row(stated: list[Statement], model_types: tuple[str, ...], phases: tuple[str, ...]) -> str:
    """The values of one rule."""
    first = stated[0]
    models = f" ({', '.join(model_types)})" if model_types else ""
    models += f" in {described(phases)}" if phases else ""
    values = ", ".join(f"`{s.attribute}` {_cell(s.value)}" for s in stated)
    flags = (f if f in {DEFAULT, NO_FLAG} else f"`{_cell(f)}`" for f in (first.set_by, first.changed_by))
    return f"| {first.on}{models} | {values} | {first.evidence}: {_cell(first.source)} | {' | '.join(flags)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
