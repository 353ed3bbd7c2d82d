"""``python -m benchmarks``: run all benchmarks but those that take long, or the named ones."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import subprocess
import sys

import benchmarks

#: Run only if named: filling a server with millions of conversations takes 20 minutes.
LONG = {"size"}


def main(names: list[str]) -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if "_" not in module.name)
    unknown = set(names) - set(known)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    names = names or [name for name in known if name not in LONG]
    if len(names) > 1:
        # Each in its own process: the state of the allocator after one benchmark would affect the next.
        ended = [subprocess.run([sys.executable, "-m", "benchmarks", name], check=False) for name in names]
        return max(process.returncode for process in ended)
    print(f"== {names[0]}", flush=True)
    result = importlib.import_module(f"benchmarks.{names[0]}").main()
    missed = asyncio.run(result) if inspect.isawaitable(result) else result
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
