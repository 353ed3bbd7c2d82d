"""A bot's file: the module with the ``router`` that ``stepwell run`` and ``stepwell play`` run."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Any
from urllib.parse import quote

from stepwell._secrets import quoted
from stepwell.errors import UsageError
from stepwell.fsm import Router
from stepwell.fsm.flows.hooks import takes
from stepwell.nodes import NodeFlow, worker
from stepwell.nodes.control.options import storage_of
from stepwell.storage import Storage
from stepwell.storage.state_storage import is_configured
from stepwell.storage.transport.starting import when_available
from stepwell.storage.urls import as_storage
from stepwell.turns import Turns

__all__ = [
    "defines_main",
    "defines_router",
    "file_beside",
    "hide_own_frames",
    "import_code",
    "load_module",
    "load_router",
    "router_of",
    "started",
    "watched_files",
    "workers_of",
]

_SUBMITS = frozenset({"submit", "submit_sync"})
#: The files of this package and of the import system.
_OWN = (str(Path(__file__).parent), "<frozen ")


def file_beside(path: Path) -> str:
    """Return the default storage of a bot's file for ``make_router``: an SQLite file beside it."""
    return f"sqlite:///{quote(path.with_suffix('.db').as_posix())}"


def load_router(path: Path, storage: str | None = None) -> Router:
    """Import a bot's file and return its router.

    The file defines ``router = Router(fsm)``, or ``make_router(storage)`` that returns one, or only
    ``turns = Turns(...)``. ``storage`` replaces the router's own; ``make_router`` gets it, or the URL of an SQLite file
    beside the bot.
    """
    return router_of(load_module(path), path, storage)


def router_of(module: ModuleType, path: Path, storage: Storage | str | None = None) -> Router:
    """Return the router of a bot's file that was imported; see ``load_router``."""
    make, router = getattr(module, "make_router", None), getattr(module, "router", None)
    if callable(make):
        if inspect.iscoroutinefunction(make) or not takes(make, 1):
            raise UsageError(
                f"{path.name}: make_router must be a def function of the storage: def make_router(storage)"
            )
        router = make(storage or file_beside(path))
        made = "make_router(storage) returned"
    else:
        made = "router is"
        if router is None and isinstance(turns := getattr(module, "turns", None), Turns):
            router = turns.as_router()
    if not isinstance(router, Router):
        absent = router is None and not callable(make)
        found = (
            f"{path.name} has no router" if absent else f"{path.name}: {made} a {type(router).__name__}, not a Router"
        )
        raise UsageError(
            f"{found}; define router = Router(fsm), make_router(storage) that returns one, or turns = Turns(...)"
        )
    if router.fsm is None:
        raise UsageError(f"the router of {path.name} has no machine; write Router(fsm)")
    if storage is not None and not callable(make):
        router.fsm.move_to(as_storage(storage))
        for other in router.attached:
            other.move_to(router.fsm.storage)
    return router


def defines_router(path: Path) -> bool:
    """Return whether a file defines ``make_router``, or stepwell's ``router`` or ``turns``. It is parsed, not run.

    A file with ``turns`` that runs them itself, below ``if __name__ == "__main__"``, is a program without a router.
    """
    imported, has_turns, runs_itself = set[str](), False, False
    for each in ast.parse(path.read_bytes(), str(path)).body:
        if isinstance(each, ast.FunctionDef) and each.name == "make_router":
            return True
        if isinstance(each, ast.ImportFrom) and (each.module or "").split(".")[0] == "stepwell":
            imported |= {name.name.lower() for name in each.names if name.asname is None} & {"router", "turns"}
        if isinstance(each, ast.If):
            runs_itself |= any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(each.test))
        for target in each.targets if isinstance(each, ast.Assign) else ():
            if isinstance(target, ast.Name) and target.id in imported:
                if target.id == "router":
                    return True
                has_turns = True
    return has_turns and not runs_itself


def defines_main(path: Path, *, as_program: bool = False) -> bool:
    """Return whether a file without a router defines ``main()`` and does not call it. The file is parsed, not run.

    ``as_program``: also look for the call below ``if __name__ == "__main__"``, which an import skips.
    """
    try:
        statements = ast.parse(path.read_bytes(), str(path)).body
    except (OSError, SyntaxError, ValueError):
        # Reported when it is imported.
        return False
    has_main = False
    for each in statements:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            has_main = has_main or (each.name == "main" and _takes_nothing(each.args))
        if _bound_by(each) & {"router", "make_router"}:
            return False
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        names = {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
        if "main" in names and (as_program or "__name__" not in names):
            return False
    return has_main


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(name.asname or name.name) for name in statement.names}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _takes_nothing(arguments: ast.arguments) -> bool:
    return len(arguments.args) + len(arguments.posonlyargs) == len(arguments.defaults) and all(arguments.kw_defaults)


