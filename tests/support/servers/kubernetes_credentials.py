"""What a control plane of one test run needs to know whom it talks to: certificates, tokens, kubeconfigs."""

import ipaddress
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.x509.oid import NameOID

_VALID: Final = timedelta(days=2)


@dataclass(frozen=True)
class Credentials:
    """Files under one folder; the administrator's token is in no other place."""

    folder: Path
    admin_token: str

    @property
    def ca(self) -> Path:
        """Certificate of the authority that signed the API server's."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The authority's key, with which the controller manager signs."""
        return self.folder / "ca.key"

    @property
    def server_certificate(self) -> Path:
        """The API server's certificate, for 127.0.0.1 and localhost."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """The API server's key."""
        return self.folder / "server.key"

    @property
    def service_account_key(self) -> Path:
        """The key that signs service accounts' tokens."""
        return self.folder / "service-account.key"

    @property
    def tokens(self) -> Path:
        """The API server's static tokens."""
        return self.folder / "tokens.csv"

    @classmethod
    def make(cls, folder: Path) -> "Credentials":
        """New keys and certificates, valid for two days."""
        made = cls(folder, secrets.token_hex(16))
        folder.mkdir(parents=True, exist_ok=True)
        authority, key = _key(made.ca_key), _key(made.server_key)
        _key(made.service_account_key)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dapo-tests")])
        _certificate(made.ca, name, authority, name, authority, _authority_extensions())
        server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        _certificate(made.server_certificate, server, key, name, authority, [(_server_names(), False)])
        made.tokens.write_text(f'{made.admin_token},admin,admin,"system:masters"\n')
        return made

    def write_kubeconfig(self, path: Path, server: str, token: str | None = None) -> Path:
        """A kubeconfig for this server; without a token it is the administrator's."""
        cluster = {"server": server, "certificate-authority": str(self.ca)}
        context = {"cluster": "tests", "user": "tests"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "tests", "context": context}],
            "current-context": "tests",
        }
        path.write_text(yaml.safe_dump(content))
        return path


def _key(path: Path) -> EllipticCurvePrivateKey:
    key = generate_private_key(SECP256R1())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)
    return key


def _authority_extensions() -> list[tuple[x509.ExtensionType, bool]]:
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    return [(x509.BasicConstraints(ca=True, path_length=None), True), (usage, True)]


def _server_names() -> x509.SubjectAlternativeName:
    names = [x509.DNSName(name) for name in ("localhost", "kubernetes", "kubernetes.default.svc")]
    return x509.SubjectAlternativeName([*names, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


def _certificate(
    path: Path,
    subject: x509.Name,
    key: EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: EllipticCurvePrivateKey,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> None:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    path.write_bytes(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
