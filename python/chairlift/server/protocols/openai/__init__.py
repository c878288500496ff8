"""The OpenAI API over HTTP; docs/openai.md says what is supported."""

from chairlift.server.protocols.openai.routes import routes

__all__ = ["routes"]
