"""The secure client of docs/clients.md opens a door with mTLS and tokens."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.snippets import read
from tests.support.certificates import Authority
from tests.support.listening import listening

ASK = """
import os
from secure import secure_client
with secure_client(os.environ["EMBED_TARGET"]) as client:
    print("vectors:", len(client.embed(["rain"], timeout_s=20).vectors()))
"""


async def test_the_secure_client_gets_in(tmp_path: Path) -> None:
    read().write("python", tmp_path)
    authority = Authority()
    server_cert, server_key = authority.issue("server").write(tmp_path, "server")
    cert, key = authority.issue("client").write(tmp_path, "client")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.cert)
    (tmp_path / "tokens").write_text("team-a token-of-a\n")
    (tmp_path / "ask.py").write_text(ASK)
    grpc = {
        "tls": {"cert_file": server_cert, "key_file": server_key, "client_ca_file": ca},
        "authentication": {"tokens_file": tmp_path / "tokens"},
    }
    told = {"EMBED_CA": ca, "EMBED_CERT": cert, "EMBED_KEY": key, "EMBED_TOKEN": "token-of-a"}
    async with listening(settings={"grpc": grpc}) as door:
        environment = {**os.environ, "EMBED_TARGET": door.address, **{name: str(value) for name, value in told.items()}}
        command = [sys.executable, "ask.py"]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert done.stdout == "vectors: 1\n", done.stderr