def workers_of(router: Router, names: Mapping[str, Any]) -> list[worker]:
    """Return the workers for the runs that the handlers of a bot submit.

    They are the workers among the names of the bot's file, and new ones for other flows that its code submits.
    """
    assert router.fsm is not None
    workers = [each for each in names.values() if isinstance(each, worker)]
    has_worker = {id(flow) for each in workers for flow in each.flows}
    # The runner of the bot starts these.
    own = [given for each in router.lifecycles for given in each.beside]
    has_worker |= {id(flow) for given in own for flow in getattr(given, "flows", ())}
    flows: dict[int, tuple[Storage, list[NodeFlow]]] = {}
    for flow in _submitted_flows(router, names):
        if id(flow) not in has_worker:
            has_worker.add(id(flow))
            is_stored = flow.storage is not None or is_configured()
            # A flow without a storage gets one with each call, which is that of the conversations.
            storage = storage_of(flow, None) if is_stored else router.fsm.storage
            flows.setdefault(id(storage), (storage, []))[1].append(flow)
    return [*workers, *(worker(each, storage=storage) for storage, each in flows.values())]


@contextlib.asynccontextmanager
async def started(workers: list[worker], *, wait_for_storage: bool = True) -> AsyncIterator[None]:
    """Start the workers, and stop them at the end. Storages that were not open are closed.

    ``wait_for_storage``: wait for a storage that is away.
    """
    async with contextlib.AsyncExitStack() as stack:
        for each in workers:
            if not each.storage.is_open:
                stack.push_async_callback(each.storage.close)
            await when_available(partial(stack.enter_async_context, each), each.storage, wait=wait_for_storage)
        yield


def _submitted_flows(router: Router, names: Mapping[str, Any]) -> Iterator[NodeFlow]:
    """Yield the flows that functions with a call of ``submit`` name: handlers, and functions of their modules."""
    handlers = [inspect.unwrap(found.route.handler) for found in router._flat()]
    # The function of a method.
    bare = [getattr(each, "__func__", each) for each in handlers]
    functions = [each for each in bare if isinstance(each, FunctionType)]
    scopes = {id(scope): scope for scope in (names, *(each.__globals__ for each in functions))}
    for scope in scopes.values():
        functions += [each for each in scope.values() if isinstance(each, FunctionType)]
    for function in functions:
        scope = {**function.__globals__, **_closure(function)}
        for code in _with_inner(function.__code__):
            if _SUBMITS.isdisjoint(code.co_names):
                continue
            for name in (*code.co_names, *code.co_freevars):
                found = scope.get(name)
                # As in ``jobs.film.submit()``.
                inner = [vars(found).get(each) for each in code.co_names] if isinstance(found, ModuleType) else ()
                yield from (each for each in (found, *inner) if isinstance(each, NodeFlow))


def _closure(function: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # The variable may have no value.
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _with_inner(each)


def watched_files(path: Path) -> dict[str, int]:
    """Return the modification times of a bot's file and the modules beside it, to notice changes."""
    times: dict[str, int] = {}
    for each in path.parent.glob("*.py"):
        with contextlib.suppress(OSError):
            times[each.name] = each.stat().st_mtime_ns
    return times


def import_code(given: str) -> ModuleType:
    """Import a file or a module, as ``--import`` gives it; raise ``UsageError`` if there is none."""
    if given.endswith(".py") or "/" in given or os.sep in given:
        return load_module(Path(given).resolve())
    # Modules in the working directory can be imported, as with python -m.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(given)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"cannot import {quoted(given)} (there is no module {quoted(error.name)}); "
            "give a module, or a file that ends with .py"
        ) from error


def load_module(path: Path) -> ModuleType:
    """Import a file, with the modules beside it importable; raise ``UsageError`` if there is no such file."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory; pass the file that defines the bot's router")
    if not path.is_file():
        raise UsageError(f"the file {quoted(str(path))} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path.name} is not a Python file; pass the file that defines the bot's router")
    # Modules beside the bot's file can be imported, as with python bot.py.
    sys.path.insert(0, str(path.parent))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hide_own_frames() -> None:
    """Print an error that ends the process without the frames of this package that led to the user's code."""
    sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    user = trace
    if user is not None and _is_own(user.tb_next):
        # The script that the installer wrote, or a frame of this package.
        user = user.tb_next
    while _is_own(user):
        user = user and user.tb_next
    # Python compiles the file with a syntax error in a frame of this package.
    hides = user is not None or isinstance(error, SyntaxError)
    traceback.print_exception(kind, error, user if hides else trace)


def _is_own(trace: TracebackType | None) -> bool:
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN)
