"""OpenAI's client: an answer in the form of a class."""

from openai import OpenAI
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


completion = OpenAI().chat.completions.parse(
    model="gpt-4o",
    messages=[{"role": "user", "content": "How warm is it in Lisbon?"}],
    response_format=Weather,
)
print(completion.choices[0].message.parsed)
