"""The public names of the package."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stepwell
import stepwell.botapi
import stepwell.engine
import stepwell.errors
import stepwell.fsm
import stepwell.fsm.engine
import stepwell.inspector
import stepwell.nodes
import stepwell.nodes.engine
import stepwell.options
import stepwell.pocketflow
import stepwell.telegram
import stepwell.telegram.engine
import stepwell.testing
import stepwell.testing.simulated_store
import stepwell.testing.simulation
import stepwell.turns
import stepwell.turns.engine
import stepwell.web

SOURCE = Path(stepwell.__file__).parent

NAMES = {
    "stepwell": [
        "KeyValueStorage", "Limits", "Log", "LogEntry", "MemoryStorage", "SQLiteStorage", "Secret", "State",
        "StateStorage", "StepwellError", "Storage", "__version__", "configure", "copy_records", "open_storage",
        "record_type", "sync",
    ],
    "stepwell.nodes": [
        "AlreadyHeld", "Answered", "BatchNode", "CaughtError", "ChildMap", "CorruptRecord", "END", "Event",
        "ExecutorError", "Failed", "FlowChanged", "FlowEdge", "FlowGraph", "HistoryEntry", "InsideLoop",
        "InvalidAction", "InvalidAnswer", "InvalidGraph", "InvalidItems", "InvalidKey", "InvalidName",
        "InvalidOption", "KeptError", "LeaseLost", "Limit", "MergeConflict", "MissingExtra", "Node",
        "NodeExited", "NodeFlow", "NodeFlowError", "NodeTimeout", "OutcomeUnknown", "Parallel", "Parked",
        "ProgressBar", "RecordReplaced", "Run", "RunBusy", "RunCancelled", "RunExists", "RunFailed",
        "RunFinished", "RunHandle", "RunHistory", "RunIsNewer", "RunPaused", "RunReplaced", "RunStuck",
        "Schedule", "ScheduleStatus", "Schedules", "Sleep", "Step", "StorageError", "StorageUnavailable",
        "StoredDataError", "StoredRun", "StreamEntry", "TooLarge", "TooManySteps", "UnknownAction",
        "UnknownOutcome", "UnknownRun", "UnknownSchedule", "UnknownScheme", "UnknownType", "Unstorable", "Unsupported",
        "UsageError", "Wait", "WorkCancelled", "WrongLoop", "cron", "effect", "every", "linear", "new_flow_id",
        "parallel", "run_async_batch", "sse", "step", "subscribe",
        "with_error_handling", "worker",
    ],
    "stepwell.engine": [
        "ANY", "AUDIT", "Address", "Any_", "Applied", "Apply", "BUDGETS", "BY_BOT", "Batch", "Change", "Changes",
        "Claim", "Claimed", "Copied", "DAY", "Due", "Entry", "Get", "GroupCommit", "Guard", "Head", "INBOX", "KEEP",
        "Keep", "LARGE_TEXT", "LAST_ENTRY", "LOGS", "MASK", "NOWHERE", "NO_HEAD", "OpenedHead", "Operation", "Owner",
        "PROCESSES", "Page", "Place", "QUARANTINE", "Query", "Queue", "REFUSED", "RUNS", "Range", "Release",
        "ReservedNamespace", "Result", "RunBatch", "Seal", "Slot", "StateCount", "Stored", "Struct", "TURNS", "Taken",
        "TimerSource", "Version",
        "WAKE",
        "as_storage", "background_loop", "backoff", "call_function", "check_name", "class_of", "count_extra",
        "count_records", "counted", "decode_key", "decode_name", "decode_namespace", "decode_value", "decoder",
        "displayed", "encode_key", "encode_namespace", "encode_value", "fingerprint", "from_json", "has_died",
        "in_thread",
        "is_large", "is_registered", "is_secret", "log_tag", "masked", "masked_field", "masked_fields", "masked_text",
        "observe_batches", "observe_storages",
        "packed", "path_step", "quoted", "register_shape", "replaced", "require", "run_in_loop", "seal_data",
        "secret_fields", "secret_fields_of", "serve_timers", "sync_on", "tail_of", "to_json", "weight",
        "when_available",
    ],
    "stepwell.turns": [
        "Admission", "Budget", "BudgetStatus", "Decided", "Decision", "FailedTurn", "History", "Message",
        "MessageTaken", "Price", "QuestionStatus", "Stream", "ToolStatus", "Turn", "TurnEnded", "TurnEvent",
        "TurnStarted", "TurnStatus", "Turns", "UnknownOutcome", "Usage", "current_turn", "person", "subscribe", "tool",
    ],
    "stepwell.options": [
        "check", "check_choice", "check_function", "check_instance", "check_not_async", "check_number", "check_text",
        "check_whole", "seconds_of",
    ],
    "stepwell.botapi": [
        "Bot", "BotAPI", "Draft", "FloodLimits", "KeyboardButton", "NotPossible", "Person", "Refusal", "Room", "World",
        "WorldEvent", "buttons_of", "check_call", "load_world", "message_text", "read_markup", "read_text",
        "save_world",
    ],
    "stepwell.inspector": ["Inspector", "TrustedProxy", "inspector"],
    "stepwell.web": ["Visitor", "WebChat", "chat"],
    "stepwell.pocketflow": [
        "AsyncBatchFlow", "AsyncBatchNode", "AsyncFlow", "AsyncNode", "AsyncParallelBatchFlow",
        "AsyncParallelBatchNode",
        "BaseNode", "BatchFlow", "BatchNode", "Flow", "Node",
    ],
    "stepwell.telegram": [
        "BotApiError", "BotBlocked", "BotClient", "BotUnavailable", "BroadcastResult", "InputFile", "SendLimits",
        "Sender", "Webhook", "Writer", "broadcast", "cancel_broadcast", "chat_stream", "find_token",
        "read_init_data", "run_polling", "run_polling_sync", "webhook",
    ],
    "stepwell.testing": [
        "Chat", "Clock", "CrashFault", "CrashReport", "FaultyStorage", "JournaledStorageContract", "KeyValueContract",
        "StorageContract", "crash_test",
    ],
    "stepwell.testing.simulated_store": ["NETWORK_FAULTS", "SimulatedStore"],
    "stepwell.testing.simulation": ["FoundFault", "SimulatedProcess", "Simulation", "TraceLine"],
    "stepwell.fsm": [
        "AlreadyHeld", "AnswerRefused", "BotMethods", "Busy", "Calendar", "Committed", "Conflict", "Context",
        "ContextClosed", "ConversationExpired", "CorruptRecord", "DuplicateReceived", "DuplicateUpdate",
        "EncodeError", "Expired", "FSM", "FSMEvent", "FieldError", "Filter", "Flow", "Form", "HandlerEnded",
        "HandlerFailed", "HandlerStarted", "IncompleteData", "InsideLoop", "InvalidFlow", "InvalidKey", "InvalidName",
        "InvalidOption", "LeaseLost", "MachineReady", "Menu", "MigrationError", "MissingExtra", "NoKeyError",
        "OutcomeUnknown", "RecordReplaced", "Router", "StateEntered", "StateName", "StorageError",
        "StorageUnavailable", "StoredDataError", "Throttle", "TimerFired", "TooLarge", "TransitionError",
        "Translations", "UnknownFlowError", "UnknownScheme", "UnknownStateError", "UnreachableState", "Unsupported",
        "Update", "UpdateHandled", "UpdateReceived", "UpdateSetAside", "UsageError", "album", "button", "callback",
        "command", "content", "decode_payload", "encode_payload", "fsm_flow", "fsm_in_flow", "fsm_state", "html",
        "keyboard", "keys", "kind", "md", "remove_keyboard", "reply_keyboard", "start_link", "state", "subscribe",
        "text",
    ],
}  # fmt: skip

#: Names for the adapters and tools of this package. They may change with any release.
FOR_TOOLS = {
    "stepwell.fsm.engine": [
        "Conversation", "EXPIRY", "Extension", "FlowDescription", "HISTORY", "HandledUpdates", "Machine", "Peer",
        "RefusedCall", "TIMEOUT", "after_end", "as_plain", "check_parameters", "describe", "diagram", "entry_times",
        "is_unmodified", "is_unparsable", "leave_calls", "opened_extension", "refused_calls", "refused_log",
        "remembered", "report_refusal", "save_file", "sending", "set_timer", "token_of", "with_entry", "with_kept",
        "with_timers", "without_formatting",
    ],
    "stepwell.turns.engine": [
        "ShownConversation", "State", "WORKING_PARTS", "WebUpdate", "budgets_in", "read_shown", "status_of",
        "web_update",
    ],
    "stepwell.nodes.engine": [
        "DurableStep", "FINAL", "OpenWait", "QueuedRun", "RunTasks", "Status", "answer", "carry_trace", "durable_step",
        "flow_of_index", "flow_of_wait", "graph_of", "history", "holder_of", "is_queued", "message_of",
        "observe_submits", "program_of", "run_of", "status", "table_of", "unknown_calls",
    ],
    "stepwell.telegram.engine": [
        "HEALTH", "Message", "Receive", "Send", "TELEGRAM", "call_at_start", "collect_less_often", "drop_aside",
        "flows_beside", "health_of", "retry_aside", "updates_aside", "updates_in_inbox",
    ],
}  # fmt: skip

# Only type checkers import typing_extensions.
STANDARD = sys.stdlib_module_names | {"stepwell", "typing_extensions"}


@pytest.mark.parametrize("module", [*NAMES, *FOR_TOOLS])
def test_a_module_exports_just_these_names(module: str) -> None:
    exported = sys.modules[module]
    names = NAMES.get(module) or FOR_TOOLS[module]
    assert sorted(exported.__all__) == sorted(names)
    for name in names:
        assert getattr(exported, name) is not None


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("SQLiteStorage", "sqlite"),
        ("RedisStorage", "redis"),
        ("PostgresStorage", "postgres"),
        ("SealedStorage", "sealed"),
    ],
)
def test_each_storage_can_be_imported_from_the_package(name: str, module: str) -> None:
    home = importlib.import_module(f"stepwell.storage.{module}")
    assert getattr(stepwell, name) is getattr(home, name)
    assert name in dir(stepwell)


def test_a_storage_without_its_driver_raises_missing_extra_and_a_star_import_works() -> None:
    code = """if True:
        import sys
        sys.modules["redis"] = sys.modules["redis.asyncio"] = sys.modules["asyncpg"] = None
        sys.modules["cryptography"] = None
        from stepwell import *
        from stepwell.errors import MissingExtra
        for name in ("RedisStorage", "PostgresStorage", "SealedStorage"):
            try:
                exec(f"from stepwell import {name}")
            except MissingExtra as error:
                print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "stepwell[redis]" in done.stdout
    assert "stepwell[postgres]" in done.stdout
    assert "stepwell[sealed]" in done.stdout


