"""TLS: listening beyond loopback, connecting, and files that change meanwhile."""

import asyncio
import ssl

import pytest
from chairlift.api.config import engine_config
from chairlift.api.errors import ConfigError, Reason, RequestError, ServerError
from chairlift.client import connect, connect_async
from chairlift.server.app.server import Server, ServerConfig
from chairlift.server.security.auth import certificate_tenant
from cryptography.hazmat.primitives import serialization

from tests.server.certificates import Certificates


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path / "tls")


def refused(**settings):
    """The one line that a server with these settings ends with."""
    with pytest.raises(ConfigError) as error:
        Server(engine_config(), ServerConfig(**settings))
    assert "\n" not in str(error.value)
    return str(error.value)


async def test_a_client_that_trusts_the_authority_is_answered(serve, certificates):
    async with (
        serve(listen="127.0.0.1:0", server=certificates.tls) as server,
        connect_async(server.address, **certificates.trust) as client,
    ):
        assert await client.generate([1, 2, 3], max_tokens=9, seed=1, ignore_eos=True).text()


async def test_plain_text_and_strange_authorities_reach_nothing(serve, certificates, tmp_path):
    unknown = Certificates(tmp_path / "unknown")
    async with serve(listen="127.0.0.1:0", server=certificates.tls) as server:
        for trust in ({}, unknown.trust):
            async with connect_async(server.address, **trust) as client:
                with pytest.raises(ServerError, match="UNAVAILABLE"):
                    await client.is_serving()


async def test_mutual_tls_requires_a_certificate_of_the_authority(serve, certificates, tmp_path):
    unknown = Certificates(tmp_path / "unknown")
    forged = {**unknown.client, **certificates.trust}
    async with serve(listen="127.0.0.1:0", server=certificates.mutual_tls) as server:
        async with connect_async(server.address, **certificates.client) as client:
            assert await client.is_serving()
        for shown in (certificates.trust, forged):
            async with connect_async(server.address, **shown) as client:
                with pytest.raises(ServerError, match="UNAVAILABLE"):
                    await client.is_serving()


async def certificate_of(address):
    """What a new connection is shown."""
    host, _, port = address.rpartition(":")
    return (await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))).strip()


async def test_a_new_connection_sees_the_new_certificate(serve, certificates):
    async with serve(listen="127.0.0.1:0", server=certificates.tls) as server:
        first = await certificate_of(server.address)
        renewed = certificates.renew().decode().strip()
        assert await certificate_of(server.address) == renewed != first


async def test_half_a_change_leaves_the_old_certificate(serve, certificates, caplog):
    async with serve(listen="127.0.0.1:0", server=certificates.tls) as server:
        first = await certificate_of(server.address)
        certificates.key.write_text("half a k")
        assert await certificate_of(server.address) == first
        assert await certificate_of(server.address) == first
        assert caplog.text.count("the old files stay in use") == 1
        renewed = certificates.renew().decode().strip()
        assert await certificate_of(server.address) == renewed


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:50051", "8.8.8.8:1"])
def test_an_address_that_others_reach_needs_tls_and_authentication(certificates, listen):
    for settings in ({}, certificates.tls):
        message = refused(listen=listen, **settings)
        assert "can be reached from other machines" in message
        assert "--auth-tokens or --tls-client-ca" in message


async def test_with_mutual_tls_the_server_listens_to_all(certificates):
    server = Server(engine_config(), ServerConfig(listen="0.0.0.0:0", **certificates.mutual_tls))
    address = await server.bind()
    port = address.rpartition(":")[2]
    async with connect_async(f"127.0.0.1:{port}", **certificates.client) as client:
        assert not await client.is_serving()
    await server.stop(0)


