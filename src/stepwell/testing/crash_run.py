"""One run of a bot or a flow in a simulation, in which its process is killed at one of its steps, or never."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import random
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from stepwell._secrets import quoted
from stepwell.botfile import load_module, router_of, started, workers_of
from stepwell.codec import types
from stepwell.errors import InvalidOption, RunStuck, StepwellError, UsageError
from stepwell.fsm import Router, Update, command
from stepwell.nodes import NodeFlow
from stepwell.record import DAY, PROCESSES, TURNS, Address
from stepwell.storage import Storage, urls
from stepwell.storage.operations import Apply, Claim, Claimed, Operation, Release, Result
from stepwell.testing.simulated_loop import SimulatedProcess, is_of_user, line_of_user
from stepwell.testing.simulated_store import SimulatedStore
from stepwell.testing.simulation import FoundFault, Simulation
from stepwell.testing.telegram import ChatClient, ChatThread, Telegram, buttons_of, text_of

__all__ = ["BotRun", "CrashRun", "FlowRun", "PersonAction", "SeenEffect"]

#: Virtual seconds without anything new after which the next thing happens, and the longest time to wait for that.
QUIET, LONGEST = 5.0, 600.0
#: Things happen at multiples of this, so that the timers of most bots, which have whole seconds, are not due just then.
GRID: Final = 7.3
#: Seconds after which a turn is due that runs.
SOON: Final = 60.0
#: The id of the first person.
FIRST_PERSON: Final = 101
#: Virtual seconds of a call to Telegram.
CALL: Final = 0.05
#: What people say who know no commands.
TEXTS: Final = ("Ann", "42", "yes", "2030-01-31", "hello")
#: The audit events of Python that tell of a call which reaches beyond the process.
OUTSIDE: Final = {
    "open", "os.remove", "os.rename", "os.truncate", "os.system", "shutil.copyfile", "shutil.move", "shutil.rmtree",
    "socket.connect", "socket.sendto", "subprocess.Popen", "smtplib.connect", "ftplib.connect", "http.client.connect",
    "urllib.Request",
}  # fmt: skip
#: Calls of ``ctx.bot`` that may be made again.
HARMLESS: Final = ("get", "edit", "answer", "sendChatAction", "sendMessageDraft", "sendRichMessageDraft")


class PersonAction(NamedTuple):
    """What a person does."""

    person: int
    #: A text, or the label of a button.
    what: str
    presses: bool = False

    def __str__(self) -> str:
        did = "presses" if self.presses else "says"
        return f"person {self.person - FIRST_PERSON + 1} {did} {quoted(self.what)}"


class SeenEffect(NamedTuple):
    """A call that reaches beyond the process."""

    line: str
    what: str


class CrashRun(ABC):
    """One run. Its steps are counted while there is something to do, and it dies at one of them."""

    def __init__(self, path: Path, *, seed: int, effects: Sequence[str], dies_at: int | None = None) -> None:
        self.path = path
        self.simulation: Simulation = Simulation(seed, strict=False, allow=("clock", "randomness"), disorder=0.0)
        self.store: SimulatedStore = SimulatedStore(self.simulation)
        #: How often each call that reaches beyond the process was made.
        self.effects: Counter[SeenEffect] = Counter()
        #: Errors that ended a handler or a process, in order, and tasks that a handler has left.
        self.errors: list[str] = []
        self.left: dict[str, str] = {}
        #: The steps of the first process between the beginning of something and the last thing that it did.
        self.windows: list[list[int]] = []
        #: What was going on when it died.
        self.died_during: str = ""
        self.deaths: int = 0
        self._named = effects
        self._dies_at = dies_at
        self._doing = "the start"
        self._process: SimulatedProcess | None = None
        #: When it did something last.
        self._touched = 0.0
        #: How the latest claim of each record would be released.
        self._claims: dict[Address, Release] = {}

    def run(self) -> None:
        """Run it to its end."""
        with _outside(self._saw), _quiet(), _own_types(), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", RuntimeWarning)
            self.simulation.run(self._main())
        # A killed process leaves coroutines that nobody awaits.
        if self._dies_at is None:
            never = {str(each.message): each for each in found if "never awaited" in str(each.message)}
            self.errors += [f"{each.filename}:{each.lineno}: {text}" for text, each in never.items()]

    @property
    def steps(self) -> list[int]:
        """The steps at which a kill can matter."""
        return [step for first, last in self.windows for step in range(first + 1, last + 3)]

    def found(self) -> list[FoundFault]:
        """Return what the simulation has found in the code of the user."""
        return [each for each in self.simulation.found if each.line is not None]

    async def _main(self) -> None:
        self.store.watchers.append(self._watch)
        keeping = asyncio.create_task(self._keep())
        acting = asyncio.create_task(self._act())
        await asyncio.wait([keeping, acting], return_when=asyncio.FIRST_COMPLETED)
        if not acting.done():
            # The process has ended by itself.
            await asyncio.wait([acting], timeout=QUIET)
        await self._look()
        for each in (keeping, acting):
            each.cancel()
        if self._process is not None:
            self._process.kill()
        await asyncio.wait([keeping, acting])
        for each in (keeping, acting):
            if not each.cancelled() and each.exception() is not None:
                self.errors.append(_told(each.exception()))

    async def _keep(self) -> None:
        """Run the process, and start it again after its death."""
        while True:
            process = self._process = self.simulation.process("bot")
            if not self.deaths:
                process.dies_at = self._dies_at
            ended = asyncio.Event()
            process.on_death.append(ended.set)
            task = process.start(self._live())
            task.add_done_callback(partial(_set, ended))
            await ended.wait()
            if not process.dead:
                process.kill()
                task.result()
                return
            self.deaths += 1
            self._touched = self.simulation.now
            # A process of the same machine takes over the claims of a dead one at once.
            for claim in self._claims.values():
                self.store.memory._do(claim)
            self._claims.clear()
            self.died_during = self._doing
            await asyncio.sleep(0.1)

    def _load(self, storage: Storage) -> ModuleType:
        """Import the file anew: the globals of a process die with it. Every URL of a storage is this storage."""
        folder = str(self.path.parent)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and is_of_user(file) and str(Path(file).parent) == folder and name != "__main__":
                del sys.modules[name]
        with _unseen(), _only_storage(storage):
            module = load_module(self.path)
        for name in self._named:
            if not callable(getattr(module, name, None)):
                raise InvalidOption(f"{self.path.name} has no function {quoted(name)}; name one that it defines")
            setattr(module, name, self._counted(getattr(module, name), name))
        return module

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def count(args: tuple[Any, ...], given: dict[str, Any]) -> None:
            shown = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in given.items())])
            self.effects[SeenEffect(self._user_line() or str(self.path), f"{name}({shown})")] += 1

        if inspect.iscoroutinefunction(function):

            async def called(*args: Any, **given: Any) -> Any:
                count(args, given)
                return await function(*args, **given)

            return called

        def call(*args: Any, **given: Any) -> Any:
            count(args, given)
            return function(*args, **given)

        return call

    def _user_line(self) -> str | None:
        return line_of_user(sys._getframe(2))

    def _saw(self, what: str, line: str) -> None:
        self.effects[SeenEffect(line, what)] += 1

    def _begin(self, doing: str) -> None:
        self._doing, self._touched = doing, self.simulation.now
        if not self.deaths and self._process is not None:
            self.windows.append([self._process.steps, self._process.steps])

    def _watch(
        self, process: SimulatedProcess | None, operations: Sequence[Operation], results: Sequence[Result]
    ) -> None:
        for operation, result in zip(operations, results, strict=True):
            if type(operation) is Claim and isinstance(result, Claimed):
                self._claims[operation.address] = Release(operation.address, operation.token)
        if any(type(each) is Apply and each.address.namespace != PROCESSES for each in operations):
            self._touch(process)

    def _touch(self, process: SimulatedProcess | None) -> None:
        """Note that the process does something."""
        self._touched = self.simulation.now
        if not self.deaths and process is self._process and self.windows and process is not None:
            self.windows[-1][1] = process.steps

    async def _settled(self) -> None:
        """Wait until nothing happens any more."""
        loop, began = asyncio.get_running_loop(), self.simulation.now
        while loop.time() < began + LONGEST:
            await asyncio.sleep(1.0)
            if not await self._busy() and loop.time() >= self._touched + QUIET:
                # At the same time as without a kill, if it has not taken long: timers come before or after it.
                await asyncio.sleep(-loop.time() % GRID)
                return

    async def _busy(self) -> bool:
        """Return whether something waits to be handled."""
        return False

    @abstractmethod
    async def _live(self) -> None:
        """Be the process."""

    @abstractmethod
    async def _act(self) -> None:
        """Do what happens from outside, and wait until everything has settled."""

    @abstractmethod
    async def _look(self) -> None:
        """Take down what is left at the end."""


def _set(event: asyncio.Event, _: object) -> None:
    event.set()


class BotRun(CrashRun):
    """A bot and its people."""

    def __init__(
        self, path: Path, *, seed: int, effects: Sequence[str], messages: int,
        actions: Sequence[PersonAction] | None = None, dies_at: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, seed=seed, effects=effects, dies_at=dies_at)
        self.telegram: Telegram = Telegram(self.store.time, on_send_error=lambda call, error: None)
        #: What people have done.
        self.actions: list[PersonAction] = []
        #: The records of the bot at the end.
        self.records: dict[Any, Any] = {}
        #: How many messages of the bot came a second time.
        self.repeated: int = 0
        self._given = actions
        self._messages = messages
        self._choose = random.Random(f"people {seed}")
        self._commands: list[str] = []
        self._bot = ""
        self._inbox: list[dict[str, Any]] = []
        self._new: list[asyncio.Event] = []
        #: The last call for each answer of an update, and of turns and timers to each chat, with the number of deaths
        #: before it and its message; and the messages that came a second time.
        self._sent: dict[Any, tuple[dict[str, Any], int, Any]] = {}
        self._again: list[Any] = []
        #: What each message says, with its buttons. The messages live as long as this.
        self._texts: dict[int, str] = {}

    def said(self) -> dict[int, list[str]]:
        """Return what the bot has said to each person, in order, without what came a second time.

        Edits of handlers count. Those of turns do not: they show a text while it grows, or end a question.
        """
        said = {}
        for person in sorted({each.person for each in self.actions}):
            said[person] = [self._texts[id(message)] for message in self._messages_of(person)]
        return said

    def _messages_of(self, person: int) -> list[dict[str, Any]]:
        """Return the messages of the bot to a person, without those that came a second time."""
        seen = self.telegram.seen(ChatThread(person, None))
        return [each for each in seen if each["from"]["is_bot"] and all(each is not other for other in self._again)]

    async def _live(self) -> None:
        storage = self.store.storage()
        module = self._load(storage)
        with _only_storage(storage):
            router = router_of(module, self.path, storage)
        fsm = router.fsm
        assert fsm is not None
        self._bot, self._commands = fsm.bot, _commands(router)
        fsm.send = fsm.send or self._send
        fsm.client = _Client(self)
        arrived = asyncio.Event()
        self._new.append(arrived)
        async with fsm, started(workers_of(router, vars(module))), router.serving(self._send, fsm.client):
            while True:
                if not self._inbox:
                    arrived.clear()
                    await arrived.wait()
                update = self._inbox[0]
                await self._handle(router, update)
                self._inbox.remove(update)

    async def _handle(self, router: Router, update: dict[str, Any]) -> None:
        before = set(self.simulation.loop.pending())
        try:
            calls = await router.handle(copy.deepcopy(update))
        except Exception as error:
            if self.simulation.loop.over:
                # The coroutines of a dead process are closed at the end.
                raise
            self.errors.append(f"the handler of {self._doing} raises {_told(error)}")
            calls = []
        decides = router.is_control(Update.of(update))
        for number, call in enumerate(calls):
            # A press that answers a turn ends its question, which is an edit of the turn.
            await self._send(call, None if decides else (update["update_id"], number))
        for task in self.simulation.loop.pending():
            if task not in before and task.process is self._process and task.line is not None:
                self.left.setdefault(task.line, self._doing)

    async def _send(self, call: dict[str, Any], of: tuple[int, int] | None = None) -> None:
        """Send a call; ``of``: its update, and its number among the answers. A turn or a timer has none."""
        await asyncio.sleep(CALL)
        message = await self.telegram.send(call)
        if message is not None and call["method"].startswith("send"):
            before, at, shown = self._sent.get(of or call.get("chat_id"), _NOTHING)
            if before == call and at < self.deaths:
                # It was sent and not noted when the process died.
                self.repeated += 1
                self._again.append(message if of is not None else shown)
            self._sent[of or call.get("chat_id")] = call, self.deaths, message
        if message is not None and (of is not None or call["method"].startswith("send")):
            self._texts[id(message)] = "".join([text_of(message), *(f" [{each.text}]" for each in buttons_of(message))])
        self._touch(self._process)
        await asyncio.sleep(CALL)

    # People

    async def _act(self) -> None:
        await self._settled()
        for number in range(len(self._given) if self._given is not None else self._messages):
            action = self._given[number] if self._given is not None else self._chosen()
            self._begin(quoted(action.what))
            self.actions.append(self._do(action))
            await self._settled()

    async def _busy(self) -> bool:
        # A turn that runs is due when its claim would end.
        due = await self.store.memory.due(TURNS, before=self.store.time() + SOON)
        return bool(self._inbox or due)

    def _chosen(self) -> PersonAction:
        person = self._choose.choice([FIRST_PERSON, FIRST_PERSON, FIRST_PERSON + 1])
        shown = self._messages_of(person)
        labels = [each.text for each in buttons_of(shown[-1]) if each.data is not None or each.types] if shown else []
        drawn = self._choose.random()
        if labels and drawn < 0.6:
            return PersonAction(person, self._choose.choice(labels), presses=True)
        if self._commands and (not shown or drawn > 0.75):
            return PersonAction(person, self._choose.choice(self._commands))
        return PersonAction(person, self._choose.choice(TEXTS))

    def _do(self, action: PersonAction) -> PersonAction:
        """Press the button, if there is one with this label, else say it; return what was done."""
        user = {"id": action.person, "is_bot": False, "first_name": f"Person{action.person - FIRST_PERSON + 1}"}
        for message in reversed(self._messages_of(action.person) if action.presses else []):
            for button in buttons_of(message):
                if button.text == action.what and button.data is not None:
                    pressed = self.telegram.pressed(user, copy.deepcopy(message), button)
                    self._deliver(self.telegram.update("callback_query", pressed))
                    return action
        entities = [{"type": "bot_command", "offset": 0, "length": len(action.what.split(maxsplit=1)[0])}]
        fields = {"entities": entities} if action.what.startswith("/") else {}
        said = self.telegram.said(user, {"id": action.person, "type": "private"}, None, text=action.what, **fields)
        self._deliver(self.telegram.update("message", copy.deepcopy(said)))
        return action._replace(presses=False)

    def _deliver(self, update: dict[str, Any]) -> None:
        self._inbox.append(update)
        for each in self._new:
            each.set()

    async def _look(self) -> None:
        if not self._bot:
            # Its file could not be loaded.
            return
        async for entry in self.store.memory.scan(self._bot):
            state = await self.store.memory.get_state(self._bot, entry.key)
            data = await self.store.memory.get_data(self._bot, entry.key)
            self.records[entry.key] = (state and state.flow, state and state.state, data)


_NOTHING: Final[tuple[Any, int, Any]] = (None, 0, None)


class _Client(ChatClient):
    """``ctx.bot``, whose calls are made at once, and so again if the handler runs again."""

    def __init__(self, run: BotRun) -> None:
        super().__init__(run.telegram)
        self._run = run

    async def call(self, method: str, /, **params: Any) -> Any:
        line = line_of_user(sys._getframe(1))
        if line is not None and not method.startswith(HARMLESS):
            self._run.effects[SeenEffect(line, f"{method} of ctx.bot")] += 1
        return await super().call(method, **params)


class FlowRun(CrashRun):
    """A durable run of a flow."""

    def __init__(
        self,
        path: Path,
        *,
        seed: int,
        effects: Sequence[str],
        name: str,
        shared: dict[Any, Any],
        dies_at: int | None = None,
    ) -> None:
        super().__init__(path, seed=seed, effects=effects, dies_at=dies_at)
        self.result: Any = None
        #: Why the run is stuck at the end.
        self.stuck: str | None = None
        self._name, self._shared = name, shared

    async def _live(self) -> None:
        storage = self.store.storage()
        flow = getattr(self._load(storage), self._name, None)
        if not isinstance(flow, NodeFlow):
            raise UsageError(f"{self.path.name} has no node flow {quoted(self._name)}")
        async with storage:
            self._begin("the run")
            try:
                self.result = await flow.run(
                    copy.deepcopy(self._shared), flow_id="crash-test", if_exists="resume", storage=storage, keep=3600
                )
            except RunStuck as error:
                self.stuck = str(error)
            self._touch(self._process)

    async def _act(self) -> None:
        await asyncio.sleep(DAY)

    async def _look(self) -> None:
        pass


def _commands(router: Router) -> list[str]:
    found = {
        f"/{name}"
        for placed in router._flat()
        for each in placed.filters
        if isinstance(each, command)
        for name in each.names
    }
    return sorted(found)


def _told(error: BaseException | None) -> str:
    return str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"


# The calls that reach beyond the process

_watch: Callable[[str, str], None] | None = None
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _watch is None or event not in OUTSIDE:
        return
    if event == "open" and (not isinstance(args[1], str) or not set(args[1]) & set("wax+")):
        return
    frame: FrameType | None = sys._getframe(1)
    line = line_of_user(frame)
    if line is not None:
        shown = (
            [args[0], args[1]] if event in ("open", "os.rename", "socket.connect", "http.client.connect") else args[:1]
        )
        if event.startswith("socket."):
            shown = [args[-1]]
        _watch(f"{event}({', '.join(map(repr, shown))})", line)


@contextlib.contextmanager
def _outside(saw: Callable[[str, str], None]) -> Iterator[None]:
    """Call a function with each call of the user's code that reaches beyond the process."""
    global _watch, _hooked
    if not _hooked:
        # A hook cannot be removed.
        sys.addaudithook(_audit)
        _hooked = True
    _watch = saw
    try:
        yield
    finally:
        _watch = None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing: the library warns of each kill."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _only_storage(storage: Storage) -> Iterator[None]:
    """Let every URL of a storage lead to this one."""
    before = urls.open_storage
    urls.open_storage = lambda url, **options: storage
    try:
        yield
    finally:
        urls.open_storage = before


@contextlib.contextmanager
def _own_types() -> Iterator[None]:
    """Forget the classes of other programs: the file registers its own anew with each life."""
    before = dict(types._OWNERS)
    for key in [key for key, owner in before.items() if not getattr(owner, "__module__", "").startswith("stepwell.")]:
        del types._OWNERS[key]
    try:
        yield
    finally:
        types._OWNERS.clear()
        types._OWNERS.update(before)


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    global _watch
    before, _watch = _watch, None
    try:
        yield
    finally:
        _watch = before
