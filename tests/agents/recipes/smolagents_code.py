"""smolagents: an agent that writes code."""

from smolagents import CodeAgent, OpenAIModel, tool


@tool
def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    return f"{city}: {len(city) * 4} degrees"


agent = CodeAgent(tools=[weather], model=OpenAIModel(model_id="gpt-4o"), verbosity_level=0)
print(agent.run("Is it warmer in Paris or in Lisbon?"))
