"""One torch thread, and the checkpoints several tests share.

With workers this file is read by the process that only hands out the tests, too: whatever takes long to import is
imported where tests are run.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.testing
import xdist
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

# So that tests can share helper modules, whichever way pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.command import own_signals
from tests.log_records import Records
from tests.planted.values import groups
from tests.small_models import SMALL, Shallow, fields_of
from tests.tiers.holding import add_options, hold_back, refuse_late

# What is made while tests are collected stays to the end: the collector of garbage need not look through it each time.
gc.disable()
# Hundreds of modules are compiled once, not in each of the many processes that tests start, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# The same examples in every run, however long each takes; `pytest --hypothesis-profile explore` looks for others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("same")
# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests of a file run on one worker, which makes its fixtures once; those of these files, many or long, one by one.
TAKEN_APART = {
    "test_bit_equality.py",
    "test_init.py",
    "test_recipes.py",
}


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        _, _, parameters = test.removesuffix("]").partition("[")
        if parameters in groups():
            # Values that are planted together, which is done once.
            return f"{file}::{groups()[parameters]}"
        return nodeid if Path(file).name in TAKEN_APART else file


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    hold_back(config, items)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Reports are as wide as this says; pytest's workers set it.
    os.environ.pop("COLUMNS", None)
    if not xdist.is_xdist_controller(session):
        import torch

        torch.set_num_threads(1)
        _patch_process(session.config)


def _patch_process(config: pytest.Config) -> None:
    """For all tests at once: fixtures that every test uses are looked up for every test."""
    patched = pytest.MonkeyPatch()
    config.add_cleanup(patched.undo)
    # Kept passes go to a folder of this session, never to the user's.
    cache_folder = tempfile.TemporaryDirectory(prefix="moeparity-tests-")
    config.add_cleanup(cache_folder.cleanup)
    patched.setenv("MOEPARITY_CACHE", cache_folder.name)
    # Typer makes all commands out of their signatures whenever one is called, which takes longer than most of them.
    built = cache(typer.main.get_command)
    patched.setattr(typer.main, "get_command", built)
    patched.setattr(typer.testing, "_get_command", built)


def pytest_collection_finish() -> None:
    gc.freeze()
    # Plans and reports are many objects and few circles: with Python's own threshold a twentieth of all time goes here.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


def _small(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
        from tests.checkpoint_factory import make_small

        return make_small(name, tmp_path_factory.mktemp(name))

    return checkpoint


# One fixture for each small checkpoint, under its own name.
globals().update({name: _small(name) for name in SMALL})


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of gated delta nets alone, whose steps hand states on; it has a graph of its own."""
    from tests.gated.model import written

    return written(tmp_path_factory.mktemp("gated"))


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Shallow:
    """Small checkpoints with one layer of each kind, or more, where tokens and steps matter; each is made once."""
    from tests.checkpoint_factory import make_random

    @cache
    def make(name: str, layers: int = 1) -> Path:
        return make_random(fields_of(name, layers), tmp_path_factory.mktemp(name))

    return make


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    refuse_late(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    with own_signals():
        return (yield)


@pytest.fixture
def log_records() -> Iterator[Records]:
    records = Records()
    logging.getLogger("moeparity").addHandler(records)
    yield records
    logging.getLogger("moeparity").removeHandler(records)


@pytest.fixture
def brief_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which known choices a user's function made is looked for, but not for long: for tests of something else."""
    from moeparity.evidence.explain import inquiry

    monkeypatch.setattr(inquiry, "WORK", inquiry.LEAST)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """0.12 GB on disk, removed when the session ends."""
    from tests.checkpoint_factory import make_wide

    folder = tmp_path_factory.mktemp("wide")
    # One layer: it is the widths that matter, and small checkpoints have several.
    yield make_wide(folder, layers=1, experts=8)
    shutil.rmtree(folder)
