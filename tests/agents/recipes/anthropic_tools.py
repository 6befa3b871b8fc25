"""Anthropic's client: tool use with history sent back as it came."""

from anthropic import Anthropic

WEATHER = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def weather(city: str) -> str:
    return f"{city}: {len(city) * 4} degrees"


client = Anthropic()
messages = [{"role": "user", "content": "Is it warmer in Paris or in Lisbon?"}]
while True:
    answer = client.messages.create(
        model="claude-sonnet-4-5", max_tokens=500, system="You are a weather clerk.", messages=messages, tools=[WEATHER]
    )
    messages.append({"role": "assistant", "content": answer.content})
    if answer.stop_reason != "tool_use":
        break
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
        for block in answer.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
print(answer.content[0].text)
