"""The names of node flows for adapters and tools: how runs are taken from queues, stored and shown."""

from stepwell.nodes.control.requests import answer, unknown_calls
from stepwell.nodes.events import carry_trace
from stepwell.nodes.graph.plan import graph_of, program_of
from stepwell.nodes.queue.observers import is_queued, observe_submits
from stepwell.nodes.queue.partitions import holder_of
from stepwell.nodes.run.errors import message_of
from stepwell.nodes.run.ids import flow_of_wait
from stepwell.nodes.run.monitor import OpenWait, Status, history, run_of, status
from stepwell.nodes.run.table import FINAL, flow_of_index, table_of
from stepwell.nodes.step import DurableStep, durable_step
from stepwell.nodes.workers.task_queue import QueuedRun, RunTasks

__all__ = [
    "FINAL",
    "DurableStep",
    "OpenWait",
    "QueuedRun",
    "RunTasks",
    "Status",
    "answer",
    "carry_trace",
    "durable_step",
    "flow_of_index",
    "flow_of_wait",
    "graph_of",
    "history",
    "holder_of",
    "is_queued",
    "message_of",
    "observe_submits",
    "program_of",
    "run_of",
    "status",
    "table_of",
    "unknown_calls",
]
