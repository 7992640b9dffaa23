"""Alerts leave the page: who is notified of what, once, in which words, and what happens while a receiver is down."""

import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metadata_databases import metadata_url, writer
from servers.kubernetes_credentials import Credentials
from servers.receivers import MailReceiver, WebReceiver, mail_receiver, web_receiver
from typer.testing import CliRunner

from dapo_core.cli.alerts import alerts
from dapo_core.db import AlertRow, MetadataWriter, RunRow
from dapo_core.db.outbox import HOURLY, NEWS_SECONDS, Outbox
from dapo_core.errors import StoreError
from dapo_core.notify.alert_sender import CLAIM_SECONDS, MOST, POLL_SECONDS, AlertSender
from dapo_core.notify.delivery import DeliveryError, deliver
from dapo_core.notify.messages import Bulletin
from dapo_core.notify.receivers import Receiver, ReceiversError, read_receivers
from dapo_core.run.store_rows import Notice

__all__ = ["metadata_url", "writer"]

NOW = 1_700_000_000.0
NOTICE = Notice("r-1", "math", "team", "NonFinite", "raised", "Loss is NaN.", "Fail", NOW, 7, None, NOW)
HOSTILE = "<!channel> <https://evil.example|click> &amp; token=hf_abcdefghijklmnopqrstuv\r\nBcc: all@example.org"


@pytest.fixture
def web() -> Iterator[WebReceiver]:
    with web_receiver() as receiver:
        yield receiver


@pytest.fixture
def mail() -> Iterator[MailReceiver]:
    with mail_receiver() as receiver:
        yield receiver


class Station:
    """Senders to one receiver, with a clock of their own; `told` is what it was told of: (run, kind)."""

    def __init__(self, url: str, **chosen: Any) -> None:
        self.url, self.now, self.fails, self.refuses = url, NOW, False, ""
        self.receiver = Receiver.model_validate({"name": "r", "webhook": {"url": "http://unused"}, **chosen})
        self.messages: list[list[tuple[str, str]]] = []

    @property
    def told(self) -> list[tuple[str, str]]:
        return [notice for message in self.messages for notice in message]

    def sender(self) -> AlertSender:
        """One of possibly many replicas."""
        return AlertSender(self.url, self.receiver, deliver=self._deliver, now=lambda: self.now, chance=lambda: 1.0)

    def _deliver(self, _receiver: Receiver, bulletin: Bulletin) -> None:
        if self.fails:
            raise DeliveryError("it is down")
        if any(notice.namespace == self.refuses for notice in bulletin.notices):
            raise DeliveryError("it answered with HTTP status 400", is_refusal=True)
        self.messages.append([(notice.run_id, notice.kind) for notice in bulletin.notices])


def raise_alert(writer: MetadataWriter, run_id: str, namespace: str = "team", at: float = NOW, **other: str) -> None:
    writer.create_run(RunRow(run_id, "job", namespace=namespace))
    writer.raise_alert(AlertRow(run_id, other.get("rule", "NonFinite"), at, at, "Loss is NaN.", "Warn"))


def test_each_alert_is_told_once_over_restarts_and_when_it_ends(writer: MetadataWriter, metadata_url: str) -> None:
    station = Station(metadata_url)
    raise_alert(writer, "a")
    for _ in range(3):  # restarts
        assert station.sender().turn() == POLL_SECONDS
    writer.raise_alert(AlertRow("a", "NonFinite", NOW + 5, NOW + 5, "It goes on.", "Warn"))
    station.sender().turn()
    assert station.told == [("a", "raised")]
    writer.clear_alert("a", "NonFinite", NOW + 9)
    for _ in range(2):
        station.sender().turn()
    assert station.told == [("a", "raised"), ("a", "cleared")]


