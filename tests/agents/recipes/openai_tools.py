"""OpenAI's client: parallel tool calls, then the answer."""

import json

from openai import OpenAI

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


def weather(city: str) -> str:
    return f"{city}: {len(city) * 4} degrees"


client = OpenAI()
messages = [
    {"role": "developer", "content": "You are a weather clerk."},
    {"role": "user", "content": "Is it warmer in Paris or in Lisbon?"},
]
while True:
    completion = client.chat.completions.create(
        model="gpt-5-mini", messages=messages, tools=[WEATHER], parallel_tool_calls=True
    )
    message = completion.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        arguments = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)})
print(message.content)
