"""`moeparity check`: compares recipes with what they expect, a line per expectation, for CI and `git bisect run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeparity.cli.failures import CRASH, SKIP, crashed, in_words, report_error
from moeparity.cli.markdown import Markdown, files_of, write
from moeparity.cli.options import Device, Html, MemoryLimit, WorkersOption
from moeparity.cli.outputs import Outputs, outputs
from moeparity.errors import MoeparityError, display_path

if TYPE_CHECKING:
    from moeparity.check.baseline.baseline import Baseline
    from moeparity.check.recipes import Checked
    from moeparity.output.blocks import Block, Document


def check(
    recipes: Annotated[
        list[Path],
        typer.Argument(help="Recipes, or checks of logs (`kind: log`); what they expect stands under `expect:`."),
    ],
    junit: Annotated[Path | None, typer.Option(help="Write the results to this file as JUnit XML.")] = None,
    html: Html = None,
    markdown: Markdown = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Compare the recipes with this lock too: bits, budgets, choices, evidence.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write the lock of --baseline anew.")] = False,
    git_bisect: Annotated[
        bool, typer.Option("--git-bisect", help="Exit with 125 where a commit is to be skipped: instead of 2 and 3.")
    ] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let `impl:` of the recipes run Python code.")
    ] = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
    workers: WorkersOption = None,
) -> None:
    """Compare recipes with what they expect. A recipe without `expect:` must pass its gate.

    With --baseline they are also compared with a lock, a file in git such as parity.lock.json.

    Exit code 0 all expectations met, 1 one is not, 2 a recipe could not be checked, 3 one cannot be decided, 70
    moeparity itself failed; of several the first present of 70, 2, 1, 3, 0.
    """
    try:
        # A lock that will be written anew is read before its file is reserved; one that is only read must not be an
        # output.
        lock = _baseline(baseline, update=update) if update else None
        written = {"--junit": junit, "--html": html, **files_of(markdown), "--baseline": baseline if update else None}
        with outputs(written, unprinted=("--baseline",)) as files:
            lock = lock or _baseline(baseline, update=False)
            limits = {"allow_code": allow_code, "memory_limit": memory_limit}
            code = _run(recipes, files, device=device, workers=workers, baseline=lock, **limits)
    except MoeparityError as error:
        report_error(str(error))
        code = 2
    except Exception as error:  # noqa: BLE001  a crash is for `git bisect` a commit that cannot be tested
        code = crashed(error)
    raise typer.Exit(SKIP if git_bisect and code in {2, 3, CRASH} else code)


def _baseline(path: Path | None, *, update: bool) -> Baseline | None:
    """The requested lock; None without one. Raises MoeparityError for a lock that can't be used."""
    from moeparity.check.baseline.baseline import Baseline

    if path is None:
        if update:
            raise MoeparityError("check: --update writes the lock that --baseline names. Give both.")
        return None
    lock = Baseline.opened(path, update=update)
    lock.refuse_gone()
    return lock


def _run(recipes: list[Path], files: Outputs, *, baseline: Baseline | None, **settings: Any) -> int:
    from moeparity.check.recipes import junit as as_junit
    from moeparity.check.step_summary import picture, step_summary
    from moeparity.output.findings import combined

    results = []
    for recipe in recipes:
        result = _check_recipe(recipe, baseline=baseline, **settings)
        if result.error is not None:
            about = "" if result.recipe in result.error else f" (recipe {result.recipe})"
            report_error(f"{result.error}{about}")
        results.append(result)
    files.text("--junit", lambda: as_junit(results))
    code = combined(result.exit_code for result in results)
    if baseline is not None and baseline.update:
        _update(baseline, dict(zip(recipes, results, strict=True)), files)
    status = _status(results, code)
    write(files, lambda drawn: step_summary(results, status, drawn), lambda: picture(results))
    files.document(_document(results, code))
    return code


def _document(results: Sequence[Checked], code: int) -> Document:
    """The report: how many expectations are met, and for each recipe a row for every finding."""
    from moeparity.check.recipes import beside
    from moeparity.output.blocks import Document, Status
    from moeparity.output.status import state_of

    status = Status(state_of(code), _status(results, code), beside(results, code))
    blocks = (part for result in results for part in _shown(result))
    return Document(command="check", subject=", ".join(result.recipe for result in results), blocks=(status, *blocks))


def _status(results: Sequence[Checked], code: int) -> str:
    """How many expectations are met, and of how many recipes."""
    from moeparity.output.status import status
    from moeparity.output.words import quantity

    findings = [finding.status for result in results for finding in result.findings]
    counts: dict[str, str] = {"met": "ok", "not met": "fail", "undecided": "inconclusive"}
    counts |= {"not judged": "not judged", "updated": "updated"}
    parts = [f"{findings.count(word)} {words}" for words, word in counts.items() if word in findings]
    errors = sum(result.error is not None for result in results)
    parts += [f"{quantity(errors, 'recipe')} could not be checked"] if errors else []
    expected = "what it expects" if len(results) == 1 else "what they expect"
    return status(f"{quantity(len(results), 'recipe')} held to {expected}", ", ".join(parts), code)


def _update(baseline: Baseline, results: Mapping[Path, Checked], files: Outputs) -> None:
    """Write the lock anew, unless a recipe could not be checked. Raises MoeparityError if it can't be written."""
    entries = {baseline.key(path): result.entry for path, result in results.items() if result.entry is not None}
    if len(entries) == len({baseline.key(path) for path in results}):
        files.text("--baseline", lambda: baseline.written(entries))
    else:
        report_error(f"--baseline {display_path(baseline.path)}: not written, since a recipe could not be checked.")


def _check_recipe(recipe: Path, *, baseline: Baseline | None, **settings: Any) -> Checked:
    from moeparity.check.recipes import Checked
    from moeparity.check.recipes import check as run
    from moeparity.cli.progress import progress_line

    try:
        with progress_line() as progress:
            return run(recipe, baseline=baseline, progress=progress, **settings)
    except Exception as error:  # noqa: BLE001  it stops no other recipe
        message, code = in_words(error)
        return Checked(
            recipe=display_path(recipe), findings=(), error=message, report=None, seconds=0.0, error_code=code
        )


def _shown(result: Checked) -> Iterator[Block]:
    """The recipe, and below it for each expectation whether it is met and what was found."""
    from moeparity.output.blocks import lines
    from moeparity.output.findings import in_rows

    if result.findings:
        yield lines(result.recipe)
        yield in_rows(result.findings)
