"""What torch.compile has compiled in this process: what such a region computes is seen in part only, or not at all."""

from __future__ import annotations

import sys


def compiled_functions() -> list[str]:
    """The functions of which torch holds compiled code, each as `name (file:line)`; none where nothing was compiled.

    Whether that code ran while a capture went on, torch does not tell.
    """
    if "torch._dynamo.convert_frame" not in sys.modules:
        return []
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = [code for reference in input_codes.seen if (code := reference()) is not None]
    return [
        f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        for code in codes
        if _debug_get_cache_entry_list(code)
    ]
