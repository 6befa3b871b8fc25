"""AutoGen: an assistant with a tool, which may call it as often as it takes."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


async def main() -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o")
    clerk = AssistantAgent(
        "clerk",
        model_client=client,
        tools=[weather],
        system_message="You are a weather clerk.",
        max_tool_iterations=5,
    )
    result = await clerk.run(task="Is it warmer in Paris or in Lisbon?")
    print(result.messages[-1].content)
    await client.close()


asyncio.run(main())
