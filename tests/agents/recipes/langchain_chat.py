"""LangChain on LangGraph: an agent with a tool, its messages streamed."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


agent = create_agent(ChatOpenAI(model="gpt-4o"), tools=[weather], system_prompt="You are a weather clerk.")
question = {"messages": [{"role": "user", "content": "Is it warmer in Paris or in Lisbon?"}]}
for token, _ in agent.stream(question, stream_mode="messages"):
    print(token.text, end="")
print()
