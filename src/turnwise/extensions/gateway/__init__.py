"""Serve a policy to any agent that speaks OpenAI's API, and record every call as a turn."""
