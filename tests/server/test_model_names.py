"""What requests may call the model: its folder's name, or the names that the settings give."""

from pathlib import Path

import grpc
import pytest
from chairlift.api.config import checked
from chairlift.api.errors import ConfigError
from chairlift.server.config import ServerConfig
from chairlift.v1 import server_pb2, tokenizer_pb2

from tests.server.connection import start, status_of

NAMES = ("main", "chat", "gpt-4o")


async def test_every_name_of_the_model_is_accepted_by_every_service(serve):
    async with serve(server={"served_model_name": NAMES}) as server:
        for name in ("", *NAMES):
            info = await server.info.GetModelInfo(server_pb2.GetModelInfoRequest(model=name))
            assert (info.name, list(info.aliases)) == ("main", ["chat", "gpt-4o"])
            await server.info.PlanMemory(server_pb2.PlanMemoryRequest(model=name))
            await server.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(model=name, text="a"))
            received = await server.say(start("a", model=name))
            assert received.end("a").HasField("finished")


async def test_another_name_is_not_found_and_the_error_has_the_names(serve, tiny_folder):
    async with serve(server={"served_model_name": NAMES}) as server:
        for name in ("other", str(tiny_folder), tiny_folder.name, "MAIN", "main,chat"):
            for status in (
                await status_of(
                    server.info.GetModelInfo(server_pb2.GetModelInfoRequest(model=name))
                ),
                (await server.one(start("a", model=name))).status,
            ):
                assert (status.code, status.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")
                assert "'main' and 'chat' and 'gpt-4o'" in status.message


async def test_the_folder_gives_the_name_and_its_path_stays_on_the_server(serve, tiny_folder):
    async with serve() as server:
        info = await server.info.GetModelInfo(server_pb2.GetModelInfoRequest())
        assert (info.name, list(info.aliases)) == (tiny_folder.name, [])


def test_names_of_models_without_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    (tmp_path / "llama").symlink_to(folder)
    monkeypatch.chdir(folder)
    expected = {
        "demo": "demo",
        "owner/name": "owner/name",
        str(folder): "real",
        f"{folder}/": "real",
        ".": "real",
        "../llama": "llama",
        "..": tmp_path.name,
    }
    for model, name in expected.items():
        assert ServerConfig(model=model).model_names == (name,)


@pytest.mark.parametrize("given", [("a,b", "c"), ["a", "b", "c"], "a, b,c", ["a,", "b", "c"]])
def test_names_come_as_a_list_or_joined_by_commas(given: object) -> None:
    config = checked(ServerConfig, served_model_name=given)
    assert config.model_names == ("a", "b", "c")


@pytest.mark.parametrize("given", ["", ",", ["a", "a"], "a b", ["x" * 129], "né", 3])
def test_wrong_names_are_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="served_model_name"):
        checked(ServerConfig, served_model_name=given)