def test_the_extra_all_has_every_extra_except_those_for_tests() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    named = re.fullmatch(r"stepwell\[(.*)\]", everything)
    assert named
    assert set(named[1].split(",")) == set(extras) - {"all", "testing"}


def test_make_dist_tries_every_extra() -> None:
    runpy.run_path(str(SOURCE.parents[1] / "scripts" / "dist.py"))["check_names"]()


def test_every_error_is_in_the_tree_and_below_stepwell_error() -> None:
    errors = {
        name: value
        for name, value in vars(stepwell.errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__.startswith("stepwell.errors")
    }
    tree = stepwell.errors.__doc__ or ""
    for name, value in errors.items():
        assert issubclass(value, stepwell.StepwellError)
        assert any(line.strip(" │├└─").split(" ")[0] == name for line in tree.splitlines()), (
            f"{name} is not in the tree"
        )


@functools.cache
def imports() -> list[tuple[str, str]]:
    """Return the packages that the modules import, with the modules."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            found += [(name.partition(".")[0], str(path.relative_to(SOURCE))) for name in names]
    return found


def test_a_third_party_package_is_imported_in_one_module_only() -> None:
    # The local Bot API imports nothing else of Stepwell, so it has its own module for each package.
    homes: dict[tuple[str, bool], set[str]] = {}
    for package, module in imports():
        if (package, module) == ("msgspec", "record.py"):
            # It is below codec/json.py.
            continue
        if package not in STANDARD and not module.startswith("testing/"):
            # These frameworks have one package each.
            found = re.match("adapters/(aiogram|ptb|telebot|langgraph|openai_agents|pydantic_ai)(?=/)", module)
            home = module if found is None else found[0]
            homes.setdefault((package, module.startswith("botapi/")), set()).add(home)
    assert {package: modules for package, modules in homes.items() if len(modules) > 1} == {}
    assert homes, "this test looks at nothing"


def test_nothing_stored_is_ever_unpickled_or_imported_by_name() -> None:
    # remote_chunk.py sends items to process pools, as the pools themselves do; large.py only hashes what it pickles.
    # unpickle.py is the program that stepwell import-ptb --trust-pickle starts; no module of stepwell imports it.
    pickling = {"nodes/batch/remote_chunk.py", "codec/large.py", "adapters/imports/unpickle.py"}
    importing = [
        path for path in SOURCE.rglob("*.py") if re.search(r"import .*unpickle|unpickle import", path.read_text())
    ]
    assert importing == []
    packages = {package for package, module in imports() if module not in pickling}
    assert not packages & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    hashing = (SOURCE / "codec" / "large.py").read_text()
    assert not re.search(r"\bload|Unpickler", hashing)
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert "eval(" not in text
    assert "exec(" not in re.sub(r"\.exec\(|def exec\(|create_subprocess_exec\(", "", text)


def test_importing_stepwell_loads_no_driver_and_no_framework() -> None:
    code = "import stepwell, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "msgspec" in loaded
    assert not loaded & {
        "apsw",
        "sqlite3",
        "redis",
        "asyncpg",
        "cryptography",
        "pydantic",
        "aiogram",
        "httpx",
        "telegram",
        "telebot",
        "pytest",
        "hypothesis",
    }


#: The packages that use the layers below them by public names only.
NEIGHBOURS = ("adapters", "cli", "inspector", "operate", "playground")
#: What they may also import: each other, the packages beside them, modules of conditions and keys, and two modules with
#: a reason in pyproject.toml.
BESIDE = re.compile(
    r"stepwell\.(adapters|botapi|botfile|cli|errors|inspector|operate|playground|testing|web)\b"
    r"|stepwell\.fsm\.(filters|keys)\b|stepwell\.storage\.(sealed|redis\.reading)\b"
)


def test_adapters_and_tools_import_public_names_only() -> None:
    top = [*NAMES["stepwell"], "PostgresStorage", "RedisStorage", "SealedStorage", "fsm", "nodes", "turns"]
    known = NAMES | FOR_TOOLS | {"stepwell": top}
    inner = []
    for package in NEIGHBOURS:
        for path in (SOURCE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("stepwell"):
                    continue
                assert node.module is not None
                for alias in node.names:
                    found = f"{node.module}.{alias.name}"
                    if alias.name not in known.get(node.module, ()) and not BESIDE.match(found):
                        inner.append(f"{path.relative_to(SOURCE)}: {found}")
    assert inner == []
