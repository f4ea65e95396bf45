"""A broker that asks who a client is: TLS, client certificates, SCRAM and OAuth, with rights
(SEC-1, SEC-5).

`openssl` makes the certificates. Each has the name of its principal. `TokenServer` is an HTTPS
endpoint for OAuth's client credentials. Its tokens are signed, and the broker checks them with
Kafka's own `OAuthBearerValidatorCallbackHandler`.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from connector.config.settings import KafkaConfig
from connector.kafka import client
from connector.kafka.local.broker import LocalBroker
from connector.kafka.local.folder import HOST, free_port
from tests.broker import jar_store

PASSWORD = 'pass"word\\of,everyone'
CLIENT_SECRET = "client-secret-of-everyone"
KEY_PASSWORD = "key-password-of-everyone"
AUDIENCE = "kafka"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_LISTENERS = ("PLAINTEXT", "TLS", "MTLS", "SCRAM", "OAUTH")


def _openssl(folder: Path, *arguments: str, text: str | None = None) -> bytes:
    done = subprocess.run(
        ["openssl", *arguments],
        cwd=folder,
        input=None if text is None else text.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder. `certificate` is its PEM file."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        folder.mkdir(parents=True)
        subject = ("-subj", "/CN=the test's authority", "-days", "2", "-nodes")
        keys = ("-newkey", "rsa:2048", "-keyout", "ca.key", "-out", "ca.pem")
        _openssl(folder, "req", "-x509", *keys, *subject)
        return cls(folder)

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str, *, days: int = 1, password: str = "") -> tuple[Path, Path]:
        """A new certificate and its key, as PEM files, for a host at loopback or a principal
        `CN=name`. With `days=-1` it has expired.
        """
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        form = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key.name)
        _openssl(self.folder, "genpkey", *form)
        subject = ("-new", "-key", key.name, "-subj", f"/CN={name}", "-out", f"{name}.csr")
        _openssl(self.folder, "req", *subject)
        (self.folder / "san.cnf").write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n")
        _openssl(
            self.folder,
            *("x509", "-req", "-in", f"{name}.csr", "-out", certificate.name),
            *("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san.cnf"),
            *("-days", str(days)),
        )
        if password:  # in a form that both clients know
            bare = key.rename(self.folder / f"{name}.bare")
            lock = ("-v1", "PBE-SHA1-3DES", "-passout", f"pass:{password}", "-out", key.name)
            _openssl(self.folder, "pkcs8", "-topk8", "-in", bare.name, *lock)
        return certificate, key


class TokenServer:
    """OAuth's token endpoint at `url`, for the grant `client_credentials`. `asked` counts the
    tokens by client id. A token is valid for `lifetime_s`.
    """

    def __init__(self, authority: Authority, folder: Path, lifetime_s: int = 3_600) -> None:
        self.lifetime_s, self.asked = lifetime_s, Counter[str]()
        self._folder = folder
        folder.mkdir(parents=True)
        _openssl(folder, "genrsa", "-out", "token.key", "2048")
        certificate, key = authority.issue("token-server")
        handler = type("Handler", (_TokenHandler,), {"tokens": self})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{HOST}:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def keys(self) -> Path:
        """The file of the public key, for the broker (JWKS)."""
        found = self._folder / "jwks.json"
        modulus = _openssl(self._folder, "rsa", "-in", "token.key", "-noout", "-modulus")
        number = bytes.fromhex(modulus.decode().strip().removeprefix("Modulus="))
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "e": "AQAB"}
        found.write_text(json.dumps({"keys": [{**key, "n": _base64(number)}]}))
        return found

    def token(self, subject: str) -> str:
        now = int(time.time())
        claims = {
            "iss": "the test",
            "aud": AUDIENCE,
            "sub": subject,
            "scope": "kafka",
            "iat": now,
            "nbf": now,
            "exp": now + self.lifetime_s,
        }
        head = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        signature = _openssl(
            self._folder, "dgst", "-sha256", "-sign", "token.key", "-binary", text=signed
        )
        return f"{signed}.{_base64(signature)}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _TokenHandler(BaseHTTPRequestHandler):
    tokens: TokenServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = urllib.parse.parse_qs(body)
        basic = self.headers.get("Authorization", "").removeprefix("Basic ")
        user, _, secret = base64.b64decode(basic).decode().partition(":")
        wrong = "invalid_client" if secret != CLIENT_SECRET else ""
        wrong = wrong or ("" if form.get("grant_type") == ["client_credentials"] else "grant")
        answer = {"error": wrong}
        if not wrong:
            self.tokens.asked[user] += 1
            answer = {
                "access_token": self.tokens.token(user),
                "token_type": "Bearer",
                "expires_in": self.tokens.lifetime_s,  # type: ignore[dict-item]
            }
        data = json.dumps(answer).encode()
        self.send_response(401 if wrong else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@dataclass(frozen=True)
class SecuredBroker:
    """A broker with one listener for each way to log in. Without a login, a client at PLAINTEXT is
    a super user: it makes users and rights.
    """

    broker: LocalBroker
    authority: Authority
    tokens: TokenServer
    ports: Mapping[str, int]
    _admin: AdminClient = field(repr=False)

    @property
    def open(self) -> KafkaConfig:
        """For a super user, without a login."""
        return KafkaConfig(f"{HOST}:{self.ports['PLAINTEXT']}")

    @property
    def trusting(self) -> dict[str, str]:
        return {"ssl.ca.location": str(self.authority.certificate)}

    def tls(self) -> KafkaConfig:
        settings = {"security.protocol": "SSL", **self.trusting}
        return KafkaConfig(f"{HOST}:{self.ports['TLS']}", settings)

    def mtls(self, name: str, *, password: str = "", **how: int) -> KafkaConfig:
        """For the principal `User:CN=name`, with a certificate of its own."""
        certificate, key = self.authority.issue(name, password=password, **how)
        settings = {
            "security.protocol": "SSL",
            **self.trusting,
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            **({"ssl.key.password": password} if password else {}),
        }
        return KafkaConfig(f"{HOST}:{self.ports['MTLS']}", settings)

    def scram(self, user: str, password: str = PASSWORD, *, known: bool = True) -> KafkaConfig:
        """For the principal `User:user`, which is made with `PASSWORD` unless it is not `known`."""
        if known:
            self.set_password(user, PASSWORD)
        settings = {
            "security.protocol": "SASL_SSL",
            **self.trusting,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }
        return KafkaConfig(f"{HOST}:{self.ports['SCRAM']}", settings)

    def oauth(self, client_id: str, secret: str = CLIENT_SECRET) -> KafkaConfig:
        settings = {
            "security.protocol": "SASL_SSL",
            **self.trusting,
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client_id,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
            "https.ca.location": str(self.authority.certificate),
        }
        return KafkaConfig(f"{HOST}:{self.ports['OAUTH']}", settings)

    def set_password(self, user: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for done in self._admin.alter_user_scram_credentials([change]).values():
            done.result(30)

    def allow(
        self,
        principal: str,
        kind: ResourceType,
        name: str,
        *operations: AclOperation,
        prefixed: bool = False,
    ) -> None:
        """Give a principal rights to a resource. `name` is its name, or a prefix, or `*`."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        rights = [
            AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for done in self._admin.create_acls(rights).values():
            done.result(30)

    def restart(self) -> None:
        """End all connections: kill the broker, and start it again."""
        self.broker.kill()
        with _may_read(self.tokens.keys):
            self.broker.restart()

    def allow_all(self, principal: str) -> None:
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            self.allow(principal, kind, "*", AclOperation.ALL)


@contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    """A running broker with its token server."""
    authority = Authority.create(folder / "authority")
    tokens = TokenServer(authority, folder / "tokens")
    ports: dict[str, int] = {}
    for name in (*_LISTENERS, "CONTROLLER"):
        ports[name] = free_port(*ports.values())
    settings = _settings(authority, ports, tokens.keys.as_uri())
    with ExitStack() as stack:
        stack.callback(tokens.close)
        with _may_read(tokens.keys):
            broker = LocalBroker.start(
                folder / "broker", jar_store(), port=ports["PLAINTEXT"], settings=settings
            )
        stack.callback(broker.stop)
        admin = client.admin(KafkaConfig(broker.bootstrap_servers))
        yield SecuredBroker(broker, authority, tokens, ports, admin)


@contextmanager
def _may_read(keys: Path) -> Iterator[None]:
    """A JVM that starts in the block may read the keys of tokens. By default, it may not."""
    with pytest.MonkeyPatch.context() as patch:
        name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        patch.setenv("JDK_JAVA_OPTIONS", f"-D{name}={keys.as_uri()}")
        yield


def _settings(authority: Authority, ports: Mapping[str, int], keys: str) -> dict[str, str]:
    certificate, key = authority.issue("broker")
    both = authority.folder / "broker-store.pem"
    both.write_text(key.read_text() + certificate.read_text())
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "TLS": "SSL", "MTLS": "SSL"}
    protocols |= dict.fromkeys(("SCRAM", "OAUTH"), "SASL_SSL")
    login = "org.apache.kafka.common.security"
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    return {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(addresses[name] for name in _LISTENERS),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "controller.quorum.voters": f"1@{HOST}:{ports['CONTROLLER']}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            f"{login}.scram.ScramLoginModule required;"
        ),
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            f"{login}.oauthbearer.OAuthBearerLoginModule required;"
        ),
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": _VALIDATOR,
        "listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url": keys,
        "listener.name.oauth.sasl.oauthbearer.expected.audience": AUDIENCE,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """The broker of a module."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running
