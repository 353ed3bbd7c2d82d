"""LangGraph: checkpoints of threads and long-term memory in a Stepwell storage.

::

    saver = StepwellSaver("postgresql://localhost/agents", ownership="fence")
    graph = builder.compile(checkpointer=saver)
"""

from stepwell.engine import require

require("langgraph.checkpoint.base", "langgraph", distribution="langgraph-checkpoint", minimum="4.0", below="5")

from stepwell.adapters.langgraph.ownership import StaleWriter  # noqa: E402 - checked first
from stepwell.adapters.langgraph.saver import StepwellSaver, WriteOwnership  # noqa: E402 - checked first
from stepwell.adapters.langgraph.store import StepwellStore  # noqa: E402 - checked first
from stepwell.adapters.langgraph.turns import run_graph, run_tool  # noqa: E402 - checked first

__all__ = ["StaleWriter", "StepwellSaver", "StepwellStore", "WriteOwnership", "run_graph", "run_tool"]
