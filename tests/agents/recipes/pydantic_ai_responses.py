"""Pydantic AI on Responses."""

from pydantic_ai import Agent

agent = Agent("openai-responses:gpt-5-mini", instructions="You are a weather clerk.")


@agent.tool_plain
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


print(agent.run_sync("Is it warmer in Paris or in Lisbon?").output)
