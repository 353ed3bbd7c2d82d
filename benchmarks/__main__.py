"""``python -m benchmarks``: all of them, or those named."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys

import benchmarks


def main(names: list[str]) -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if "_" not in module.name)
    unknown = set(names) - set(known)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or known:
        print(f"== {name}")
        result = importlib.import_module(f"benchmarks.{name}").main()
        missed += (asyncio.run(result) if inspect.isawaitable(result) else result) or 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
