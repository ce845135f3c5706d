import os

from tokenbatch_client import Client


def secure_client(target: str) -> Client:
    return Client(
        target,
        tls=True,
        ca_file=os.environ.get("EMBED_CA", ""),  # without it: the system's authorities
        cert_file=os.environ.get("EMBED_CERT", ""),
        key_file=os.environ.get("EMBED_KEY", ""),
        token=os.environ.get("EMBED_TOKEN", ""),
    )
