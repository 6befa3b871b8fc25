"""Pydantic AI on Anthropic's messages."""

from pydantic_ai import Agent

agent = Agent("anthropic:claude-sonnet-4-5", instructions="You are a weather clerk.")


@agent.tool_plain
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


print(agent.run_sync("Is it warmer in Paris or in Lisbon?").output)
