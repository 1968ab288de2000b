"""What stands in the place of packages that were left out: names while importing, an error when called."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.engines.absent import left_out

NAME = "a_package_that_nobody_has"


def test_names_can_be_imported_derived_from_and_decorate() -> None:
    with left_out(NAME):
        package: Any = __import__(f"{NAME}.part", fromlist=["Base"])

        derived = type("Derived", (package.Base[int],), {}, option=True)

        def function() -> int:
            return 3

        assert package.decorator(function) is function
        assert package.decorator(option=1)(function) is function
        assert issubclass(derived, package.Base)


def test_what_was_left_out_raises_when_it_is_called_afterwards() -> None:
    with left_out(NAME):
        package: Any = __import__(NAME)
    with pytest.raises(RuntimeError, match="left out"):
        package.anything(1)
    with pytest.raises(AttributeError):
        _ = package.__version__


def test_it_is_gone_afterwards() -> None:
    with left_out(NAME):
        __import__(f"{NAME}.part")
    assert not [name for name in sys.modules if name.startswith(NAME)]
    with pytest.raises(ModuleNotFoundError):
        __import__(NAME)


def test_a_package_that_is_there_is_itself() -> None:
    with left_out("json"):
        import json
    assert json.loads("[1]") == [1]


def test_a_module_of_a_package_that_is_there() -> None:
    with left_out("json.kernels"):
        from json import kernels  # type: ignore[attr-defined]

        assert kernels.anything is kernels.other
    with pytest.raises(ModuleNotFoundError):
        __import__("json.kernels")


def test_others_are_still_missing() -> None:
    with left_out("something_else"), pytest.raises(ModuleNotFoundError):
        __import__(NAME)
