"""The servers' own argument parsers in a process of their own: a line of JSON asks, a line of JSON answers.

`python -m tests.engines.live_arguments vllm|sglang`. Parsers, actions and configurations are the engines' own. vLLM
has no build here, so its compiled modules are empty ones and the platform is set to CUDA, whose defaults are asked for;
nothing of them decides how a word is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COMPILED = ("vllm._C_stable_libtorch", "vllm._C", "vllm._moe_C_stable_libtorch")
Parse = Callable[[Sequence[str]], Mapping[str, Any]]


def _vllm() -> tuple[argparse.ArgumentParser, Parse]:
    """`vllm serve`, as vllm/entrypoints/cli puts it together: the words begin with `serve`, or it is the module."""
    sys.modules.update({name: types.ModuleType(name) for name in _COMPILED})
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    vllm.platforms._current_platform = NonNvmlCudaPlatform()
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    program = FlexibleArgumentParser(prog="vllm")
    serve = make_arg_parser(program.add_subparsers(dest="subparser").add_parser("serve"))
    module = make_arg_parser(FlexibleArgumentParser(prog="vllm.entrypoints.openai.api_server"))

    def parse(words: Sequence[str]) -> Mapping[str, Any]:
        return vars((program if words[:1] == ["serve"] else module).parse_args(list(words)))

    return serve, parse


def _sglang() -> tuple[argparse.ArgumentParser, Parse]:
    """`sglang serve`, or `sglang.launch_server` without that word."""
    from sglang.cli.serve import _normalize_positional_model_path
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

    def parse(words: Sequence[str]) -> Mapping[str, Any]:
        rest = list(words)
        if rest[:1] == ["serve"]:
            rest, _ = _normalize_positional_model_path(rest[1:])
        # Without a file, preparing is these two steps and a logger; it builds the parser anew each time.
        from_file = "--config" in rest
        record = prepare_server_args(rest) if from_file else ServerArgs.from_cli_args(parser.parse_args(rest))
        return {name: getattr(record, name) for name in record.__struct_fields__}

    return parser, parse


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _action(action: argparse.Action) -> dict[str, Any]:
    choices = None if action.choices is None else [str(choice) for choice in action.choices]
    made_by = getattr(action.type, "__name__", str(action.type))
    return {"names": action.option_strings, "dest": action.dest, "words": action.nargs, "choices": choices,
            "type": made_by, "class": type(action).__name__, "default": _plain(action.default)}  # fmt: skip


def main() -> None:
    # Who refuses a line prints how all options are used first, which takes longer than reading it, and nobody reads it.
    argparse.ArgumentParser.format_usage = lambda _: ""  # type: ignore[assignment, method-assign]
    parser, parse = {"vllm": _vllm, "sglang": _sglang}[sys.argv[1]]()
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps([_action(action) for action in parser._actions]), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"values": _plain(parse(json.loads(line)))}
        except (SystemExit, Exception) as error:  # noqa: BLE001  (whatever it refuses a line with)
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
