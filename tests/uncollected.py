"""Runs a module or a file as Python does, with nothing collected as garbage: `python -m tests.uncollected NAME ...`.

For programs that soon end: what they import is otherwise looked through while they import it, in every process that
they fork, and once more at their end, which is a quarter of what many of them take.
"""

import atexit
import gc
import runpy
import sys

if __name__ == "__main__":
    gc.disable()
    atexit.register(gc.freeze)
    del sys.argv[0]
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
