"""smolagents: an agent that calls tools."""

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return f"{city}: {len(city) * 4} degrees"


agent = ToolCallingAgent(tools=[weather], model=OpenAIModel(model_id="gpt-4o"), verbosity_level=0)
print(agent.run("Is it warmer in Paris or in Lisbon?"))
