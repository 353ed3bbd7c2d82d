"""A crash test: a bot or a flow is killed at each of its steps in turn, and compared with a run without a kill."""

from __future__ import annotations

import gc
import os
import random
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Final

from stepwell._secrets import quoted
from stepwell.errors import UsageError
from stepwell.options import check_whole
from stepwell.testing.crash_run import FIRST_PERSON, BotRun, CrashRun, FlowRun, PersonAction

__all__ = ["CrashFault", "CrashReport", "crash_test"]

#: What to do about each kind of fault.
ADVICE: Final = {
    "error": "Handle it: the update counts as handled, and the person gets no answer.",
    "effect": (
        "A handler or node runs again after a kill. Let an agent call it with turn.tool(..., replay='never'), and a "
        "flow in Node(replay='never') or an @effect; or pass an id that stays the same to the other side, such as the "
        "update's (docs/effects.md)."
    ),
    "answers": (
        "What a handler answers depends on something that a kill loses, such as a global, or changes at random. Keep "
        "it in ctx.data or ctx.profile."
    ),
    "state": "The record depends on something that a kill loses or repeats. Keep it in ctx.data or ctx.profile.",
    "unknown": (
        "It was interrupted, and is not run again by itself. Add an edge 'unknown' to the node, or settle such runs by "
        "hand with flow.complete() (docs/effects.md)."
    ),
    "result": "The final state depends on something that a kill loses or repeats. Keep it in the shared state.",
    "task": (
        "Nothing starts it again after a kill, and its changes belong to no update. Submit a run of a flow instead "
        "(docs/how-to/start-a-flow-from-a-bot.md), or await it."
    ),
    "blocking": "All other updates wait meanwhile. Use await, or make the handler a def, which runs in a thread.",
}


@dataclass(frozen=True, slots=True)
class CrashFault:
    """A fault that a crash test has found.

    Example::

        fault = CrashFault("blocking", "time.sleep(1) blocks the event loop", "bot.py:12")
        assert str(fault).startswith("bot.py:12: time.sleep(1) blocks the event loop")
    """

    #: ``error``, ``effect``, ``answers``, ``state``, ``result``, ``unknown``, ``task`` or ``blocking``.
    kind: str
    what: str
    #: Where it is in the code, if that is known.
    line: str | None = None
    #: How many kills have shown it, and the first one: its step, and what was going on. None needs no kill.
    kills: int = 0
    first: tuple[int, str] | None = None

    def __str__(self) -> str:
        where = "" if self.line is None else f"{os.path.relpath(self.line)}: "
        lines = [f"{where}{self.what}"]
        if self.first is not None:
            step, doing = self.first
            lines.append(f"    {_times(self.kills, 'kill')} showed it, the first at step {step}, during {doing}")
        advice = textwrap.wrap(ADVICE[self.kind], 110, initial_indent="    ", subsequent_indent="    ")
        return "\n".join([*lines, *advice])


@dataclass(slots=True)
class CrashReport:
    """What a crash test has found. ``str(report)`` is the text that ``stepwell crashtest`` prints.

    Example::

        report = CrashReport("bot.py", 0, ["person 1 says '/start'"], steps=1, kills=1)
        assert not report.faults, report
    """

    name: str
    seed: int
    #: What happened, in words: the messages of the people, or the run.
    script: list[str]
    #: How many steps there are, and at how many of them it was killed.
    steps: int = 0
    kills: int = 0
    faults: list[CrashFault] = field(default_factory=list)
    #: How many kills have made Telegram show a message twice. No bot can avoid that.
    repeated: int = 0

    def __str__(self) -> str:
        lines = [f"{self.name}: killed at {self.kills} of {_times(self.steps, 'step')}, seed {self.seed}"]
        lines += [f"  {each}" for each in self.script]
        if self.repeated:
            lines.append(
                f"{_times(self.repeated, 'kill')} came between sending an answer and noting it, so it was sent again. "
                "No bot can avoid that."
            )
        if not self.faults:
            lines.append("No fault was found.")
        for number, fault in enumerate(self.faults, 1):
            lines.append(f"\n{number}. {fault}")
        return "\n".join(lines)