def test_replicas_share_the_work(writer: MetadataWriter, metadata_url: str) -> None:
    station = Station(metadata_url)
    for number in range(2 * MOST):
        raise_alert(writer, f"r{number}", at=NOW - number)
    replicas = [station.sender() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            list(pool.map(AlertSender.turn, replicas))
    assert sorted(station.told) == sorted((f"r{number}", "raised") for number in range(2 * MOST))


def test_a_receiver_that_is_down_gets_everything_later(writer: MetadataWriter, metadata_url: str) -> None:
    station = Station(metadata_url)
    raise_alert(writer, "a")
    station.fails = True
    sender = station.sender()
    waits = [sender.turn() for _ in range(3)]
    assert waits[0] > 0 and station.told == []
    station.fails = False
    station.now += 3600
    station.sender().turn()  # another process
    assert station.told == [("a", "raised")]


def test_a_sender_that_died_in_between_is_followed_by_another(writer: MetadataWriter, metadata_url: str) -> None:
    raise_alert(writer, "a")
    dying = Outbox(metadata_url, "r")
    dying.fill(NOW)
    assert [notice.tries for notice in dying.claim(NOW, NOW + CLAIM_SECONDS, MOST)] == [1]
    station = Station(metadata_url)
    station.sender().turn()
    assert station.told == []
    station.now += CLAIM_SECONDS
    station.sender().turn()
    assert station.told == [("a", "raised")]


def test_what_was_sent_while_the_store_was_lost_is_recorded_later(
    writer: MetadataWriter, metadata_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_alert(writer, "a")
    station = Station(metadata_url)
    sender = station.sender()
    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "sent", lambda *_: (_ for _ in ()).throw(StoreError("The store is down.")))
        assert sender.turn() > 0
    sender.turn()
    station.now += 2 * CLAIM_SECONDS
    station.sender().turn()
    assert station.told == [("a", "raised")]


def test_what_is_no_news_any_more_is_given_up(writer: MetadataWriter, metadata_url: str) -> None:
    station = Station(metadata_url)
    raise_alert(writer, "old", at=NOW - NEWS_SECONDS - 1)
    raise_alert(writer, "a")
    station.fails = True
    sender = station.sender()
    sender.turn()
    station.now += NEWS_SECONDS
    sender.turn()
    station.fails = False
    station.now += 3600
    sender.turn()
    assert station.told == []


CHOICES: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "all": ({}, [("a", "raised"), ("b", "raised"), ("a", "cleared")]),
    "a namespace": ({"namespaces": ["team-b"]}, [("b", "raised")]),
    "a guard": ({"guards": ["EntropyCollapse"]}, [("b", "raised")]),
    "not the end": ({"resolved": False}, [("a", "raised"), ("b", "raised")]),
}


@pytest.mark.parametrize(("chosen", "told"), CHOICES.values(), ids=CHOICES.keys())
def test_a_receiver_is_told_of_what_it_chose(
    chosen: dict[str, Any], told: list[tuple[str, str]], writer: MetadataWriter, metadata_url: str
) -> None:
    raise_alert(writer, "a", "team-a")
    raise_alert(writer, "b", "team-b", at=NOW + 1, rule="EntropyCollapse")
    station = Station(metadata_url, **chosen)
    station.sender().turn()
    writer.clear_alert("a", "NonFinite", NOW + 2)
    station.sender().turn()
    assert station.told == told


def test_a_tenant_that_writes_alerts_does_not_silence_others(writer: MetadataWriter, metadata_url: str) -> None:
    for number in range(HOURLY + 20):
        raise_alert(writer, f"x{number}", "loud", at=NOW - 1000 + number)
    raise_alert(writer, "future", "loud", at=9e10)
    raise_alert(writer, "quiet", "quiet", at=NOW)
    station = Station(metadata_url)
    for _ in range(5):
        station.sender().turn()
    assert len(station.told) == HOURLY + 1 and ("quiet", "raised") in station.told
    station.now += 3700
    station.sender().turn()
    assert len(station.told) == HOURLY + 21


def test_a11_a_namespace_whose_alerts_are_refused_holds_up_no_other(writer: MetadataWriter, metadata_url: str) -> None:
    station = Station(metadata_url)
    station.refuses = "hostile"
    for number in range(2 * MOST):
        raise_alert(writer, f"h{number}", "hostile")
    raise_alert(writer, "a", at=NOW + 1)
    raise_alert(writer, "b", "other", at=NOW + 2)
    for _ in range(3):
        station.sender().turn()
        station.now += 30
    assert sorted(station.told) == [("a", "raised"), ("b", "raised")]
    raise_alert(writer, "c", at=station.now)  # while all those of the other namespace are due
    station.now += 3000
    station.sender().turn()
    assert ("c", "raised") in station.told
    station.refuses = ""
    station.now += 3600
    station.sender().turn()
    assert len(station.told) == 2 * MOST + 3


def test_a_receiver_that_refuses_everything_is_left_alone_for_a_while(
    writer: MetadataWriter, metadata_url: str
) -> None:
    station = Station(metadata_url)
    station.refuses = "team"
    raise_alert(writer, "a")
    raise_alert(writer, "b", "other")
    sender = station.sender()
    assert sender.turn() > 0 and station.told == []
    station.refuses, station.now = "", station.now + 3600
    assert sender.turn() == POLL_SECONDS and len(station.told) == 2


