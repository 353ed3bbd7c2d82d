"""``stepwell resume``, ``cancel``, ``pause``, ``answer``, ``complete`` and ``set --run``: changes of runs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Awaitable, Callable
from typing import Any

from stepwell import Storage
from stepwell.cli.arguments import positive, stored_assignment, stored_value
from stepwell.cli.code import flow_named
from stepwell.cli.command import Commands, Work, add_command, add_yes, confirmed, with_storage
from stepwell.cli.output import NOT_FOUND_OR_CHANGED, cell, json_text, note, report
from stepwell.cli.runs.reading import run_json
from stepwell.cli.writes import user_name
from stepwell.engine import RUNS, counted, masked_field, quoted
from stepwell.errors import InvalidOption, Parked, StepwellError, UsageError, VersionChanged
from stepwell.nodes import Run
from stepwell.nodes.engine import message_of
from stepwell.operate import runs
from stepwell.operate.audit import record_change
from stepwell.operate.edits import Edit
from stepwell.operate.run_list import RunFilter, listed_runs

__all__ = ["add", "set_shared"]


def add(commands: Commands) -> None:
    """Add the commands."""
    resume = add_command(
        commands,
        "resume",
        "continue a run here, or put failed, stuck and paused runs into the queue for a worker",
        action=_resume,
        example="stepwell resume order-42 flows.py:order",
    )
    resume.add_argument("id", nargs="?", help="the id of the run")
    resume.add_argument(
        "code", nargs="?", metavar="module:flow", help="run it here, with this flow; without it, a worker continues it"
    )
    resume.add_argument(
        "--status", choices=("failed", "stuck", "paused"), help="all runs of this status, instead of one id"
    )
    resume.add_argument("--flow", metavar="NAME", help="with --status: only runs of this flow")
    resume.add_argument("--limit", type=positive, metavar="N", help="with --status: the most runs")
    add_yes(resume)

    cancel = add_command(
        commands,
        "cancel",
        "end runs as cancelled, wherever they run",
        action=_cancel,
        example="stepwell cancel order-42 --reason 'paid twice'",
    )
    cancel.add_argument("ids", nargs="+", metavar="id", help="the id of a run")
    cancel.add_argument("--reason", help="why; stored with the run")
    add_yes(cancel)

    pause = add_command(
        commands,
        "pause",
        "stop runs after the node that they run now, until they are resumed",
        action=_pause,
        example="stepwell pause order-42",
    )
    pause.add_argument("ids", nargs="+", metavar="id", help="the id of a run")
    add_yes(pause)

    answer = add_command(
        commands,
        "answer",
        "answer the question that a run waits on",
        action=_answer,
        example="""stepwell answer order-42 '{"approved": true}'""",
    )
    answer.add_argument("id", help="the id of the run or of its wait")
    answer.add_argument("value", help="the answer, as JSON or text")
    add_yes(answer)

    complete = add_command(
        commands,
        "complete",
        "say what an interrupted call has returned that must not run twice",
        action=_complete,
        example="""stepwell complete order-42 Pay --result '{"receipt": "r-815"}'""",
    )
    complete.add_argument("id", help="the id of the run, which is stuck")
    complete.add_argument("node", help="the path of the node, as the reason of the run names it")
    complete.add_argument("--result", required=True, metavar="VALUE", help="what the call returned, as JSON or text")
    complete.add_argument("--item", type=int, metavar="N", help="the index of the item, if several were interrupted")
    add_yes(complete)


def _resume(options: argparse.Namespace) -> int:
    if (options.id is None) == (options.status is None):
        raise InvalidOption("give the id of a run, or --status failed, stuck or paused")
    if options.id is not None and (options.flow is not None or options.limit is not None):
        raise InvalidOption("--flow and --limit need --status")

    async def many(storage: Storage) -> int:
        wanted = RunFilter(statuses=(options.status,), flow=options.flow)
        found: list[Run] = []
        async for each in listed_runs(storage, wanted):
            if len(found) == options.limit:
                break
            if isinstance(each.run, Run):
                found.append(each.run)
        ids = [run.flow_id for run in found]
        undone = [run for run in found if run.status == "failed" and run.undone]
        wanted_again = [run for run in found if run not in undone]
        again: dict[str, list[str]] = {}
        for run in found:
            if calls := await _show(options, storage, run):
                again[run.flow_id] = calls
        told: dict[str, Any] = {"runs": ids, **({"undone": [run.flow_id for run in undone]} if undone else {})}
        if again:
            told["called_again"] = again
        for run in undone:
            note(f"stepwell: skipped: {cell(run.flow_id)}: its completed nodes were undone; start a new run")
        if options.dry_run or not wanted_again:
            return report(options, {"resumed": [], **told}, "nothing was changed")
        calls = sorted({call for each in again.values() for call in each})
        question = f"Put {counted(len(wanted_again), 'run')} into the queue again{_and_call(calls)}?"
        if not confirmed(options, question):
            return 1
        done: list[str] = []
        for run in wanted_again:
            try:
                if await runs.retry(storage, run, who=user_name()):
                    done.append(run.flow_id)
            except UsageError as error:
                # It was undone meanwhile, or its parent was cancelled.
                note(f"stepwell: skipped: {cell(run.flow_id)}: {cell(str(error))}")
        text = f"put {counted(len(done), 'run')} into the queue, for a worker"
        return report(options, {"resumed": done, **told}, text)

    async def one(storage: Storage) -> int:
        run = await runs.show_run(storage, options.id)
        if options.code is None and run.status not in ("failed", "stuck", "paused"):
            here = f" To continue it here, give its flow: stepwell resume {shlex.quote(run.flow_id)} module:flow"
            raise UsageError(
                f"run {quoted(run.flow_id)} is {run.status}; only failed, stuck and paused runs can be put "
                "into the queue." + ("" if run.status in ("cancelled", "finished") else here)
            )
        flow = None if options.code is None else flow_named(options.code, run.flow)
        # With its flow, a run that is stuck in an effect stays so, and only an undo() calls its effects again.
        retried = flow is None or run.undoing is not None
        again = await _show(options, storage, run, retried=retried)
        told = {"called_again": again} if again else {}
        if options.dry_run:
            return report(options, {"resumed": False, "run": run_json(run), **told}, "nothing was changed (dry run)")
        if not confirmed(options, f"Resume run {run.flow_id}{_and_call(again)}?"):
            return 1
        if flow is None:
            done = await runs.retry(storage, run, who=user_name())
            text = "put into the queue; a worker continues it" if done else "another process resumes it"
            now = run_json(await runs.show_run(storage, run.flow_id))
            return report(options, {"resumed": done, "run": now, **told}, text)
        await record_change(storage, user_name(), f"resumed run {run.flow_id} here")
        try:
            shared = await flow.resume(options.id, storage=storage)
        except Parked as parked:
            waiting = run_json(await runs.show_run(storage, run.flow_id))
            return report(
                options, {"resumed": True, "run": waiting}, f"the run goes on, and waits: {cell(str(parked))}"
            )
        except StepwellError:
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {cell(message_of(error))}"
            raise UsageError(f"run {quoted(run.flow_id)} failed again: {failure}") from error
        result = runs.shown_value(shared)
        text = f"finished: {json_text(result, indent=2)}"
        return report(options, {"resumed": True, "finished": True, "shared": result}, text)

    return with_storage(options, many if options.id is None else one, patient=options.code is not None)


async def _show(options: argparse.Namespace, storage: Storage, run: Run, *, retried: bool = True) -> list[str]:
    """Print a run that is to be resumed, and return the calls of unknown outcome that are then made again."""
    again = await runs.called_again(storage, run) if retried else []
    if not options.json:
        print(f"{cell(run.flow_id)}: {cell(run.flow)} {run.status} at {cell(run.node)}")
        for call in again:
            print(f"  calls again, although nobody knows whether it was done: {cell(call)}")
        if again and run.undoing is None:
            print(f"  if it was done: stepwell complete {cell(shlex.quote(run.flow_id))} NODE --result VALUE")
    return again


def _and_call(calls: list[str]) -> str:
    """Return the part of a question that names the calls that a resumed run makes again."""
    return f", and call again {', '.join(map(cell, calls))}" if calls else ""


def _cancel(options: argparse.Namespace) -> int:
    async def cancel(storage: Storage, flow_id: str) -> Run:
        return await runs.cancel(storage, flow_id, options.reason, who=user_name())

    return with_storage(options, _stopping(options, cancel, "Cancel", "cancelled"))


def _pause(options: argparse.Namespace) -> int:
    async def pause(storage: Storage, flow_id: str) -> Run:
        return await runs.pause(storage, flow_id, who=user_name())

    return with_storage(options, _stopping(options, pause, "Pause", "paused"))


def _stopping(
    options: argparse.Namespace, stop: Callable[[Storage, str], Awaitable[Run]], verb: str, done: str
) -> Work:
    async def work(storage: Storage) -> int:
        found = [await runs.show_run(storage, each) for each in dict.fromkeys(options.ids)]
        if not options.json:
            for run in found:
                print(f"{cell(run.flow_id)}: {cell(run.flow)} {run.status} at {cell(run.node)}")
        ids = [run.flow_id for run in found if run.status != done]
        already = [run.flow_id for run in found if run.status == done]
        told = {"runs": [run.flow_id for run in found], "already": already}
        if options.dry_run:
            return report(options, {done: [], **told}, "nothing was changed (dry run)")
        if not ids:
            are = f"{', '.join(map(cell, already))} {'is' if len(already) == 1 else 'are'}"
            report(options, {done: [], **told, "failed": []}, f"{are} {done} already; nothing was changed")
            return NOT_FOUND_OR_CHANGED
        if not confirmed(options, f"{verb} {'this run' if len(ids) == 1 else f'these {len(ids)} runs'}?"):
            return 1
        stopped: list[str] = []
        undoing: list[str] = []
        failed: list[dict[str, str]] = []
        for each in ids:
            try:
                run = await stop(storage, each)
            except StepwellError as error:
                failed.append({"id": each, "error": str(error)})
            else:
                (stopped if run.undoing is None else undoing).append(each)
        text = f"{done} {counted(len(stopped), 'run')}"
        if already:
            text += f"; {done} already: {', '.join(map(cell, already))}"
        if undoing:
            text += f"; a worker undoes the nodes of {', '.join(map(cell, undoing))}, then it is {done}"
        report(options, {done: stopped, **told, "undoing": undoing, "failed": failed}, text)
        for problem in failed:
            note(f"stepwell: not {done}: {cell(problem['id'])}: {cell(problem['error'])}")
        return 1 if failed else 0

    return work


def _answer(options: argparse.Namespace) -> int:
    value = stored_value(options.value)

    async def work(storage: Storage) -> int:
        run = await runs.show_run(storage, options.id)
        wait = runs.wait_of(run, options.id)
        question = runs.shown_value(wait.question)
        if not options.json:
            print(f"{cell(run.flow_id)} asks at {cell(wait.node)}: {json_text(question)}")
        told = {"run": run.flow_id, "wait": wait.id, "question": question}
        if options.dry_run:
            return report(options, {"answered": False, **told}, "nothing was changed (dry run)")
        if not confirmed(options, "Answer it?"):
            return 1
        # The id of the wait that was shown: the run may ask another question meanwhile.
        await runs.answer(storage, wait.id, value, who=user_name())
        return report(options, {"answered": True, **told}, "answered; a worker continues the run")

    return with_storage(options, work)


def _complete(options: argparse.Namespace) -> int:
    result = stored_value(options.result, "the result")

    async def work(storage: Storage) -> int:
        run = await runs.show_run(storage, options.id)
        if run.status != "stuck":
            raise UsageError(
                f"run {quoted(run.flow_id)} is {run.status}; only a run that is stuck has calls of unknown outcome"
            )
        if not options.json:
            print(f"{cell(run.flow_id)}: {cell(run.flow)} {run.status} at {cell(run.node)}: {cell(run.reason or '')}")
        told = {"run": run.flow_id, "node": options.node}
        if options.dry_run:
            return report(options, {"completed": False, **told}, "nothing was changed (dry run)")
        if not confirmed(options, f"Complete the call of {options.node} with this result?"):
            return 1
        await runs.complete(storage, run, options.node, result, options.item, who=user_name())
        return report(options, {"completed": True, **told}, "completed; a worker continues the run")

    return with_storage(options, work)


def set_shared(options: argparse.Namespace) -> int:
    """Change fields of the shared state of a run: ``stepwell set --run ID FIELD=VALUE``."""
    for name in ("state", "flow", "revision"):
        if getattr(options, name) is not None:
            raise InvalidOption(f"--{name} is for conversations; with --run only fields are changed")
    fields = [each for each in (options.bot, options.key, *options.fields) if each is not None]
    # They are no bot and no key.
    options.bot = options.key = None
    changes = Edit(fields=dict(map(stored_assignment, fields)), unset=tuple(options.unset))
    changes.check()

    async def work(storage: Storage) -> int:
        run = await runs.show_run(storage, options.run)
        record = await runs.record_of_run(storage, run.flow_id)
        if options.version not in (None, record.version):
            raise VersionChanged(storage.address(RUNS, run.flow_id).text)
        before = await runs.shared_of(storage, run.flow_id)
        if not options.json:
            for name in (*changes.fields, *changes.unset):
                new = json_text(_shown(name, changes.fields[name])) if name in changes.fields else "removed"
                print(f"{cell(name)}: {json_text(before.get(name))} -> {new}")
        if options.dry_run:
            return report(options, {"changed": False, "run": run.flow_id}, "nothing was changed (dry run)")
        if not confirmed(options, f"Change the shared state of run {run.flow_id}?"):
            return 1
        await runs.change_shared(storage, run, changes, version=record.version, who=user_name())
        after = await runs.record_of_run(storage, run.flow_id)
        told = {"changed": True, "run": run.flow_id, "shared": await runs.shared_of(storage, run.flow_id)}
        return report(options, {**told, "version": after.version}, f"changed; version {after.version}")

    return with_storage(options, work)


def _shown(name: str, value: Any) -> Any:
    return masked_field(name, runs.shown_value(value))
