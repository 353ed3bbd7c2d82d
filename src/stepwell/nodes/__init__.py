"""Flows of nodes that work on one shared state."""

from stepwell.errors import (
    ExecutorError,
    FlowChanged,
    InsideLoop,
    InvalidAction,
    InvalidGraph,
    InvalidItems,
    InvalidOption,
    KeptError,
    LeaseLost,
    MergeConflict,
    NodeFlowError,
    NodeTimeout,
    Parked,
    RecordReplaced,
    RunBusy,
    RunExists,
    RunFinished,
    RunReplaced,
    StorageError,
    StoredDataError,
    TooLarge,
    TooManySteps,
    UnknownAction,
    UnknownRun,
    Unstorable,
    UsageError,
    WorkCancelled,
)
from stepwell.nodes.async_batch import run_async_batch
from stepwell.nodes.batch import BatchNode
from stepwell.nodes.engine.ids import new_flow_id
from stepwell.nodes.engine.monitor import Run
from stepwell.nodes.engine.on_error import Failed
from stepwell.nodes.engine.position import Step, step
from stepwell.nodes.engine.shape import FlowEdge, FlowGraph
from stepwell.nodes.events import Event, subscribe
from stepwell.nodes.flow import NodeFlow, linear, with_error_handling
from stepwell.nodes.node import END, Node
from stepwell.nodes.parallel import Parallel, parallel
from stepwell.nodes.progress import ProgressBar
from stepwell.nodes.wait import Sleep, Wait
from stepwell.nodes.worker import worker

__all__ = [
    "END",
    "BatchNode",
    "Event",
    "ExecutorError",
    "Failed",
    "FlowChanged",
    "FlowEdge",
    "FlowGraph",
    "InsideLoop",
    "InvalidAction",
    "InvalidGraph",
    "InvalidItems",
    "InvalidOption",
    "KeptError",
    "LeaseLost",
    "MergeConflict",
    "Node",
    "NodeFlow",
    "NodeFlowError",
    "NodeTimeout",
    "Parallel",
    "Parked",
    "ProgressBar",
    "RecordReplaced",
    "Run",
    "RunBusy",
    "RunExists",
    "RunFinished",
    "RunReplaced",
    "Sleep",
    "Step",
    "StorageError",
    "StoredDataError",
    "TooLarge",
    "TooManySteps",
    "UnknownAction",
    "UnknownRun",
    "Unstorable",
    "UsageError",
    "Wait",
    "WorkCancelled",
    "linear",
    "new_flow_id",
    "parallel",
    "run_async_batch",
    "step",
    "subscribe",
    "with_error_handling",
    "worker",
]
