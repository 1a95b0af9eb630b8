"""Runs one program inside the sandbox: this file is all of ours that the program shares a process with.

Started as `python -I program.py stdin PROGRAM` or `… functional PROGRAM NAME`. Descriptor 3 takes the line "ready"
when our own start is over, then what a function returns, as JSON; descriptor 4 holds the arguments of that function.
Nothing here knows what is expected. Imports nothing of growpage.
"""

import builtins
import json
import os
import sys
import types

CHANNEL, ARGUMENTS = 3, 4
RECURSION_LIMIT = 50_000

# What the programs of LiveCodeBench find imported: problems of LeetCode are written against it.
_STARS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_NAMES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json",
)  # fmt: skip


def main() -> None:
    kind, path, *rest = sys.argv[1:]
    with open(path, encoding="utf-8", errors="replace") as file:
        source = file.read()
    arguments = None
    if kind == "functional":
        with open(ARGUMENTS, encoding="utf-8") as file:
            arguments = json.load(file)
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=path)
    exec("\n".join(f"from {name} import *" for name in _STARS), module.__dict__)
    exec("\n".join(f"import {name}" for name in _NAMES), module.__dict__)
    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.argv = [path]
    sys.modules["__main__"] = module
    os.write(CHANNEL, b"ready\n")
    if arguments is None:
        os.close(CHANNEL)
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        return
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    _answer(_function(module, rest[0])(*arguments))


def _function(module: types.ModuleType, name: str) -> types.FunctionType:
    """A method of class Solution, or a function of that name."""
    solution = getattr(module, "Solution", None)
    found: types.FunctionType = getattr(module if solution is None else solution(), name)
    return found


def _answer(result: object) -> None:
    """Send it and end at once: what still runs has no say."""
    data = memoryview(json.dumps(result, default=_plain).encode())
    while data:
        data = data[os.write(CHANNEL, data) :]
    os._exit(0)


def _plain(value: object) -> object:
    """Numbers and arrays of numpy as Python's; nothing else is JSON."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"the function returned {type(value).__name__}, which is no JSON")


if __name__ == "__main__":
    main()