def crash_test(
    file: str | os.PathLike[str],
    *,
    script: Sequence[str] | None = None,
    messages: int = 12,
    seed: int = 0,
    most: int = 500,
    effects: Sequence[str] = (),
    flow: str | None = None,
    shared: Mapping[Any, Any] | None = None,
) -> CrashReport:
    """Kill a bot at each of its steps, and report what a kill changes.

    ``file`` is a bot's file, as for ``stepwell play``, or one with a node flow, whose name is ``flow``; its run begins
    with ``shared``. It runs in a simulation, with a storage in memory and without Telegram: pass ``effects``, names of
    functions of the file, to count their calls. Writes to files, connections and programs are counted anyway.

    ``script``: what a person says, each a text or the label of a button; without it, two people say ``messages`` things
    that the seed chooses. ``most``: if there are more steps, so many of them are chosen.

    Raises ``UsageError`` for a file that fails without a kill before anything happens.

    Example::

        from pathlib import Path

        Path("bot.py").write_text('''
        from stepwell.fsm import FSM, Router, command

        router = Router(FSM("my_bot", storage="memory://", flows=[]))
        count = 0

        @router.on(command("count"))
        async def counted(ctx):
            global count
            count += 1
            ctx.profile["count"] = count
            ctx.answer(str(count))
        '''.replace("\\n        ", "\\n"))

        report = crash_test("bot.py", script=["/count", "/count"])
        assert {fault.kind for fault in report.faults} == {"answers"}
    """
    path = Path(file).resolve()
    check_whole(most, "most must be a number of at least 1, got {}", least=1)
    check_whole(messages, "messages must be a number of at least 1, got {}", least=1)
    if not path.is_file():
        raise UsageError(f"the file {quoted(str(file))} does not exist")
    actions = None if script is None else [PersonAction(FIRST_PERSON, each, presses=True) for each in script]
    with warnings.catch_warnings():
        # A killed process leaves coroutines that nobody awaits.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            if flow is None:
                bot = BotRun(path, seed=seed, effects=effects, messages=messages, actions=actions)
                bot.run()
                again = partial(BotRun, path, seed=seed, effects=effects, messages=messages, actions=bot.actions)
                return _tested(bot, again, list(map(str, bot.actions)), seed, most)
            make = partial(FlowRun, path, seed=seed, effects=effects, name=flow, shared=dict(shared or {}))
            calm = make()
            calm.run()
            return _tested(calm, make, [f"a run of {flow}"], seed, most)
        finally:
            gc.collect()


def _tested(calm: CrashRun, make: Callable[..., CrashRun], script: list[str], seed: int, most: int) -> CrashReport:
    """Make the runs with kills, and compare them with the one without."""
    steps = sorted(set(calm.steps))
    if not steps:
        problem = "; ".join(calm.errors) or "it does nothing"
        raise UsageError(f"{calm.path.name} cannot be tested: {problem}")
    report = CrashReport(calm.path.name, seed, script, steps=len(steps))
    found = _Findings(report)
    found.without_kill(calm)
    for step in steps if len(steps) <= most else sorted(random.Random(f"steps {seed}").sample(steps, most)):
        killed = make(dies_at=step)
        killed.run()
        if killed.deaths:
            report.kills += 1
            found.compare(calm, killed, step)
    report.faults = found.faults()
    return report


class _Findings:
    """The faults of many runs, each told once."""

    def __init__(self, report: CrashReport) -> None:
        self._report = report
        self._calm: list[CrashFault] = []
        self._known: set[str] = set()
        self._kills: dict[tuple[str, str | None], set[int]] = defaultdict(set)
        self._first: dict[tuple[str, str | None], tuple[int, str, str]] = {}

    def without_kill(self, calm: CrashRun) -> None:
        """Note what needs no kill."""
        for text in dict.fromkeys(calm.errors):
            self._known.add(text)
            self._calm.append(CrashFault("error", text))
        for line, doing in calm.left.items():
            self._calm.append(CrashFault("task", f"a task outlives the handler of {doing}", line))
        for each in calm.found():
            kind = each.kind if each.kind in ADVICE else "error"
            if each.line not in calm.left or kind != "task":
                self._calm.append(CrashFault(kind, each.what, each.line))

    def compare(self, calm: CrashRun, killed: CrashRun, step: int) -> None:
        """Note what a kill has changed."""
        for effect, count in killed.effects.items():
            if count > calm.effects[effect]:
                times = f"{_times(count, 'time')} instead of {calm.effects[effect]}"
                self._note("effect", effect.line, f"{effect.what} ran {times}", killed, step)
        for text in killed.errors:
            if text not in self._known:
                self._note("error", None, text, killed, step)
        if isinstance(calm, BotRun) and isinstance(killed, BotRun):
            self._report.repeated += bool(killed.repeated)
            said = killed.said()
            for person, expected in calm.said().items():
                got = [text for text, _ in groupby(said.get(person, []))]
                wanted = [text for text, _ in groupby(expected)]
                for mine, other in zip_longest(wanted, got):
                    if mine != other:
                        text = (
                            f"person {person - FIRST_PERSON + 1} is answered {_shown(other)} instead of {_shown(mine)}"
                        )
                        self._note("answers", None, text, killed, step)
                        break
            for key in {**calm.records, **killed.records}:
                if calm.records.get(key) != killed.records.get(key):
                    was, now = calm.records.get(key), killed.records.get(key)
                    self._note("state", None, f"the record of {key} is {now} instead of {was}", killed, step)
        elif isinstance(killed, FlowRun) and killed.stuck is not None:
            self._note("unknown", None, killed.stuck, killed, step)
        elif isinstance(calm, FlowRun) and isinstance(killed, FlowRun) and calm.result != killed.result:
            self._note("result", None, f"the result is {killed.result} instead of {calm.result}", killed, step)

    def faults(self) -> list[CrashFault]:
        """Return the faults, the ones without a kill first."""
        found = list(self._calm)
        for (kind, line), kills in self._kills.items():
            step, doing, what = self._first[kind, line]
            found.append(CrashFault(kind, what, line, len(kills), (step, doing)))
        return found

    def _note(self, kind: str, line: str | None, what: str, killed: CrashRun, step: int) -> None:
        self._kills[kind, line].add(step)
        self._first.setdefault((kind, line), (step, killed.died_during, what))


def _shown(text: str | None) -> str:
    return "nothing" if text is None else quoted(text)


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
