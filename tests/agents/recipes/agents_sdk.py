"""OpenAI Agents SDK: a triage agent hands over to a clerk with a tool; Responses, as the SDK comes.

Tracing goes to OpenAI unless it is switched off: OPENAI_AGENTS_DISABLE_TRACING=1.
"""

from agents import Agent, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


clerk = Agent(name="Clerk", instructions="You are a weather clerk.", tools=[weather])
triage = Agent(name="Triage", instructions="Hand over to whoever can help.", handoffs=[clerk])
print(Runner.run_sync(triage, "Is it warmer in Paris or in Lisbon?").final_output)
