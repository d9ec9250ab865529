"""Only the user's own browser gets an answer, and it can only read."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from browsing import Browser, browsing

from rlds_beam.testing import make_episode, write_dataset

ADDRESSES = ("/", "/api/datasets", "/api/episodes", "/static/uPlot.iife.min.js", "/image", "/video", "/nothing")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    directory = write_dataset(tmp_path_factory.mktemp("rlds"), [make_episode(5, seed=i) for i in range(4)])
    with browsing(directory) as running:
        yield running


def send(browser: Browser, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Sends exactly these headers, and the cookie unless it is given."""
    cookies = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
    given = {"Host": f"127.0.0.1:{browser.server.port}", "Cookie": cookies, **headers}
    connection = http.client.HTTPConnection("127.0.0.1", browser.server.port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return content


@pytest.mark.parametrize("path", ADDRESSES)
def test_nothing_is_sent_without_the_token(browser: Browser, path: str) -> None:
    for cookie in ("", "rlds_beam=x", f"rlds_beam_{browser.server.port}=wrong", "\xff", "a" * 4000):
        status, _, body = send(browser, "GET", path, Cookie=cookie)
        assert (status, "address that rlds-beam browse printed" in body.decode()) == (403, True)
    assert send(browser, "GET", f"{path}?token=wrong", Cookie="")[0] == 403
    if path != "/":
        assert send(browser, "GET", f"{path}?token={browser.server.token}", Cookie="")[0] == 403


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(browser: Browser) -> None:
    _, headers, _ = send(browser, "GET", f"/?token={browser.server.token}", Cookie="")
    assert headers["set-cookie"] == (
        f"rlds_beam_{browser.server.port}={browser.server.token}; HttpOnly; SameSite=Strict; Path=/"
    )
    twice = f"/?token={browser.server.token}&token={browser.server.token}"
    assert send(browser, "GET", twice, Cookie="")[0] == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{}", "127.0.0.1.evil.example", "127.0.0.1@evil", "0.0.0.0:{}", "", "[::1]:{}"],
)
def test_other_hosts_are_refused_even_with_the_cookie(browser: Browser, host: str) -> None:
    status, _, body = send(browser, "GET", "/api/datasets", Host=host.format(browser.server.port))
    assert (status, "127.0.0.1 and localhost only" in body.decode()) == (403, True)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_allowed(browser: Browser, method: str) -> None:
    assert send(browser, method, "/api/datasets")[0] == 405


@pytest.mark.parametrize("path", ADDRESSES)
def test_every_answer_has_the_headers_that_keep_a_page_safe(browser: Browser, path: str) -> None:
    for method, cookie in (("GET", None), ("HEAD", None), ("POST", None), ("GET", "")):
        _, headers, body = send(browser, method, path, **({} if cookie is None else {"Cookie": cookie}))
        policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["script-src"] == policy["style-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"] and policy["frame-ancestors"] == "'none'"
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert not [name for name in headers if name.startswith("access-control")]
        assert "server" not in headers
        assert not body or method != "HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/",
        "/static",
        "/../../../../etc/passwd",
        "//etc/passwd",
        "/static/index.html%00.js",
        "/static/\\..\\x",
    ],
)
def test_no_path_of_a_request_is_opened(browser: Browser, path: str) -> None:
    status, _, body = send(browser, "GET", path)
    assert status in (307, 400, 404) and b"root:" not in body and b"import" not in body


KEY = "testing/1.0.0:train:00000@0"
HOSTILE = [
    "",
    "x",
    "a:b:c",
    KEY + "x",
    KEY + ".",
    "../" * 20,
    "\x00",
    "<script>",
    "%",
    "9" * 5000,
    KEY + "9" * 4000,
    "testing/1.0.0:train:00000@" + "9" * 30,
    "testing/1.0.0:train:٣@0",
    "\U0001f600:a:1@1",
]


UNKNOWN = [
    "other/1.0.0:train:00000@0",
    "testing/1.0.0:nope:00000@0",
    "testing/1.0.0:train:00009@0",
    "testing/1.0.0:train:00000@1",
]


@pytest.mark.parametrize("path", ["/api/episode", "/api/step", "/image", "/video", "/api/made", "/api/counterpart"])
def test_hostile_keys_are_refused_as_json(browser: Browser, path: str) -> None:
    for key in (*HOSTILE, *UNKNOWN):
        answer = browser.get(path, key=key, camera="observation/image", step="0")
        assert answer.status_code in (400, 404) and isinstance(answer.json()["error"], str), key
