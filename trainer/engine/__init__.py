"""The embedded engine: an ASGI app that speaks the part of vLLM's OpenAI API that Hone uses."""
