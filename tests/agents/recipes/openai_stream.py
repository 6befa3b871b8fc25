"""OpenAI's client: async, streaming, a conversation of three turns."""

import asyncio

from openai import AsyncOpenAI


async def main() -> None:
    messages = []
    async with AsyncOpenAI() as client:
        for question in ("Hello!", "Tell me more.", "And then?"):
            messages.append({"role": "user", "content": question})
            stream = await client.chat.completions.create(
                model="gpt-4o", messages=messages, stream=True, stream_options={"include_usage": True}
            )
            said = ""
            async for chunk in stream:
                if chunk.choices:
                    said += chunk.choices[0].delta.content or ""
            messages.append({"role": "assistant", "content": said})
            print(said)


asyncio.run(main())
