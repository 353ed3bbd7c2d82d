"""OpenAI Agents SDK: agents in the turns of a chat, and sessions in a Stepwell storage.

::

    session = StepwellSession("ann", "postgresql://localhost/agents")
    await Runner.run(agent, "Hello", session=session)
"""

from stepwell.engine import require

require("agents", "openai-agents", distribution="openai-agents", minimum="0.8", below="1")

from stepwell.adapters.openai_agents.session import StepwellSession  # noqa: E402 - checked first
from stepwell.adapters.openai_agents.turns import TurnResult, run_agent  # noqa: E402 - checked first

__all__ = ["StepwellSession", "TurnResult", "run_agent"]
