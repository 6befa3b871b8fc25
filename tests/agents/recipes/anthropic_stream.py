"""Anthropic's client: async, streaming, a conversation of three turns, and a count of tokens."""

import asyncio

from anthropic import AsyncAnthropic


async def main() -> None:
    messages = []
    async with AsyncAnthropic() as client:
        for question in ("Hello!", "Tell me more.", "And then?"):
            messages.append({"role": "user", "content": question})
            count = await client.messages.count_tokens(model="claude-sonnet-4-5", messages=messages)
            async with client.messages.stream(model="claude-sonnet-4-5", max_tokens=500, messages=messages) as stream:
                said = "".join([text async for text in stream.text_stream])
            messages.append({"role": "assistant", "content": said})
            print(f"{count.input_tokens} tokens: {said}")


asyncio.run(main())
