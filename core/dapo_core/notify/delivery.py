"""Sends one message to one receiver: a POST of JSON, or a mail over SMTP. It either arrives or raises DeliveryError."""

import json
import logging
import smtplib
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import certifi
import urllib3
from urllib3.exceptions import HTTPError

from dapo_core.notify.messages import Bulletin
from dapo_core.notify.receivers import Email, Receiver, Webhook

log = logging.getLogger(__name__)

# Of connecting, and of each answer.
SECONDS: Final = 20.0
# A receiver that asks for more is asked again after this.
LONGEST_WAIT: Final = 3600.0


class DeliveryError(Exception):
    """The receiver did not take a message. The words have no URL in them: a webhook's is a secret. `wait`: seconds for
    which the receiver asked. `is_refusal`: it answered, and may take another message."""

    def __init__(self, words: str, wait: float = 0.0, *, is_refusal: bool = False) -> None:
        super().__init__(words)
        self.wait, self.is_refusal = wait, is_refusal


def deliver(receiver: Receiver, bulletin: Bulletin) -> None:
    """Sends it once. Raises DeliveryError, or ReceiversError for a file of the receiver that cannot be read."""
    if receiver.slack is not None:
        _post(receiver, receiver.slack, bulletin.slack(), bulletin.key)
    elif receiver.webhook is not None:
        _post(receiver, receiver.webhook, bulletin.json(), bulletin.key)
    elif receiver.email is not None:
        _mail(receiver, receiver.email, bulletin)


def _tls() -> ssl.SSLContext:
    # The system's certificates, to which an administrator may have added some (SSL_CERT_FILE), and certifi's for images
    # without any.
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _post(receiver: Receiver, webhook: Webhook, body: Mapping[str, Any], key: str) -> None:
    url = receiver.url_of(webhook)
    headers = {"Content-Type": "application/json", "User-Agent": "dapo", "Idempotency-Key": key}
    if webhook.token_file is not None:
        headers["Authorization"] = f"Bearer {receiver.secret(webhook.token_file)}"
    content = json.dumps(body).encode()
    with urllib3.PoolManager(ssl_context=_tls(), retries=False, timeout=SECONDS) as pool:
        try:
            # No redirects: where they lead is the receiver's choice, not the administrator's.
            answer = pool.request("POST", url, body=content, headers=headers, redirect=False, preload_content=False)
        except (HTTPError, OSError, ValueError) as error:
            raise DeliveryError(f"it cannot be reached ({_reason(error)})") from error
        answer.close()
    if not 200 <= answer.status < 300:
        wait = _wait(answer.headers.get("Retry-After"))
        raise DeliveryError(f"it answered with HTTP status {answer.status}", wait, is_refusal=True)


def _wait(header: str | None) -> float:
    seconds = float(header) if header is not None and header.isdecimal() else 0.0
    return min(LONGEST_WAIT, seconds)


def _reason(error: BaseException) -> str:
    """The kind of an error, and of its cause: messages of urllib3 contain the URL."""
    cause = error.__cause__ or getattr(error, "reason", None)
    names = [type(error).__name__]
    if isinstance(cause, BaseException) and type(cause) is not type(error):
        names.append(type(cause).__name__)
    return ": ".join(names)


def _mail(receiver: Receiver, email: Email, bulletin: Bulletin) -> None:
    message = bulletin.email(email.sender, email.to, time.time())
    password = receiver.secret(email.password_file) if email.password_file is not None else None
    try:
        with _connect(email) as server:
            if email.security == "starttls":
                server.starttls(context=_tls())
            if email.username is not None and password is not None:
                server.login(email.username, password)
            refused = server.send_message(message, email.sender, email.to)
    except (smtplib.SMTPException, OSError, ValueError) as error:
        words = f"{email.host} did not take the mail ({_smtp_reason(error)})"
        raise DeliveryError(words, is_refusal=isinstance(error, smtplib.SMTPDataError | ValueError)) from error
    if refused:  # the others have it
        log.warning(
            "The receiver %s: %s refused %d of %d addresses", receiver.name, email.host, len(refused), len(email.to)
        )


def _connect(email: Email) -> smtplib.SMTP:
    if email.security == "tls":
        return smtplib.SMTP_SSL(email.host, email.port, timeout=SECONDS, context=_tls())
    return smtplib.SMTP(email.host, email.port, timeout=SECONDS)


def _smtp_reason(error: BaseException) -> str:
    code = getattr(error, "smtp_code", None)
    return f"{type(error).__name__}, code {code}" if code is not None else type(error).__name__


Deliver = Callable[[Receiver, Bulletin], None]
