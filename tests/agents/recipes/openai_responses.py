"""OpenAI's client: Responses, streamed, with a function call; state is kept by the server."""

import json

from openai import OpenAI

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def weather(city: str) -> str:
    return f"{city}: {len(city) * 4} degrees"


client = OpenAI()
turn, previous = [{"role": "user", "content": "Is it warmer in Paris or in Lisbon?"}], None
while turn:
    with client.responses.stream(
        model="gpt-5-mini",
        instructions="You are a weather clerk.",
        input=turn,
        tools=[WEATHER],
        previous_response_id=previous,
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                print(event.delta, end="")
        response = stream.get_final_response()
    previous = response.id
    turn = [
        {"type": "function_call_output", "call_id": item.call_id, "output": weather(**json.loads(item.arguments))}
        for item in response.output
        if item.type == "function_call"
    ]
print()
