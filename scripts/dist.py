"""Build the sdist and the wheel, and check them in empty environments. ``make dist`` runs it.

Each extra is installed alone, in an environment of its own, and its modules are imported. ``--python`` adds further
interpreters; on them the wheel is tried without extras, with ``playground``, with ``testing`` and with all extras.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"

#: What each extra makes importable.
MODULES: dict[str, list[str]] = {
    "": ["stepwell", "stepwell.fsm", "stepwell.nodes", "stepwell.storage.sqlite", "stepwell.testing", "stepwell.cli"],
    "redis": ["stepwell.storage.redis"],
    "postgres": ["stepwell.storage.postgres"],
    "aiogram": ["stepwell.adapters.aiogram"],
    "ptb": ["stepwell.adapters.ptb"],
    "telebot": ["stepwell.adapters.telebot"],
    "celery": ["stepwell.adapters.celery"],
    "langgraph": ["stepwell.adapters.langgraph"],
    "openai-agents": ["stepwell.adapters.openai_agents"],
    "pydantic-ai": ["stepwell.adapters.pydantic_ai"],
    "google-adk": ["stepwell.adapters.google_adk"],
    "otel": ["stepwell.adapters.otel"],
    "sealed": ["stepwell.storage.sealed"],
    "cron": ["stepwell.nodes"],
    "bot": ["stepwell.telegram"],
    "inspector": ["stepwell.inspector"],
    "web": ["stepwell.web.chat_app"],
    "botapi": ["stepwell.botapi", "stepwell.botapi.server"],
    "markdown": ["stepwell.texts.markdown"],
    "fluent": ["stepwell.fsm"],
    "playground": ["stepwell.playground"],
    "testing": ["stepwell.testing.contract", "pytest_stepwell"],
}
MODULES["all"] = sorted({module for extra, modules in MODULES.items() for module in modules if extra != "testing"})
#: The extras that are tried on further interpreters.
ELSEWHERE = ("", "playground", "testing", "all")
#: Uses an extra whose package is imported on use only.
USES = {
    "cron": "from stepwell.nodes import Node, cron, linear; cron('* * * * *', linear(Node, name='flow'))",
    "fluent": "open('de.ftl', 'w').write('a = b'); from stepwell.fsm import Translations; Translations('.')",
}
#: A test file that is run with the extra ``testing``: the contract, and a fixture of the plugin.
TESTS = """
import pytest
from stepwell import open_storage
from stepwell.testing import StorageContract

class TestSQLite(StorageContract):
    notices = False

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.url = f"sqlite:///{tmp_path}/bot.db"

    def open_storage(self, clock):
        return open_storage(self.url, clock=clock)

async def test_a_fixture(stepwell_storage):
    assert await stepwell_storage.get_data("bot", (1,)) is None
"""
#: Files that are not Python, and must be in the wheel.
DATA = re.compile(r".*\.(sql|lua|js|css|html|svg|typed)$")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[], metavar="COMMAND", help="a further interpreter")
    parser.add_argument("--extra", action="append", choices=sorted(MODULES), help="try these extras only")
    options = parser.parse_args()
    wheel = build()
    check_contents(wheel)
    check_names()
    for extra in options.extra or sorted(MODULES):
        check_install(wheel, extra, sys.executable)
    for python in options.python:
        for extra in options.extra or ELSEWHERE:
            check_install(wheel, extra, python)
    print(f"{wheel.name} and its sdist are complete")
    return 0


def build() -> Path:
    """Build both into an empty ``dist``, and check their metadata."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, DIST.iterdir()))
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Compare the files in the wheel with those of the sources."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    expected = {name for name in sources if "__pycache__" not in name and (name.endswith(".py") or DATA.match(name))}
    missing = sorted(expected - inside)
    if missing:
        sys.exit(f"the wheel has no {', '.join(missing)}")
    print(f"the wheel has all {len(expected)} files of src")


def check_names() -> None:
    """Compare the extras here with those of ``pyproject.toml``."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    unknown = extras ^ (set(MODULES) - {""})
    if unknown:
        sys.exit(f"scripts/dist.py and pyproject.toml have different extras: {', '.join(sorted(unknown))}")


def check_install(wheel: Path, extra: str, python: str) -> None:
    """Install the wheel with one extra into an empty environment, and use it there."""
    with tempfile.TemporaryDirectory(prefix="stepwell-dist-") as folder:
        run(python, "-m", "venv", folder)
        ours = str(Path(folder, "bin", "python"))
        target = f"stepwell[{extra}] @ {wheel.as_uri()}" if extra else f"stepwell @ {wheel.as_uri()}"
        pinned = ["--constraint", str(ROOT / "constraints.txt")] if python == sys.executable else []
        run(ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pinned, target)
        code = "; ".join(f"import {module}" for module in MODULES[extra])
        run(ours, "-c", code, inside=folder)
        if extra in USES:
            run(ours, "-c", USES[extra], inside=folder)
        if extra == "testing":
            Path(folder, "test_wheel.py").write_text(TESTS)
            run(ours, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_wheel.py", inside=folder)
        if extra in ("", "playground", "all"):
            run(str(Path(folder, "bin", "stepwell")), "demo", "--script", inside=folder)
        if extra == "all" and python == sys.executable:
            write_bom(wheel, ours)
    print(f"{version(python)}: stepwell{f'[{extra}]' if extra else ''} installs and works", flush=True)


def write_bom(wheel: Path, python: str) -> None:
    """Write the packages of an environment with all extras, their versions and licences: a CycloneDX document."""
    target = DIST / f"{wheel.name.partition('-py3')[0]}.cdx.json"
    tool = str(Path(sys.executable).with_name("cyclonedx-py"))
    project = str(ROOT / "pyproject.toml")
    run(
        tool,
        "environment",
        "--output-reproducible",
        "--mc-type",
        "library",
        "--pyproject",
        project,
        "-o",
        str(target),
        python,
    )
    print(f"{target.name} lists the packages of all extras")


def version(python: str) -> str:
    """Return the name and version of an interpreter."""
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def run(*command: str, inside: str | None = None) -> None:
    """Run a command, without the sources of this repository in its path; show its output only if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=inside, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
