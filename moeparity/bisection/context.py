"""What a measure is (`Measure`), what it is given (`Context`), and how it fills data from what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from moeparity.bisection.observed import Observed
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import Search, Watch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """What a measure is given: the study, what the passes showed, and the data of the measures that it needs, by
    type.
    """

    study: Study
    observed: Observed
    data: Mapping[type, Any]

    def __getitem__(self, kind: type[T]) -> T:
        """The data of type `kind`. Raises KeyError if `kind` is not among the measure's `needs`, or if it has no
        data.
        """
        data = self.get(kind)
        if data is None:
            raise KeyError(kind)
        return data

    def get(self, kind: type[T]) -> T | None:
        """The data of type `kind`, None if its measure made none. Raises KeyError if `kind` is not among the
        `needs`.
        """
        data: T | None = self.data[kind]
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How one part of the report is made.

    gives: the type of its data. needs: the types of other measures' data that it looks up. trials: adds what it wants
    run beside both sides in the first pass to the trials so far. watch: makes the observer of the first pass. search:
    what it finds in later passes. measure: makes the data; None if there is nothing to tell.
    """

    gives: type
    measure: Callable[[Context], Any]
    needs: tuple[type, ...] = ()
    trials: Callable[[Study, Trials], Trials] | None = None
    watch: Watch[Any] | None = None
    search: Search[Any] | None = None


def filled(kind: type[T], source: object, **others: Any) -> T:
    """A dataclass whose fields are those of the same names in `source`, and `others`, which go first.

    Raises TypeError if a field without a default is in neither.
    """
    names = [field.name for field in fields(kind) if field.name not in others]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names if hasattr(source, name)}, **others)
