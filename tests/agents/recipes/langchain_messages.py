"""LangChain on LangGraph with Anthropic's models."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic


def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


model = ChatAnthropic(model="claude-sonnet-4-5")
agent = create_agent(model, tools=[weather], system_prompt="You are a weather clerk.")
question = {"messages": [{"role": "user", "content": "Is it warmer in Paris or in Lisbon?"}]}
print(agent.invoke(question)["messages"][-1].text)
