"""HTTPS by settings: a certificate is checked at the start, weak ciphers are refused, nothing is said in the clear."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.local.plan import plan_local
from gateway.settings import load
from tests.fakes.gateway_process import environment, free_port, hone_program
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.errors import SettingsError

POLICY = {"HONE_POLICIES": "solver=base"}


def certificate(folder: Path, *, phrase: bytes | None = None) -> dict[str, str]:
    """A certificate of this machine's own, as settings name it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    sealing = serialization.BestAvailableEncryption(phrase) if phrase else serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealing)
    )
    return {"HONE_TLS_CERT": str(folder / "cert.pem"), "HONE_TLS_KEY": str(folder / "key.pem")}


def test_agents_are_told_https_where_there_is_a_certificate(tmp_path: Path) -> None:
    settings = load({**POLICY, **certificate(tmp_path), "HONE_HOST": "0.0.0.0"}, tmp_path)
    assert settings.base_url == "https://0.0.0.0:8600"
    assert not settings.is_exposed


def test_a_start_of_everything_on_one_machine_does_not_take_a_certificate_it_would_not_serve(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="hone gateway"):
        plan_local({**POLICY, **certificate(tmp_path)}, tmp_path, [8610])


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    good, other = certificate(tmp_path), certificate(tmp_path / "other")
    (tmp_path / "none.pem").write_text("words")
    for wrong in (
        {"HONE_TLS_KEY": ""},
        {"HONE_TLS_CERT": ""},
        {"HONE_TLS_KEY": other["HONE_TLS_KEY"]},
        {"HONE_TLS_CERT": str(tmp_path / "none.pem")},
        {"HONE_TLS_CERT": str(tmp_path / "nowhere.pem")},
    ):
        with pytest.raises(SettingsError, match="HONE_TLS_CERT and HONE_TLS_KEY"):
            load({**POLICY, **good, **wrong}, tmp_path)
    with pytest.raises(SettingsError, match="pass phrase"):
        load({**POLICY, **certificate(tmp_path, phrase=b"secret")}, tmp_path)


@pytest.mark.parametrize(
    ("env", "is_exposed"),
    [
        ({}, False),
        ({"HONE_HOST": "0.0.0.0"}, True),
        ({"HONE_HOST": "::"}, True),
        ({"HONE_HOST": "0.0.0.0", "HONE_BEHIND_PROXY": "true"}, False),
        ({"HONE_HOST": "0.0.0.0", "HONE_TRUSTED_PROXIES": "10.0.0.0/8, 192.0.2.1"}, False),
    ],
)
def test_listening_to_others_in_the_clear_is_known(tmp_path: Path, env: dict[str, str], is_exposed: bool) -> None:
    assert load({**POLICY, **env}, tmp_path).is_exposed is is_exposed


@pytest.mark.parametrize("proxies", ["proxy.example", "10.0.0.0/33", "*"])
def test_a_trusted_proxy_is_an_address(tmp_path: Path, proxies: str) -> None:
    with pytest.raises(SettingsError, match="trusted_proxies"):
        load({**POLICY, "HONE_TRUSTED_PROXIES": proxies}, tmp_path)


def test_a_password_in_an_engines_url_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HONE_ENGINE_KEY") as refused:
        load({**POLICY, "HONE_ENGINES": "http://user:hunter2@engine:8000"}, tmp_path)
    assert "hunter2" not in refused.value.message


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_gateway_with_a_certificate_speaks_https_alone(tmp_path: Path, workers: int) -> None:
    port, files = free_port(), certificate(tmp_path)
    async with ScriptedEngine() as engine:
        env = {**POLICY, **files, "HONE_PORT": str(port), "HONE_HOST": "localhost", "HONE_ENGINES": engine.url}
        env |= {"HONE_DATA_DIR": str(tmp_path / "data"), "HONE_WORKERS": str(workers), "HONE_BEGIN_TIMEOUT_S": "10"}
        with (tmp_path / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *hone_program("gateway"), env=environment(env), cwd=tmp_path, stdout=log, stderr=log
            )
        try:
            trusting = ssl.create_default_context(cafile=files["HONE_TLS_CERT"])
            async with httpx.AsyncClient(verify=trusting, base_url=f"https://localhost:{port}") as client:
                await until_live(client, process)
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.set_ciphers("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(OSError):  # an SSLError, or a reset
                await asyncio.open_connection("localhost", port, ssl=old)
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP" not in await reader.read()
            writer.close()
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 60)


@pytest.mark.slow
async def test_an_engine_with_a_certificate_of_its_own_is_trusted_where_the_settings_of_openssl_say_so(
    tmp_path: Path,
) -> None:
    port, files = free_port(), certificate(tmp_path)
    with (tmp_path / "log").open("wb") as log:
        async with ScriptedEngine() as engine, https_before(engine.url, files) as url:
            env = {**POLICY, "SSL_CERT_FILE": files["HONE_TLS_CERT"], "HONE_ENGINES": url, "HONE_PORT": str(port)}
            env |= {"HONE_DATA_DIR": str(tmp_path / "data"), "HONE_BEGIN_TIMEOUT_S": "10"}
            process = await asyncio.create_subprocess_exec(
                *hone_program("gateway"), env=environment(env), cwd=tmp_path, stdout=log, stderr=log
            )
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                    await until_live(client, process)
                    engines = (await client.get("/health/ready")).json()["parts"]["engines"]
                    assert engines["ready"], engines
            finally:
                process.terminate()
                await asyncio.wait_for(process.wait(), 60)


@asynccontextmanager
async def https_before(url: str, files: dict[str, str]) -> AsyncGenerator[str]:
    """What ends TLS before a server that speaks none; its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["HONE_TLS_CERT"], files["HONE_TLS_KEY"])
    behind = urlsplit(url)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(behind.hostname, behind.port)
        await asyncio.gather(carry(reader, forth), carry(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def until_live(client: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(120):
        while True:
            assert process.returncode is None
            try:
                if (await client.get("/health/live")).status_code == 200:
                    return
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
