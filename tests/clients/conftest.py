from tests.server.conftest import kv_blocks, serve, tiny_folder

__all__ = ["kv_blocks", "serve", "tiny_folder"]
