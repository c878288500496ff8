from tests.server.openai.conftest import api

__all__ = ["api"]
