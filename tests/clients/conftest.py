from tests.server.conftest import kv_blocks, serve

__all__ = ["kv_blocks", "serve"]
