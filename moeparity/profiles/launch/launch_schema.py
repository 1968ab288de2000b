"""The schema of what is known of a program's options (`kind: launch`): those that no profile states, and lists."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, WrapValidator, model_validator

from moeparity.documents.model import Model, with_lines

ADAPTER = "adapter"
"""The one of a file's `reasons` that options have by which there is a LoRA adapter: a recipe says which one."""
OF_STEPS = ("speculative", "chunked", "prefixes")
"""Those of options that say how tokens come into steps: recorded steps (`STEPS`) show it."""
STEPS = "steps"
Plain = str | int | float | bool
"""A value of an option, compared as text in lower case."""


class UnstatedOption(Model):
    """An option that decides numerics of which no profile states anything.

    changes: what it changes, as a sentence or the name of one of the file's `reasons`. of: in its place, the option
    that it says more of, which is the one that warns. also: its other spellings. off: values with which it has no
    effect, beside those that every option has it with, such as none, false and 0. unless: it has its effect, also where
    it is not set, unless it is set to one of these. default: values that count as not set, the real default first; any
    other has its effect. concerns: what a model or its weights must have for any effect.
    """

    changes: str | None = None
    of: str | None = None
    also: list[str] = []
    off: list[Plain] = []
    unless: list[Plain] = []
    default: list[Plain] = []
    concerns: Literal["quantised", "latent", "state", "grouped"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.changes is None) == (self.of is None):
            raise ValueError("an option says either what it `changes` or what option it says more `of`")
        if sum(map(bool, (self.off, self.unless, self.default))) > 1:
            raise ValueError("`off`, `unless` and `default` are three ways to say when it has no effect; give one")
        return self


class UnstatedGroup(Model):
    """Options of one side: `below` begins the name of each. environment: they are environment variables."""

    below: str = ""
    role: Literal["server", "trainer", "rollout"] = "server"
    environment: bool = False
    options: Annotated[
        Annotated[dict[str, str | UnstatedOption], Field(min_length=1)],
        WrapValidator(with_lines),
    ]
    """A `yaml.Mapping`, so that each option has its line."""


class LaunchFile(Model):
    """`kind: launch`: options of one `program`.

    gone: options of other versions, each with what this version has in its place. lists: names of options by what they
    have in common, such as `switches`, which take no value.
    """

    kind: Literal["launch"]
    program: str
    reasons: dict[str, str] = {}
    unstated: dict[str, UnstatedGroup] = {}
    gone: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
