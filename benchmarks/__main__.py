"""``python -m benchmarks [name ...]``: run the named benchmarks, or all; ends with 1 if one misses its bounds."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path


def main(names: list[str]) -> int:
    everything = sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))
    failed = []
    for name in names or everything:
        if name not in everything:
            print(f"no benchmark is called {name!r}; there are {', '.join(everything)}", file=sys.stderr)
            return 2
        module = import_module(f"benchmarks.{name}")
        if not hasattr(module, "main"):
            continue
        print(f"== {name}", flush=True)
        if asyncio.run(module.main()):
            failed.append(name)
    if failed:
        print(f"out of bounds: {', '.join(failed)}")
    return 1 if failed else 0


sys.exit(main(sys.argv[1:]))
