"""A pytest plugin: ``pytest -p tests.forks --forks=6`` runs the tests in six processes.

The tests are collected once, and the processes are forked from that state. pytest-xdist starts its processes anew, and
each would import all frameworks again and collect all tests, which takes longer than a tenth of the suite.

A process runs one file after another. When no file is left, it takes over half of the tests that another process has
not begun.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

#: Folders and files whose tests take longest come first, so that no process works alone at the end.
FIRST = (
    *(
        "tests/reliability/",
        "tests/playground/",
        "tests/botapi/",
        "tests/inspector/",
        "tests/adapters/",
        "tests/telegram/",
    ),
    *("tests/test_docs.py", "tests/test_readme.py", "tests/fsm/test_corners.py"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in so many forked processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forked processes instead of in this one."""
    count = session.config.getoption("forks")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    parent = Parent(session)
    for _ in range(min(count, len(session.items))):
        child = parent.fork()
        if child is not None:
            child.run()
            return True
    parent.run()
    return True


class Plan:
    """The tests that are left, as indexes: whole files, and the rest of the file of each process."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        files = [
            deque(index for index, _ in group)
            for _, group in groupby(enumerate(items), lambda each: each[1].nodeid.partition("::")[0])
        ]
        names = [item.nodeid for item in items]
        self._files = deque(sorted(files, key=lambda file: not names[file[0]].startswith(FIRST)))
        self._own: dict[Connection, deque[int]] = {}

    def next(self, process: Connection) -> int | None:
        """Return the next test for a process, or ``None``."""
        own = self._own.setdefault(process, deque())
        if not own:
            if self._files:
                own = self._files.popleft()
            else:
                longest = max(self._own.values(), key=len)
                for _ in range((len(longest) + 1) // 2):
                    own.appendleft(longest.pop())
            self._own[process] = own
        return own.popleft() if own else None

    def close(self, process: Connection, given: deque[int]) -> None:
        """Let other processes run the rest of this one, and what it was given but did not begin."""
        if rest := given + self._own.pop(process):
            self._files.append(rest)

    def count(self) -> int:
        return sum(map(len, self._files))

    def clear(self) -> None:
        """Give out no more tests."""
        self._files.clear()
        for rest in self._own.values():
            rest.clear()


class Parent:
    """Gives tests to its processes and reports their results."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._plan = Plan(session.items)
        #: The test that each process runs and the one that follows.
        self._given: dict[Connection, deque[int]] = {}
        self._pids: dict[Connection, int] = {}
        # Created here, because each process would choose a name of its own.
        self._folder = session.config._tmp_path_factory.getbasetemp()

    def fork(self) -> Child | None:
        """Start a process. Return ``None`` in this one, and the child in the new one."""
        ours, theirs = Pipe()
        # A child would write the buffered text again.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            return Child(self._session, theirs, f"{self._folder}/{len(self._pids)}")
        theirs.close()
        self._pids[ours] = pid
        self._given[ours] = deque()
        for _ in range(2):
            self._give(ours)
        return None

    def run(self) -> None:
        """Report all results, until all processes have ended."""
        session = self._session
        try:
            while self._given:
                for process in wait(list(self._given)):
                    try:
                        reports = process.recv()
                    except (EOFError, ConnectionError):
                        self._end(process)
                    else:
                        self._report(process, reports)
                if session.shouldfail or session.shouldstop:
                    self._plan.clear()
        finally:
            for process in self._given:
                os.kill(self._pids[process], signal.SIGTERM)
        if left := self._plan.count():
            session.shouldfail = f"{left} tests have not run, because their processes have ended"
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def _give(self, process: Connection) -> None:
        index = self._plan.next(process)
        if index is not None:
            self._given[process].append(index)
        with suppress(ConnectionError):
            process.send(index)

    def _report(self, process: Connection, reports: list[Any]) -> None:
        item = self._session.items[self._given[process].popleft()]
        self._give(process)
        config = self._session.config
        config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in reports:
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            config.hook.pytest_runtest_logreport(report=report)
        config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _end(self, process: Connection) -> None:
        """Report the test during which a process has ended, and give the rest of its tests to the others."""
        process.close()
        _, status = os.waitpid(self._pids[process], 0)
        code = os.waitstatus_to_exitcode(status)
        given = self._given.pop(process)
        if given:
            item = self._session.items[given.popleft()]
            text = f"the process of this test has ended with {code}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
        elif code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._session.shouldfail = f"a process has ended with {code} after its tests"
        self._plan.close(process, given)


class Child:
    """Runs the tests whose indexes it receives, and sends their reports."""

    def __init__(self, session: pytest.Session, parent: Connection, folder: str) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        random.seed()
        self._session = session
        self._parent = parent
        self._reports: list[Any] = []
        config = session.config
        # Plugins take it for a process of pytest-xdist, and leave the cache and the summary to the parent.
        config.workerinput = {"workerid": folder.rpartition("/")[2]}
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(self)
        config.option.basetemp = folder
        config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)
        # The files of captured output belong to the parent.
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()

    def run(self) -> None:
        # The next test must be known, because the fixtures that both use stay open.
        index = self._parent.recv()
        while index is not None:
            following = self._parent.recv()
            item = self._session.items[index]
            item.config.hook.pytest_runtest_protocol(
                item=item, nextitem=None if following is None else self._session.items[following]
            )
            self._parent.send(self._reports)
            self._reports = []
            index = following

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))
