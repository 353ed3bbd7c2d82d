"""The projects that ``stepwell new`` writes, as processes."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stepwell.botfile import load_module
from stepwell.cli import main

#: Replaces the second node of the project: it prints a line and ends when there is a file beside it.
SLOW = """
    async def exec(self, found: list[str]) -> str:
        print("summarising", flush=True)
        while not os.path.exists("go"):
            await asyncio.sleep(0.01)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "flow", "wells"]) == 0
    return tmp_path / "wells"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    command = [sys.executable, "flow.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=clean, stdout=pipe, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_ends_with_0_and_the_next_start_goes_on(project: Path, number: signal.Signals) -> None:
    code = (project / "flow.py").read_text()
    head, second, rest = code.partition("    def exec(self, found: list[str]) -> str:\n")
    assert second
    code = f"{head}{SLOW}{rest}".replace("return [f", 'print("fetching", flush=True)\n        return [f')
    (project / "flow.py").write_text(code)
    with start(project, "deep") as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["fetching\n", "summarising\n"]
        first.send_signal(number)
        output = first.communicate(timeout=60)[0]
    assert (first.returncode, output) == (0, "Interrupted; the same command goes on.\n")
    (project / "go").touch()
    with start(project, "deep") as second_start:
        output = second_start.communicate(timeout=60)[0]
    assert second_start.returncode == 0, output
    assert output.startswith("summarising\n"), output
    assert "deep 1, deep 2, deep 3" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_its_worker_ends_with_0_at_a_signal(project: Path, number: signal.Signals) -> None:
    process = start(project)
    try:
        url = f"sqlite:///{project}/wells.db"
        handle = await load_module(project / "flow.py").flow.submit({"topic": "deep"}, storage=url)
        assert (await handle.result(timeout=60))["summary"] == "deep 1, deep 2, deep 3"
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 0, output


# Agents

FRAMEWORKS = {
    "none": "openai",
    "pydantic-ai": "pydantic_ai",
    "langgraph": "langchain_openai",
    "openai-agents": "agents",
}
PROVIDERS = {
    "openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY", "ollama": "OLLAMA_API_KEY",
}  # fmt: skip
#: Runs the tests of several projects in one process, which imports the framework once.
RUN = """
import os, sys
import pytest
start = os.getcwd()
# Two plugins that collect garbage in a large process again and again.
plugins = ("pytest_asyncio.plugin", "no:cacheprovider", "no:unraisableexception", "no:threadexception")
options = [option for plugin in plugins for option in ("-p", plugin)]
for folder in sys.argv[1:]:
    path = sys.path.copy()
    os.chdir(os.path.join(start, folder))
    if pytest.main(options):
        sys.exit(f"the tests of {folder} have failed")
    for name in ("bot", "conftest", "model", "scripted", "test_bot", "tools"):
        del sys.modules[name]
    sys.path[:] = path
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_tests_of_a_new_agent_pass_whatever_its_framework_and_provider_are(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for provider, key in PROVIDERS.items():
        monkeypatch.delenv(key, raising=False)
        assert main(["new", "agent", f"at-{provider}", "--framework", framework, "--provider", provider]) == 0
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", RUN, *(f"at-{each}" for each in PROVIDERS)]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.returncode, done.stdout.count("4 passed")) == (0, len(PROVIDERS)), done.stdout


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_new_agent_asks_the_model_of_its_provider_if_there_is_a_key(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "agent", "shop", "--provider", provider]) == 0
    monkeypatch.syspath_prepend(tmp_path / "shop")
    find_model = runpy.run_path("shop/model.py")["find_model"]
    monkeypatch.delitem(sys.modules, "scripted")
    monkeypatch.setenv(PROVIDERS[provider], "")
    Path("shop/.env").write_text(f'# A note\n{PROVIDERS[provider]}="other"\nMODEL=\n')
    assert find_model().name == "scripted", "the environment takes precedence"
    monkeypatch.delenv(PROVIDERS[provider])
    assert find_model().key == "other"
    monkeypatch.setenv(PROVIDERS[provider], "secret")
    name, url, key = find_model()
    assert (key, "scripted" in name, re.match("https://|http://localhost", url) is not None) == ("secret", False, True)
    monkeypatch.setenv("MODEL", "other")
    monkeypatch.setenv("MODEL_URL", "http://here/v1")
    assert find_model() == ("other", "http://here/v1", "secret")
    assert f"\n{PROVIDERS[provider]}=\n" in Path("shop/.env.example").read_text()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_image_of_a_new_agent_has_its_modules_and_is_not_run_by_root(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "agent", "shop", "--framework", framework]) == 0
    project = tomllib.loads(Path("shop/pyproject.toml").read_text())
    modules = {f"{module}.py" for module in project["tool"]["setuptools"]["py-modules"]}
    assert modules == {path.name for path in Path("shop").glob("*.py")} - {"conftest.py", "test_bot.py"}
    steps = Path("shop/Dockerfile").read_text().splitlines()
    assert f"COPY pyproject.toml {' '.join(sorted(modules))} ./" in steps
    assert steps.index("USER bot") < steps.index('CMD ["stepwell", "run", "bot.py"]')
    assert steps[0].endswith("-slim")
    assert not [path for path in Path("shop").iterdir() if re.search("@[a-z]+@", path.read_text())]


def test_the_next_command_installs_the_project_only_if_a_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "agent", "shop"]) == 0
    assert capsys.readouterr().out.endswith("next: stepwell play shop/bot.py\n")
    monkeypatch.setattr("stepwell.cli.new.find_spec", lambda name: None if name == "openai" else name)
    assert main(["new", "agent", "other"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("next: cd other, pip install -e '.[test]', pytest, stepwell play bot.py\n")


@pytest.mark.parametrize("kind", ["agent", "bot", "flow"])
def test_a_folder_that_exists_is_left_as_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    assert main(["new", kind, "shop"]) == 1
    assert "shop exists already; choose another name" in capsys.readouterr().err
    assert list((tmp_path / "shop").iterdir()) == []
