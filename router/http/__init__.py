"""The HTTP door: OpenAI's API over the router's core."""
