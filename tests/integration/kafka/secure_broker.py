"""Apache Kafka behind SASL_SSL and SSL, with users, certificates, signed tokens and access control lists.

The plain listener and USER have all rights; APP has the rights that a test grants.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from loadtest.stack.kafka import QUICK_START, KafkaBroker
from loadtest.stack.ports import free_ports
from tests.support.certificates import Authority

USER, PASSWORD = "tokenbatch-user", "kafka-secret-3141"
APP, APPS_PASSWORD = "app", "kafka-secret-2718"
AUDIENCE = "kafka"
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class SecureKafka:
    """A running broker; `broker.bootstrap` is its plain listener, the others are for clients that show who they are."""

    broker: KafkaBroker
    folder: Path
    sasl_ssl: str
    ssl: str
    signer: rsa.RSAPrivateKey

    def token(self, seconds: float = 600) -> str:
        claims = {"sub": USER, "iss": "test", "aud": AUDIENCE, "iat": time.time() - 5, "exp": time.time() + seconds}
        return jwt.encode(claims, self.signer, "RS256", {"kid": "signer"})


def make(folder: Path) -> SecureKafka:
    """Certificates, keys and a broker that is not started yet."""
    authority, signer = Authority(), rsa.generate_private_key(65537, 2048)
    server = authority.issue("kafka")
    (folder / "ca.crt").write_bytes(authority.cert)
    (folder / "server.pem").write_bytes(server.key + server.cert)
    authority.issue(USER).write(folder, "client")
    Authority("another").issue(USER).write(folder, "stranger")
    jwk = {**json.loads(RSAAlgorithm.to_jwk(signer.public_key())), "kid": "signer", "alg": "RS256"}
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [jwk]}))
    plain, sasl_ssl, ssl = free_ports(3)
    broker = KafkaBroker(
        folder / "kafka",
        plain,
        jvm_options=(*QUICK_START, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"),
        format_options=[
            part
            for mechanism, user, password in (
                ("SCRAM-SHA-256", USER, PASSWORD),
                ("SCRAM-SHA-512", USER, PASSWORD),
                ("SCRAM-SHA-256", APP, APPS_PASSWORD),
            )
            for part in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
        ],
    )
    listeners = f"PLAINTEXT://localhost:{plain},SASL_SSL://localhost:{sasl_ssl},SSL://localhost:{ssl}"
    broker.settings |= _settings(folder, keys, listeners, f"CONTROLLER://localhost:{broker.seat.controller_port}")
    return SecureKafka(broker, folder, f"localhost:{sasl_ssl}", f"localhost:{ssl}", signer)


def _settings(folder: Path, keys: Path, listeners: str, controller: str) -> dict[str, str]:
    sasl = "listener.name.sasl_ssl"
    users = f'user_{USER}="{PASSWORD}" user_{APP}="{APPS_PASSWORD}"'
    return {
        "listeners": f"{listeners},{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.crt"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{sasl}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {users};",
        f"{sasl}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        f"{sasl}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        f"{sasl}.oauthbearer.sasl.server.callback.handler.class": (
            f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:CN={USER}",
    }
