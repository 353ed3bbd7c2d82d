"""Flows of nodes that work on one shared state."""

from stepwell.errors import FlowChanged, Parked, RunExists, RunFinished, UnknownRun
from stepwell.nodes.async_batch import run_async_batch
from stepwell.nodes.batch import BatchNode
from stepwell.nodes.engine.ids import new_flow_id
from stepwell.nodes.engine.monitor import Run
from stepwell.nodes.engine.on_error import Failed
from stepwell.nodes.engine.position import Step, step
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
    "Failed",
    "FlowChanged",
    "Node",
    "NodeFlow",
    "Parallel",
    "Parked",
    "ProgressBar",
    "Run",
    "RunExists",
    "RunFinished",
    "Sleep",
    "Step",
    "UnknownRun",
    "Wait",
    "linear",
    "new_flow_id",
    "parallel",
    "run_async_batch",
    "step",
    "subscribe",
    "with_error_handling",
    "worker",
]
