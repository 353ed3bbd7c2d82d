"""Flows of nodes that work on one shared state."""

from stepwell.errors import (
    AlreadyHeld,
    CorruptRecord,
    ExecutorError,
    FlowChanged,
    InsideLoop,
    InvalidAction,
    InvalidAnswer,
    InvalidGraph,
    InvalidItems,
    InvalidKey,
    InvalidName,
    InvalidOption,
    KeptError,
    LeaseLost,
    MergeConflict,
    MissingExtra,
    NodeExited,
    NodeFlowError,
    NodeTimeout,
    OutcomeUnknown,
    Parked,
    RecordReplaced,
    RunBusy,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunIsNewer,
    RunPaused,
    RunReplaced,
    RunStuck,
    StorageError,
    StorageUnavailable,
    StoredDataError,
    TooLarge,
    TooManySteps,
    UnknownAction,
    UnknownOutcome,
    UnknownRun,
    UnknownSchedule,
    UnknownScheme,
    UnknownType,
    Unstorable,
    Unsupported,
    UsageError,
    WorkCancelled,
    WrongLoop,
)
from stepwell.nodes.async_batch import run_async_batch
from stepwell.nodes.batch.node import BatchNode
from stepwell.nodes.children import ChildMap
from stepwell.nodes.deploy.migration import StoredRun
from stepwell.nodes.events import Event, subscribe
from stepwell.nodes.flow import NodeFlow
from stepwell.nodes.graph.shape import FlowEdge, FlowGraph
from stepwell.nodes.handle import RunHandle
from stepwell.nodes.history import HistoryEntry, RunHistory
from stepwell.nodes.node import END, Node
from stepwell.nodes.parallel import Parallel, parallel
from stepwell.nodes.progress import ProgressBar
from stepwell.nodes.queue.limits import Limit
from stepwell.nodes.run.ids import new_flow_id
from stepwell.nodes.run.monitor import Run
from stepwell.nodes.run.waits import Answered
from stepwell.nodes.sequence import linear, with_error_handling
from stepwell.nodes.step import Step, effect, step
from stepwell.nodes.stream import StreamEntry, sse
from stepwell.nodes.wait import Sleep, Wait
from stepwell.nodes.walk.execution import CaughtError
from stepwell.nodes.walk.on_error import Failed
from stepwell.nodes.workers.schedule import Schedule, Schedules, cron, every
from stepwell.nodes.workers.stored import ScheduleStatus
from stepwell.nodes.workers.worker import worker

__all__ = [
    "END",
    "AlreadyHeld",
    "Answered",
    "BatchNode",
    "CaughtError",
    "ChildMap",
    "CorruptRecord",
    "Event",
    "ExecutorError",
    "Failed",
    "FlowChanged",
    "FlowEdge",
    "FlowGraph",
    "HistoryEntry",
    "InsideLoop",
    "InvalidAction",
    "InvalidAnswer",
    "InvalidGraph",
    "InvalidItems",
    "InvalidKey",
    "InvalidName",
    "InvalidOption",
    "KeptError",
    "LeaseLost",
    "Limit",
    "MergeConflict",
    "MissingExtra",
    "Node",
    "NodeExited",
    "NodeFlow",
    "NodeFlowError",
    "NodeTimeout",
    "OutcomeUnknown",
    "Parallel",
    "Parked",
    "ProgressBar",
    "RecordReplaced",
    "Run",
    "RunBusy",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunFinished",
    "RunHandle",
    "RunHistory",
    "RunIsNewer",
    "RunPaused",
    "RunReplaced",
    "RunStuck",
    "Schedule",
    "ScheduleStatus",
    "Schedules",
    "Sleep",
    "Step",
    "StorageError",
    "StorageUnavailable",
    "StoredDataError",
    "StoredRun",
    "StreamEntry",
    "TooLarge",
    "TooManySteps",
    "UnknownAction",
    "UnknownOutcome",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownScheme",
    "UnknownType",
    "Unstorable",
    "Unsupported",
    "UsageError",
    "Wait",
    "WorkCancelled",
    "WrongLoop",
    "cron",
    "effect",
    "every",
    "linear",
    "new_flow_id",
    "parallel",
    "run_async_batch",
    "sse",
    "step",
    "subscribe",
    "with_error_handling",
    "worker",
]