async def test_with_tls_and_tokens_the_server_listens_to_all(certificates, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("ann:ann-0123456789abcdef")
    settings = {"listen": "0.0.0.0:0", "auth_tokens": str(tokens)}
    assert "can be reached from other machines" in refused(**settings)
    server = Server(engine_config(), ServerConfig(**settings, **certificates.tls))
    address = await server.bind()
    port = address.rpartition(":")[2]
    secrets = {"token": "ann-0123456789abcdef", **certificates.trust}
    async with connect_async(f"127.0.0.1:{port}", **secrets) as client:
        assert (await client.server_info()).version
    await server.stop(0)


PROMPT = list(range(1, 60))


async def cached_tokens(client):
    """How much of a prompt the prefix cache of the client's tenant knew."""
    generation = client.generate(PROMPT, max_tokens=1, ignore_eos=True)
    await generation.text()
    return generation.finished.usage.cached_tokens


async def test_a_name_of_another_kind_is_another_tenant(serve, certificates):
    pairs = {
        "cn": certificates.pair("cn", common_name="a"),
        "dns": certificates.pair("dns", "a"),
        "uri": certificates.uri_pair("uri", "a"),
        "email": certificates.pair("email", "a@b"),
        "email as a common name": certificates.pair("cn2", common_name="a@b"),
        "ip": certificates.pair("ip", "10.0.0.1"),
        "ip as a common name": certificates.pair("cn3", common_name="10.0.0.1"),
        "kind in the name": certificates.pair("cn4", common_name="dns:a"),
    }
    async with serve(listen="127.0.0.1:0", server=certificates.mutual_tls) as server:
        for name, pair in pairs.items():
            async with connect_async(server.address, **pair) as client:
                assert await cached_tokens(client) == 0, name
        for pair in (*pairs.values(), certificates.pair("again", "a", common_name="other")):
            async with connect_async(server.address, **pair) as client:
                assert await cached_tokens(client) == 48


async def test_a_certificate_is_no_tenant_of_a_token(serve, certificates, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a:secret-0123456789abcdef\n")
    certificate = certificates.pair("cn", common_name="a")
    settings = {**certificates.mutual_tls, "auth_tokens": str(tokens)}
    async with (
        serve(listen="127.0.0.1:0", server=settings) as server,
        connect_async(server.address, **certificate) as nameless,
        connect_async(server.address, token="secret-0123456789abcdef", **certificate) as named,
    ):
        assert await cached_tokens(named) == 0
        with pytest.raises(RequestError) as error:
            await cached_tokens(nameless)
        assert error.value.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("properties", "tenant"),
    [
        ({}, None),
        ({"x509_common_name": [b""], "peer_dns": []}, None),
        ({"x509_common_name": [b"a"]}, "cn:a"),
        ({"x509_common_name": [b"a"], "peer_dns": [b"b", b"c"]}, "dns:b"),
        ({"peer_dns": [b"b"], "peer_uri": [b"spiffe://d/e"]}, "uri:spiffe://d/e"),
        ({"peer_ip": [b"10.0.0.1"], "peer_email": [b"a@b"]}, "email:a@b"),
        ({"peer_ip": [b"::1"], "x509_common_name": [b"a"]}, "ip:::1"),
        ({"x509_common_name": ["é".encode()]}, "cn:é"),
    ],
)
def test_the_tenant_of_a_certificate_is_the_first_of_its_names(properties, tenant):
    assert certificate_tenant(properties) == tenant


@pytest.mark.parametrize("name", [b"\xff", b"\xfe", b"a\x00b", b"a\nb"])
def test_a_name_that_could_look_like_another_is_refused(name):
    with pytest.raises(RequestError, match=r"^certificate: expected a name \(dns\)") as error:
        certificate_tenant({"peer_dns": [name], "x509_common_name": [b"a"]})
    assert error.value.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("half", ["tls_cert", "tls_key", "tls_client_ca"])
def test_half_of_tls_is_refused_by_name(certificates, half):
    message = refused(**{half: certificates.mutual_tls[half]})
    assert message == f"{half}: TLS needs both tls_cert and tls_key"


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_client_ca"])
def test_a_file_that_is_missing_or_no_pem_is_refused_by_name(certificates, tmp_path, name):
    settings = certificates.mutual_tls
    missing = refused(**{**settings, name: str(tmp_path / "none.pem")})
    assert missing == f"{name}: cannot read {tmp_path}/none.pem: no such file or directory"
    (tmp_path / "letter").touch(0o600)
    (tmp_path / "letter").write_text("dear reader")
    message = refused(**{**settings, name: str(tmp_path / "letter")})
    assert name in message
    assert "in PEM" in message
    assert "reader" not in message


def test_the_key_of_another_certificate_is_refused(certificates, tmp_path):
    other = Certificates(tmp_path / "other")
    message = refused(tls_cert=str(certificates.cert), tls_key=str(other.key))
    assert (
        message == f"tls_key: {other.key} is not the key of the certificate in {certificates.cert}"
    )


def test_a_key_that_is_world_readable_is_refused(certificates):
    certificates.key.chmod(0o644)
    assert "is open to every user" in refused(**certificates.tls)
    certificates.key.chmod(0o640)
    Server(engine_config(), ServerConfig(**certificates.tls))


@pytest.mark.parametrize("address", ["10.0.0.1:50051", "host.example:50051", "0.0.0.0:1"])
@pytest.mark.parametrize("connector", [connect, connect_async])
def test_a_client_sends_no_token_over_a_network_in_plain_text(connector, address):
    with pytest.raises(ConfigError, match="plain text") as error:
        connector(address, token="a token of enough bytes")
    assert "enough" not in str(error.value)


async def test_the_metrics_stay_on_loopback(certificates):
    settings = {"listen": "127.0.0.1:0", **certificates.mutual_tls}
    assert refused(metrics_listen="0.0.0.0:0", **settings).startswith("metrics_listen: 0.0.0.0:0")


def test_an_encrypted_key_is_refused_without_a_prompt(certificates):
    key = serialization.load_pem_private_key(certificates.key.read_bytes(), None)
    certificates.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"sesame"),
        )
    )
    assert "is encrypted" in refused(**certificates.tls)
