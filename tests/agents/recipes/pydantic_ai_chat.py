"""Pydantic AI on chat completions: a tool, then a typed answer."""

from pydantic import BaseModel
from pydantic_ai import Agent


class Verdict(BaseModel):
    warmer: str


agent = Agent("openai-chat:gpt-4o", output_type=Verdict, instructions="You are a weather clerk.")


@agent.tool_plain
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


print(agent.run_sync("Is it warmer in Paris or in Lisbon?").output)
