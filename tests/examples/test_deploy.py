"""The files of ``examples/deploy``: parsed, checked, and the programs in them started with their arguments."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import yaml

import stepwell
from stepwell import State, open_storage
from stepwell.botapi import BotAPI
from stepwell.cli import _parser
from tests.backends.postgres import Postgres
from tests.servers.process import free_port
from tests.telegram.test_run_command import command
from tests.until import until

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
DOMAIN = "bot.example.com"


def compose() -> dict[str, Any]:
    text = (FOLDER / "compose.yaml").read_text().replace("${DOMAIN}", DOMAIN)
    services: dict[str, Any] = yaml.safe_load(text)
    return services


def command_of(service: str) -> list[str]:
    """Return what follows ``stepwell`` in the command of a service."""
    words = shlex.split(compose()["services"][service]["command"])
    return words[words.index("stepwell") + 1 :]


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for path in FOLDER.glob("kubernetes/*.yaml"):
        for each in yaml.safe_load_all(path.read_text()):
            found[path.stem, each["kind"]] = each
    return found


def section(unit: str, name: str) -> dict[str, list[str]]:
    """Return the settings in a section of a unit; a name may be there twice."""
    found: dict[str, list[str]] = {}
    inside = False
    for line in (FOLDER / "systemd" / unit).read_text().splitlines():
        if line.startswith("["):
            inside = line == f"[{name}]"
        elif inside and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def commands() -> dict[str, list[str]]:
    """Return the arguments of each ``stepwell`` in the files."""
    found = {f"compose {name}": command_of(name) for name in ("bot", "inspector")}
    for (name, kind), each in manifests().items():
        if kind == "Deployment":
            found[f"kubernetes {name}"] = each["spec"]["template"]["spec"]["containers"][0]["args"][1:]
    image = re.search(r"^CMD \[(.*)\]$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert image is not None
    found["image"] = image[1].replace('"', "").split(", ")[1:]
    found["systemd bot"] = shlex.split(section("stepwell-bot.service", "Service")["ExecStart"][0])[1:]
    shell = shlex.split(section("stepwell-backup.service", "Service")["ExecStart"][0])[2]
    found["systemd backup"] = shlex.split(shell)[2:]
    return found


def test_the_command_line_knows_each_command_and_option_in_the_files() -> None:
    found = commands()
    assert len(found) == 7
    for name, words in found.items():
        assert _parser().parse_args(words).command in ("run", "inspect", "copy"), name


def test_compose_mounts_files_that_exist_and_names_services_secrets_and_volumes_that_it_has() -> None:
    file = compose()
    services = file["services"]
    for name, service in services.items():
        assert set(service.get("secrets", [])) <= set(file["secrets"]), name
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (FOLDER / source).is_file() if source.startswith("./") else source in file["volumes"], volume
    targets = (FOLDER / "Caddyfile").read_text() + (FOLDER / "prometheus.yaml").read_text()
    named = re.findall(r"(\w+):(8080|8090|8889)", targets)
    assert {host for host, _ in named} == {"bot", "inspector", "collector"}
    assert {("bot", "8080"), ("inspector", "8090")} <= set(named)
    assert "8080" in command_of("bot") and "8090" in command_of("inspector")
    assert services["bot"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(":4318")
    assert collector["exporters"]["prometheus"]["endpoint"].endswith(":8889")
    settings = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text()))
    assert settings == set(re.findall(r"^(\w+)=", (FOLDER / ".env.example").read_text(), re.MULTILINE))


def test_everything_that_runs_a_bot_gives_it_more_than_the_30_seconds_that_it_takes_to_stop() -> None:
    seconds = [compose()["services"]["bot"]["stop_grace_period"].removesuffix("s")]
    seconds += section("stepwell-bot.service", "Service")["TimeoutStopSec"]
    pods = [each["spec"]["template"]["spec"] for (_, kind), each in manifests().items() if kind == "Deployment"]
    seconds += [each["terminationGracePeriodSeconds"] for each in pods]
    assert len(seconds) == 4
    assert all(int(each) >= 35 for each in seconds)


def test_the_probes_of_kubernetes_are_on_the_port_that_the_command_serves() -> None:
    for (name, kind), each in manifests().items():
        if kind != "Deployment":
            continue
        container = each["spec"]["template"]["spec"]["containers"][0]
        options = _parser().parse_args(container["args"][1:])
        (port,) = container["ports"]
        assert port["containerPort"] == (options.port if options.webhook else options.health), name
        for probe, path in {"livenessProbe": "/health/live", "readinessProbe": "/health/ready"}.items():
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}, name
        assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
    found = manifests()
    assert found["polling", "Deployment"]["spec"]["replicas"] == 1
    assert found["polling", "Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    (path,) = found["webhook", "Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/hook", "Exact")


def test_the_image_runs_as_the_user_that_kubernetes_demands() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    assert lines.index("USER 10001") > max(
        index for index, line in enumerate(lines) if line.startswith(("RUN", "COPY"))
    )
    pods = [each["spec"]["template"]["spec"] for (_, kind), each in manifests().items() if kind == "Deployment"]
    assert [each["securityContext"] for each in pods] == [{"runAsNonRoot": True, "runAsUser": 10001}] * 2


async def test_the_services_of_compose_work_together(tmp_path: Path) -> None:
    """The proxy, the collector and Prometheus are programs of others; the bot's telemetry is left out."""
    shutil.copy(FOLDER / "bot.py", tmp_path)
    files = {name: tmp_path / name for name in ("bot_token", "access")}
    text = (FOLDER / "access.example.toml").read_text()
    files["access"].write_text(text)
    token = tomllib.loads(text)["people"]["prometheus"]["token"]
    ports = {"8080": str(free_port()), "8090": str(free_port())}
    hook = f"http://127.0.0.1:{ports['8080']}/hook"
    given = {f"https://{DOMAIN}/hook": hook, "/run/secrets/access": str(files["access"]), **ports}
    store = Postgres(tmp_path)
    async with BotAPI(webhook_pause=0.1) as api, httpx.AsyncClient() as client:
        bot = api.bot("my_bot")
        files["bot_token"].write_text(f"{bot.token}\n")
        place = {"STEPWELL_STORAGE": store.place()}
        environment = {**place, "BOT_TOKEN_FILE": str(files["bot_token"]), "BOT_API": api.url}
        assert {"STEPWELL_STORAGE", "BOT_TOKEN_FILE"} < set(compose()["services"]["bot"]["environment"])
        run, inspect = ([given.get(word, word) for word in command_of(name)] for name in ("bot", "inspector"))
        async with (
            command(*run, folder=tmp_path, **environment) as running,
            command(*inspect, folder=tmp_path, **place) as inspecting,
        ):
            await running.until("Ctrl-C stops it.")
            alice = api.chat(bot)
            await alice.send("/register")
            assert await alice.answer(timeout=60) == "What's your name?"
            ready = f"http://127.0.0.1:{ports['8080']}/health/ready"
            assert (await client.get(ready)).status_code == 200
            await inspecting.until("Ctrl-C")
            page = f"http://127.0.0.1:{ports['8090']}"
            inside = f"inspector:{ports['8090']}"
            for host in (inside, f"admin.{DOMAIN}"):
                refused = await client.get(f"{page}/metrics", headers={"Host": host})
                assert refused.status_code in (401, 403)
                assert "token" in refused.text
            headers = {"Host": inside, "Authorization": f"Bearer {token}"}

            async def metrics() -> str:
                answer = await client.get(f"{page}/metrics", headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.text

            counted = 'stepwell_conversations{bot="my_bot",flow="registration",state="get_name"} 1'
            workers = 'stepwell_processes{kind="bot"} 2'
            await until(metrics, lambda shown: counted in shown and workers in shown)
            opened = await client.get(f"{page}/?token={token}", headers={"Host": f"admin.{DOMAIN}"})
            assert opened.status_code in (200, 303)
            assert (await client.get(page, headers={"Host": "evil.example.com"})).status_code in (400, 403, 421)
            assert (await running.stop(), await inspecting.stop()) == (0, 0)
    await store.close()


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = sorted((FOLDER / "systemd").iterdir())
    assert [each.name for each in units] == ["stepwell-backup.service", "stepwell-backup.timer", "stepwell-bot.service"]
    for unit in units:
        # It looks for the programs too.
        text = unit.read_text().replace("/opt/my-bot/.venv/bin/stepwell", "/bin/true")
        (tmp_path / unit.name).write_text(text)
        assert unit.suffix == ".timer" or "/opt/my-bot" in unit.read_text()
    if program := shutil.which("systemd-analyze"):
        done = subprocess.run(
            [program, "verify", "--man=no", *(str(tmp_path / each.name) for each in units)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "")


async def test_the_backup_of_systemd_copies_the_storage_and_does_so_again(tmp_path: Path) -> None:
    _, option, script = shlex.split(section("stepwell-backup.service", "Service")["ExecStart"][0])
    assert option == "-c"
    (tmp_path / "stepwell").mkdir()
    (tmp_path / "stepwell-backups").mkdir()
    # As systemd does before it starts the shell.
    script = script.replace("$$", "$").replace("%%", "%").replace("/var/lib", str(tmp_path))
    script = script.replace("/opt/my-bot/.venv/bin/stepwell", f"{shlex.quote(sys.executable)} -m stepwell")
    url = f"sqlite:///{tmp_path}/stepwell/bot.db"
    async with open_storage(url) as storage:
        await storage.set_state("my_bot", 42, State("registration", "name", {}))
    for _ in range(2):
        done = subprocess.run(["/bin/sh", "-c", script], text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (backup,) = (tmp_path / "stepwell-backups").glob("*.db")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d\.db", backup.name)


def known_metrics() -> set[str]:
    """Return the names in Prometheus of what OpenTelemetry reports and of what the inspector shows."""
    package = Path(stepwell.__file__).parent
    made = re.findall(
        r"create_(counter|histogram)\(\s*\"([a-z.]+)\", \"([^\"]+)\"", (package / "adapters" / "otel.py").read_text()
    )
    names = {*re.findall(r"\"(stepwell_\w+)\": ", (package / "inspector" / "metrics.py").read_text())}
    for kind, name, unit in made:
        full = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
        names |= {f"{full}_total"} if kind == "counter" else {f"{full}_bucket", f"{full}_sum", f"{full}_count"}
    assert {"stepwell_updates_total", "stepwell_update_duration_seconds_bucket", "stepwell_processes"} < names
    return names


#: Labels, and a job.
NO_METRICS = {"stepwell_bot", "stepwell_method", "stepwell_outcome", "stepwell_node", "stepwell_storage"}
#: For each alert, series that let it fire within half an hour: a value each minute, in the notation of promtool.
FIRING = {
    "StepwellUnobserved": {'up{job="stepwell-storage"}': "0x30"},
    "StepwellNoBot": {'stepwell_processes{kind="bot"}': "2 0x30"},
    "StepwellNoWorker": {'stepwell_processes{kind="worker"}': "0x30", 'stepwell_runs{status="queued"}': "3x30"},
    "StepwellTimersLate": {'stepwell_timer_late_seconds{bot="my_bot"}': "0+60x30"},
    "StepwellTurnsLate": {"stepwell_turns_late_seconds": "0+60x30"},
    "StepwellRunsStuck": {'stepwell_runs{flow="report",status="stuck"}': "1x30"},
    "StepwellRunsFailed": {'stepwell_runs{flow="report",status="failed"}': "1x30"},
    "StepwellOldestQueued": {'stepwell_runs_oldest_write_seconds{flow="report",status="queued"}': "0+60x30"},
    "StepwellUpdatesSetAside": {'stepwell_set_aside_per_minute{kind="bot"}': "1x30"},
    "StepwellRunnersDie": {"stepwell_recovered_per_minute": "1x30"},
    "StepwellUpdatesFail": {
        'stepwell_errors_total{stepwell_bot="b"}': "0+1x30",
        'stepwell_updates_total{stepwell_bot="b"}': "0+10x30",
    },
    "StepwellAnswersRefused": {'stepwell_answers_refused_total{stepwell_bot="b",stepwell_method="m"}': "0+1x30"},
    "StepwellLeasesLost": {"stepwell_leases_lost_total": "0+1x30"},
    "StepwellUpdatesSlow": {
        'stepwell_update_duration_seconds_bucket{stepwell_bot="b",le="5"}': "0x30",
        'stepwell_update_duration_seconds_bucket{stepwell_bot="b",le="10"}': "0+9x30",
        'stepwell_update_duration_seconds_bucket{stepwell_bot="b",le="+Inf"}': "0+9x30",
    },
    "StepwellStorageSlow": {
        'stepwell_storage_batch_duration_seconds_bucket{le="1"}': "0x30",
        'stepwell_storage_batch_duration_seconds_bucket{le="5"}': "0+9x30",
        'stepwell_storage_batch_duration_seconds_bucket{le="+Inf"}': "0+9x30",
    },
}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_the_alerts_and_the_dashboard_use_metrics_that_exist() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    used = [target["expr"] for panel in panels for target in panel["targets"]]
    used += [rule["expr"] for rule in rules().values()]
    assert len(used) > 30
    found = {name for each in used for name in re.findall(r"\bstepwell_\w+", each)}
    assert found - NO_METRICS - known_metrics() == set()


def test_the_runbook_has_each_alert() -> None:
    page = (FOLDER.parents[1] / "docs" / "runbook.md").read_text()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(rules())
    assert page.count("**Means**") == page.count("**Look at**") == page.count("**Do**") == len(rules())


def test_each_alert_fires_when_its_metrics_say_so_and_not_before(tmp_path: Path) -> None:
    """``promtool`` evaluates the rules where it is installed."""
    assert list(FIRING) == list(rules())
    if not (program := shutil.which("promtool")):
        return
    tests = []
    for name, series in FIRING.items():
        # Other alerts may fire with these series too. What is well has no series, except that the inspector answers.
        well = {} if name == "StepwellUnobserved" else {"up": "1x30"}
        ask = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
        values = {0: 0 if "for" in rules()[name] or "increase" in rules()[name]["expr"] else 1, 25: 1}
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": given} for each, given in (series | well).items()],
                "promql_expr_test": [
                    {"expr": ask, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
                    for minute, value in values.items()
                ],
            }
        )
    shutil.copy(FOLDER / "alerts.yaml", tmp_path)
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["alerts.yaml"], "tests": tests}))
    done = subprocess.run([program, "test", "rules", "tests.yaml"], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
