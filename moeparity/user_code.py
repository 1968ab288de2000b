"""Functions that a user names as `module:function`: finding them, and telling what they raised."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from moeparity import paths
from moeparity.errors import SpecError, Where

CAUGHT: Final = (Exception, SystemExit)
"""Whatever a user's code raises is told; one that exits would end the command with an exit code of its own."""


def load(call: str, folder: Path, where: str) -> Callable[..., Any]:
    """The function `call`, `module:function`, names; modules in `folder` are found as well.

    Raises SpecError, which begins with `where`, where there is no such module or function, or where importing it fails;
    MoeparityError for a module whose file the run is to write.
    """
    module, _, name = call.partition(":")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        source = importlib.import_module(module)
    except CAUGHT as error:
        raise SpecError(f"{where}: importing {module} failed: {error_line(error, __file__)}.") from None
    with suppress(OSError):  # in an archive, say
        paths.checked(Path(getattr(source, "__file__", None) or ""))
    value = getattr(source, name, None)
    if not callable(value):
        has = "is not callable" if value is not None else "does not exist"
        raise SpecError(f"{where}: {name!r} {has} in module {module}. Check the name.")
    function: Callable[..., Any] = value
    return function


def error_line(error: BaseException, caller: str) -> str:
    """An error in one line, with the place in the user's own code it comes from; `caller`: the file that called."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != caller]
    user_frames = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<frozen")]
    place = f" ({Where(Path(user_frames[-1].filename), user_frames[-1].lineno)})" if user_frames else ""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{place}"
