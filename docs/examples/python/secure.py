import os

import grpc


def read(variable: str) -> bytes | None:
    return open(os.environ[variable], "rb").read() if variable in os.environ else None


def secure_channel(target: str) -> grpc.Channel:
    tls = grpc.ssl_channel_credentials(read("EMBED_CA"), read("EMBED_KEY"), read("EMBED_CERT"))
    if "EMBED_TOKEN" in os.environ:
        token = grpc.access_token_call_credentials(os.environ["EMBED_TOKEN"])
        tls = grpc.composite_channel_credentials(tls, token)
    return grpc.secure_channel(target, tls)
