"""pytest-moeparity: makes `*.parity.yaml` tests, an item for each thing that a recipe expects and two for its lock.

This is the plugin of the entry point `pytest-moeparity`. It imports nothing that computes before an item runs, and
nothing else of moeparity in a project without `*.parity.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moeparity.check.baseline.baseline import Baseline
    from moeparity.check.recipes import Checked
    from moeparity.output.findings import Finding

SUFFIX = ".parity.yaml"
LOCK = "parity.lock.json"
"""The name of the lock. The nearest one counts, in the recipe's folder or above it, up to pytest's root."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """pytest's hook: the options."""
    group = parser.getgroup("moeparity")
    group.addoption("--parity-device", default="auto", metavar="DEVICE", help="auto, cpu or cuda.")
    group.addoption("--parity-allow-code", action="store_true", help="Let `impl:` of recipes run Python code.")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """pytest's hook: the files that are tests."""
    return ParityFile.from_parent(parent, path=file_path) if file_path.name.endswith(SUFFIX) else None


class ParityError(Exception):
    """A failed item; pytest shows its message without a trace."""


class ParityFile(pytest.File):
    """A recipe or a check of logs; it is run once, when its first item runs."""

    def collect(self) -> Iterator[pytest.Item]:
        """An item for each expectation, or one for all if they are not known before the run; two for a lock."""
        for number, says in enumerate(_expectations(self.path)):
            yield ExpectationItem.from_parent(self, name=says, number=number)
        if self._lock_path is not None:
            yield BaselineItem.from_parent(self, name="baseline")
            yield BaselineItem.from_parent(self, name="baseline bits", bits=True)

    @cached_property
    def _lock_path(self) -> Path | None:
        root = self.config.rootpath
        folders = [folder for folder in self.path.parents if folder.is_relative_to(root)] or [self.path.parent]
        return next((folder / LOCK for folder in folders if (folder / LOCK).exists()), None)

    @cached_property
    def lock(self) -> Baseline | str | None:
        """The lock of the recipe, or a str that says why it can't be used; None without one."""
        from moeparity.check.baseline.baseline import Baseline
        from moeparity.errors import MoeparityError

        if self._lock_path is None:
            return None
        try:
            lock = Baseline.opened(self._lock_path)
            lock.refuse_gone()
            lock.refuse_unkept(self.path)
        except MoeparityError as error:
            return str(error)
        return lock

    @cached_property
    def checked(self) -> Checked:
        """What the run found."""
        from moeparity.check.recipes import check

        options = self.config.option
        return check(
            self.path,
            device=options.parity_device,
            allow_code=options.parity_allow_code,
            baseline=None if isinstance(self.lock, str) else self.lock,
        )


class _Item(pytest.Item):
    @property
    def file(self) -> ParityFile:
        """The file that it is of."""
        assert isinstance(self.parent, ParityFile)
        return self.parent

    def findings(self) -> list[Finding]:
        """The findings about this item. Raises ParityError if the run failed."""
        if self.file.checked.error is not None:
            raise ParityError(self.file.checked.error)
        return list(self.file.checked.findings)

    def judge(self, findings: list[Finding]) -> None:
        """Raise ParityError for expectations that are not met or open."""
        words = {"fail": "is not met", "inconclusive": "is open"}
        lines = [f"{f.expectation} {words[f.status]}: {f.found}" for f in findings if f.status in words]
        if lines:
            raise ParityError("\n".join(lines))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **options: Any) -> Any:
        """Only the message, for what a run found; anything else is a mistake of moeparity's and keeps its trace."""
        if isinstance(excinfo.value, ParityError):
            from moeparity.output.words import printable, shortened

            return shortened(printable(str(excinfo.value)))
        return super().repr_failure(excinfo, *args, **options)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file and the name of the item."""
        return self.path, None, f"{self.path.name}: {self.name}"


class ExpectationItem(_Item):
    """One expectation of a recipe; for a check of logs, all of them."""

    def __init__(self, *, number: int, **node_fields: Any) -> None:
        """The expectation of this number."""
        super().__init__(**node_fields)
        self.number = number

    def runtest(self) -> None:
        """Run the recipe, unless another item has, and judge what was found."""
        from moeparity.check.baseline.compare import KEPT

        expectations = [finding for finding in self.findings() if not finding.expectation.startswith(KEPT)]
        self.judge(expectations if self.name == "log" else expectations[self.number : self.number + 1])


class BaselineItem(_Item):
    """The comparison with a lock: of bits, or of everything else."""

    def __init__(self, *, bits: bool = False, **node_fields: Any) -> None:
        """The item of the bits, or that of the rest."""
        super().__init__(**node_fields)
        self.bits = bits

    def runtest(self) -> None:
        """Judge the run. Bits are skipped if the lock has none of this machine."""
        if isinstance(self.file.lock, str):
            raise ParityError(self.file.lock)
        from moeparity.check.baseline.compare import BITS, KEPT

        kept_findings = [finding for finding in self.findings() if finding.expectation.startswith(KEPT)]
        item_findings = [finding for finding in kept_findings if finding.expectation.startswith(BITS) == self.bits]
        self.judge(item_findings)
        for finding in item_findings:
            if finding.status == "not judged":
                pytest.skip(finding.found)


def _expectations(path: Path) -> list[str]:
    """What a recipe expects, in words; [`recipe`] or [`log`] if that is not known before it runs."""
    from moeparity.bisection.outline import outline_recipe
    from moeparity.errors import MoeparityError
    from moeparity.output.words import printable
    from moeparity.plan.spec import reader

    try:
        if reader.is_log_check(path):
            return ["log"]
        return [printable(expectation.says) for expectation in outline_recipe(path).expectations]
    except MoeparityError:
        # The single item says what is wrong, and other tests can run.
        return ["recipe"]
