"""OpenAI Agents SDK on chat completions, streamed.

Tracing goes to OpenAI unless it is switched off: OPENAI_AGENTS_DISABLE_TRACING=1.
"""

import asyncio

from agents import Agent, Runner, function_tool, set_default_openai_api


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


async def main() -> None:
    set_default_openai_api("chat_completions")
    clerk = Agent(name="Clerk", instructions="You are a weather clerk.", tools=[weather])
    run = Runner.run_streamed(clerk, "Is it warmer in Paris or in Lisbon?")
    async for _ in run.stream_events():
        pass
    print(run.final_output)


asyncio.run(main())
