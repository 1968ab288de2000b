"""What each engine profile states, from the shipped profiles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from moeparity.plan.rule import DEFAULT
from moeparity.plan.schedule.cases import described
from moeparity.profiles.compare import architectures, profiles, statements
from moeparity.profiles.report import EngineProfile, Statement
from moeparity.profiles.show import effect_in_words

HEAD = """# What each engine profile states

Written by `python -m scripts.pages engines` from `graphs/profiles/`. `moeparity show engines` lists the profiles,
`moeparity show engines A` prints one, `moeparity show engines A B` says how two differ and what may matter most,
without any weights, and `moeparity show launch FILE` says which of them a launch configuration of vLLM, SGLang, verl
or NeMo-RL implies, with every option that is left unset.

- Evidence: `verified` is bit-equal to the engine's own code on a CPU, `verified: ptx` to what a compiler made of its
  CUDA source, `read` is from the source named, `inferred` was concluded from it, `opaque` cannot be known from outside
  (an order of arrival). No engine was started, and nothing was run on a GPU.
- "set by" is what a user gives the engine to have the value, `default` where it does so by itself. "with" is a
  flag of which it is known what the engine then computes: as another profile, or the values that it sets. Of several
  lines of one flag the first counts whose models, sizes and ranks (in brackets) are those of the run:
  `vllm.tuned_tiles` is where vLLM has tuned tiles of one of the model's weights. What extends a profile has its flags
  too.
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
    yield "\n| on | value | evidence | set by |\n|---|---|---|---|"
    for _, values in groupby(statements(profile.name), key=lambda statement: statement.of_rule):
        yield _row(list(values))
    if profile.flags:
        yield "\n| with | it computes |\n|---|---|"
        yield from (f"| `{_cell(flag.flag)}` | {_cell(effect_in_words(flag))} |" for flag in profile.flags)
    if profile.not_stated:
        yield f"\nNot stated: {profile.not_stated}"


def _row(stated: list[Statement]) -> str:
    """The values of one rule."""
    first = stated[0]
    models = f" ({', '.join(first.model_types)})" if first.model_types else ""
    models += f" of {first.sizes}" if first.sizes else ""
    models += f" in {described(first.phases)}" if first.phases else ""
    values = ", ".join(f"`{s.attribute}` {_cell(s.value)}" for s in stated)
    set_by = first.set_by if first.set_by == DEFAULT else f"`{_cell(first.set_by)}`"
    return f"| {first.on}{models} | {values} | {first.evidence}: {_cell(first.source)} | {set_by} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