def test_a_post_of_json(web: WebReceiver, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    receiver = Receiver.model_validate({"name": "w", "webhook": {"url": f"{web.url}/hook", "tokenFile": "token"}})
    bulletin = Bulletin([NOTICE], "https://dapo.example.org")
    deliver(receiver.model_copy(update={"folder": tmp_path}), bulletin)
    deliver(receiver.model_copy(update={"folder": tmp_path}), bulletin)
    post, again = web.posts
    assert post.path == "/hook" and post.headers["Authorization"] == "Bearer s3cret"
    assert post.headers["Idempotency-Key"] == again.headers["Idempotency-Key"] == post.body["id"]
    (alert,) = post.body["alerts"]
    assert (alert["status"], alert["run"], alert["guard"], alert["step"]) == ("raised", "r-1", "NonFinite", 7)
    assert alert["url"] == "https://dapo.example.org/run?run=r-1" and alert["since"].startswith("2023-11-14T")


def test_what_tenants_wrote_is_no_markup_for_slack(web: WebReceiver, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{web.url}/services/T/B/X")
    receiver = Receiver.model_validate({"name": "s", "slack": {"urlFile": "url"}})
    hostile = replace(NOTICE, message=HOSTILE, job="<!here>", rule="<@U1>")
    deliver(receiver.model_copy(update={"folder": tmp_path}), Bulletin([hostile, NOTICE], "https://d"))
    body = web.posts[0].body
    text = json.dumps(body)
    assert web.posts[0].path == "/services/T/B/X" and "hf_abc" not in text
    assert all(sign not in text for sign in ("<!", "<@", "<https://evil"))
    assert len(body["blocks"]) == 2 and all(block["text"]["verbatim"] for block in body["blocks"])
    assert all(len(block["text"]["text"]) <= 3000 for block in body["blocks"])


def test_a11_a_guard_that_is_none_calls_nobody_where_slack_is_imitated() -> None:
    hostile = Bulletin([replace(NOTICE, rule="@channel [log in](https://evil.example)")])
    assert hostile.title == "Alert: Unknown guard in r-1 (team)" == hostile.slack()["text"]
    assert Bulletin([replace(NOTICE, rule="NewGuard")]).title == "Alert: NewGuard in r-1 (team)"


def test_the_longest_notices_fit_into_slack() -> None:
    long = replace(NOTICE, message="&" * 20_000, run_id="&" * 128, job="&" * 253, namespace="&" * 63, rule="&" * 64)
    assert all(len(block["text"]["text"]) <= 3000 for block in Bulletin([long] * MOST).slack()["blocks"])


FAILURES: dict[str, tuple[list[int], dict[str, str], str, float]] = {
    "an error of the server": ([500], {}, "HTTP status 500", 0.0),
    "too many requests": ([429], {"Retry-After": "30"}, "HTTP status 429", 30.0),
    "for ever": ([503], {"Retry-After": "999999"}, "HTTP status 503", 3600.0),
    "a date": ([503], {"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"}, "HTTP status 503", 0.0),
    "elsewhere": ([302], {"Location": "http://169.254.169.254/"}, "HTTP status 302", 0.0),
}


@pytest.mark.parametrize(("answers", "headers", "words", "wait"), FAILURES.values(), ids=FAILURES.keys())
def test_a_webhook_that_does_not_take_it(
    answers: list[int], headers: dict[str, str], words: str, wait: float, web: WebReceiver
) -> None:
    web.answers, web.headers = answers, headers
    with pytest.raises(DeliveryError, match=words) as error:
        deliver(Receiver.model_validate({"name": "w", "webhook": {"url": web.url}}), Bulletin([NOTICE]))
    assert error.value.wait == wait and len(web.posts) == 1


def test_an_error_does_not_show_the_webhooks_url() -> None:
    receiver = Receiver.model_validate({"name": "w", "slack": {"url": "http://127.0.0.1:1/services/SECRET"}})
    with pytest.raises(DeliveryError, match="cannot be reached") as error:
        deliver(receiver, Bulletin([NOTICE]))
    assert "SECRET" not in str(error.value)


def mailing(port: int, **other: Any) -> Receiver:
    email = {"host": "localhost", "port": port, "from": "dapo@example.org", "to": ["a@b.c", "d@e.f"], **other}
    return Receiver.model_validate({"name": "m", "email": email})


def test_a_mail(mail: MailReceiver) -> None:
    mail.refused = {"d@e.f"}
    hostile = replace(NOTICE, message=HOSTILE, run_id="r\r\nBcc: x@y.z", job="j\nk")
    for _ in range(2):
        deliver(mailing(mail.port, security="none"), Bulletin([hostile], "https://d"))
    (to, message), (_, again) = mail.mails
    assert to == ["a@b.c"] and message["To"] == "a@b.c, d@e.f" and message["Bcc"] is None
    assert message["Message-ID"] == again["Message-ID"] and message["Auto-Submitted"] == "auto-generated"
    assert message["Subject"].startswith("[DAPO] Alert: ")
    assert "hf_abc" not in message.get_content() and "https://d/run?run=r%0D%0ABcc" in message.get_content()


def test_a_mail_over_tls_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Credentials.make(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_certificate, made.server_key)
    (tmp_path / "password").write_text("pass word")
    with mail_receiver(context) as mail:
        receiver = mailing(mail.port, username="dapo", passwordFile="password").model_copy(update={"folder": tmp_path})
        with pytest.raises(DeliveryError, match="SSLCertVerificationError"):
            deliver(receiver, Bulletin([NOTICE]))
        monkeypatch.setenv("SSL_CERT_FILE", str(made.ca))
        deliver(receiver, Bulletin([NOTICE]))
        assert mail.logins == [("dapo", "pass word")] and len(mail.mails) == 1


MAIL_FAILURES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "busy": ({"security": "none"}, {"busy": 1}, r"code 451"),
    "nobody is known": ({"security": "none"}, {"refused": {"a@b.c", "d@e.f"}}, "SMTPRecipientsRefused"),
    "no TLS where it is asked for": ({}, {}, "SMTPNotSupportedError"),
}


@pytest.mark.parametrize(("settings", "server", "words"), MAIL_FAILURES.values(), ids=MAIL_FAILURES.keys())
def test_a_mail_that_is_not_taken(
    settings: dict[str, Any], server: dict[str, Any], words: str, mail: MailReceiver
) -> None:
    for name, value in server.items():
        setattr(mail, name, value)
    with pytest.raises(DeliveryError, match=words):
        deliver(mailing(mail.port, **settings), Bulletin([NOTICE]))
    assert mail.mails == []


INVALID: dict[str, tuple[str, str]] = {
    "not a mapping": ("[]", "must have one field, `receivers`"),
    "no kind": ("receivers: [{name: a}]", r"receivers.0 \(a\): set one of slack, webhook and email"),
    "two kinds": (
        "receivers: [{name: a, slack: {url: 'http://x'}, webhook: {url: 'http://x'}}]",
        "set one of slack, webhook and email",
    ),
    "a file of this machine": (
        "receivers: [{name: a, slack: {url: 'file:///etc/passwd'}}]",
        "must start with https://",
    ),
    "no URL": ("receivers: [{name: a, slack: {}}]", "set either url or urlFile"),
    "an unknown guard": ("receivers: [{name: a, slack: {url: 'http://x'}, guards: [X]}]", "receivers.0.guards.0"),
    "a password in clear": (
        "receivers: [{name: a, email: {host: h, from: a@b, to: [c@d], security: none, username: u, passwordFile: p}}]",
        "needs security: starttls or tls",
    ),
    "an address with a line break": ('receivers: [{name: a, email: {host: h, from: "a@b\\nX: y", to: [c@d]}}]', "from"),
    "twice": ("receivers: [&a {name: a, slack: {url: 'http://x'}}, *a]", "several receivers are named a"),
    "a path as name": ("receivers: [{name: ../a, slack: {url: 'http://x'}}]", "receivers.0.name"),
}


@pytest.mark.parametrize(("content", "words"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_file_of_receivers(content: str, words: str, tmp_path: Path) -> None:
    (path := tmp_path / "receivers.yaml").write_text(content)
    with pytest.raises(ReceiversError, match=words):
        read_receivers(path)


def test_the_command_tries_receivers(web: WebReceiver, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "url").write_text(web.url)
    (path := tmp_path / "receivers.yaml").write_text(
        "receivers:\n  - {name: good, slack: {urlFile: url}}\n  - {name: bad, slack: {urlFile: url}}\n"
    )
    result = CliRunner().invoke(alerts, ["test", "--receivers", str(path)])
    assert result.exit_code == 1 and "good: sent." in result.output
    assert f"bad: The receiver bad needs the file {tmp_path / 'bad' / 'url'}" in result.output.replace("\n", "")
    assert len(web.posts) == 1
