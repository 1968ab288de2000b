"""What a signal that ends the process leaves to do and to say; nothing here handles signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Act = Callable[[], str | None]

_acts: list[Act] = []


@contextmanager
def on_interruption(act: Act) -> Iterator[None]:
    """While the context lasts, an interruption calls `act`: it tidies up, and may return a sentence for the user.

    It is called between any two instructions of the main thread, in imports and in the midst of a statement too:
    whatever it relies on has to be whole at every moment.
    """
    _acts.append(act)
    try:
        yield
    finally:
        _acts.remove(act)


def interrupted() -> list[str]:
    """Do what is left to do, newest first, and return what there is to say.

    An act that fails says nothing and keeps no other from its turn: the process is about to end.
    """
    said = []
    for act in reversed(_acts):
        with suppress(Exception):
            said.append(act())
    return [sentence for sentence in said if sentence]
