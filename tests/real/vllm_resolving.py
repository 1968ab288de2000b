"""Commands of `vllm serve` as a real vLLM on a CPU resolves them, as `python vllm_resolving.py CASES ANSWERS`.

CASES holds `path`, what is put in front of Python's path, and `commands`, lists of words behind `vllm serve`. ANSWERS
has of each the file that the plugin wrote, None where the engine refuses the command. No engine is started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch


def main(cases_file: str, answers_file: str) -> None:
    cases = torch.load(cases_file)
    sys.path[:0] = cases["path"]
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    folder = Path(os.environ["MOEPARITY_SERVED"])
    answers: list[str | None] = []
    for words in cases["commands"]:
        parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
        before = set(folder.glob("vllm-*.json")) if folder.exists() else set()
        try:
            AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", *words])).create_engine_config()
        except ValueError as error:
            sys.stderr.write(f"{words}: {error}\n")
        written = set(folder.glob("vllm-*.json")) - before
        answers.append(written.pop().name if written else None)
    torch.save(answers, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
