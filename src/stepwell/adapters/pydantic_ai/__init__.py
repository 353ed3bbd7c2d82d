"""pydantic-ai: agents in the turns of a chat and in the nodes of a durable run.

::

    @turns.handler
    async def answer(turn):
        await run_agent(turn, agent, deps=deps)
"""

from stepwell.engine import require

require("pydantic_ai", "pydantic-ai", distribution="pydantic-ai-slim", minimum="2.60", below="3")

from stepwell.adapters.pydantic_ai.durability import StepwellDurability  # noqa: E402 - checked first
from stepwell.adapters.pydantic_ai.turns import run_agent  # noqa: E402 - checked first

__all__ = ["StepwellDurability", "run_agent"]
