"""Write pages anew, or hold them to what would be written."""

from __future__ import annotations

import argparse
import difflib
import sys

from scripts.pages.page import Page
from scripts.pages.registry import FROM_CODE, PAGES


def main() -> int:
    """Write the pages named; with `--check` only say which are out of step."""
    options = _options()
    pages = {name: PAGES[name] for name in options.names or FROM_CODE}
    behind = [name for name, page in pages.items() if not (hold(page) if options.check else write(page))]
    if options.check and behind:
        print(f"write anew: python -m scripts.pages {' '.join(behind)}")
    return int(options.check and bool(behind))


def write(page: Page) -> bool:
    """Write a page; whether it was so before."""
    text = page.file.read_text("utf-8")
    anew = page.write(text)
    page.file.write_text(anew, "utf-8")
    print(f"{page.path}: {'as it was' if anew == text else 'written'}")
    return anew == text


def hold(page: Page) -> bool:
    """Whether a page is what would be written, of measured figures aside; a difference is printed."""
    text = page.file.read_text("utf-8")
    there, anew = (page.comparable(each).splitlines(keepends=True) for each in (text, page.write(text)))
    print(f"{page.path}: {'in step' if there == anew else 'out of step'}")
    sys.stdout.writelines(difflib.unified_diff(there, anew, "as it is", "as it would be written", n=0))
    return there == anew


def _options() -> argparse.Namespace:
    table = "\n".join(f"  {name:17} {page.path:38} {page.takes}" for name, page in PAGES.items())
    parser = argparse.ArgumentParser(
        prog="python -m scripts.pages",
        description=__doc__,
        epilog=f"pages:\n{table}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", choices=[[], *PAGES], metavar="NAME", help=f"default: {', '.join(FROM_CODE)}"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page is out of step")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
