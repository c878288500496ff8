"""Certificates made on the spot: an authority, a server's pair and a client's."""

from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization


class Certificates:
    """Files in a folder, as a server's settings and a client name them."""

    def __init__(self, folder):
        folder.mkdir()
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.cert, self.key = folder / "server.pem", folder / "server.key"
        self.renew()
        client = self.ca.issue_cert("robot@example.org", common_name="robot")
        self.client_cert, self.client_key = folder / "client.pem", folder / "client.key"
        _write(client, self.client_cert, self.client_key)

    def renew(self):
        """Replaces the server's pair; return the new certificate."""
        leaf = self.ca.issue_cert("localhost", "127.0.0.1")
        _write(leaf, self.cert, self.key)
        return leaf.cert_chain_pems[0].bytes()

    @property
    def tls(self):
        """Settings of a server."""
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}

    @property
    def mutual_tls(self):
        """Settings of a server that requires certificates."""
        return {**self.tls, "tls_client_ca": str(self.ca_file)}

    @property
    def trust(self):
        """Arguments of a client that shows no certificate."""
        return {"tls_ca": str(self.ca_file)}

    @property
    def client(self):
        """Arguments of a client that shows one."""
        pair = {"tls_cert": str(self.client_cert), "tls_key": str(self.client_key)}
        return {**self.trust, **pair}

    def pair(self, name, *identities, common_name=None):
        """Arguments of a client that shows a certificate with these names."""
        cert, key = self.ca_file.with_name(f"{name}.pem"), self.ca_file.with_name(f"{name}.key")
        _write(self.ca.issue_cert(*identities, common_name=common_name), cert, key)
        return {**self.trust, "tls_cert": str(cert), "tls_key": str(key)}

    def uri_pair(self, name, uri):
        """The same with a URI, which trustme does not make."""
        leaf = self.ca.issue_cert("placeholder")
        cert = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes())
        authority = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        builder = x509.CertificateBuilder(
            issuer_name=cert.issuer,
            subject_name=x509.Name([]),
            public_key=cert.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=cert.not_valid_before_utc,
            not_valid_after=cert.not_valid_after_utc,
            extensions=[
                extension
                for extension in cert.extensions
                if extension.oid != x509.SubjectAlternativeName.oid
            ],
        ).add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True
        )
        signed = builder.sign(authority, hashes.SHA256())
        arguments = self.pair(name, "placeholder")
        Path(arguments["tls_key"]).write_bytes(leaf.private_key_pem.bytes())
        Path(arguments["tls_cert"]).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return arguments


def _write(leaf, cert, key):
    # The old file goes first: its mode would outlive what is in it.
    key.unlink(missing_ok=True)
    key.touch(0o600)
    leaf.private_key_pem.write_to_path(key)
    cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
