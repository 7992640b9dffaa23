"""The administrator's file of receivers, to which alerts are sent.

    receivers:
      - name: ml-slack
        slack: {urlFile: url}
      - name: on-call
        webhook: {url: https://on-call.example.org/dapo, tokenFile: token}
        guards: [NonFinite, RewardCollapse]
      - name: math
        email: {host: smtp.example.org, from: dapo@example.org, to: [math@example.org]}
        namespaces: [team-math]
        resolved: false

Files of a receiver lie in the folder of its name next to the receivers' file, and are read again for each message, so
that passwords may rotate. No tenant writes any of it: an address that they chose would reach what only this network
can.
"""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dapo_core.errors import DapoError
from dapo_core.jobspec.guard_fields import GuardRule

NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class ReceiversError(DapoError):
    """The file of receivers is invalid, or a file that it names cannot be read."""

    user_mistake = True


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Webhook(_Fields):
    """A URL that takes a POST of JSON: the URL itself, or the file that has it; `token_file`: of a bearer token."""

    url: str | None = None
    url_file: str | None = Field(None, alias="urlFile")
    token_file: str | None = Field(None, alias="tokenFile")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("set either url or urlFile")
        if self.url is not None:
            checked_url(self.url)
        return self


class Email(_Fields):
    """An SMTP server and whom to write. `security`: TLS from the start, after STARTTLS, or none."""

    host: Annotated[str, Field(min_length=1)]
    port: int = Field(587, ge=1, le=65_535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    sender: Annotated[str, Field(alias="from", pattern=r"^[^\s,]+@[^\s,]+$")]
    to: Annotated[list[Annotated[str, Field(pattern=r"^[^\s,]+@[^\s,]+$")]], Field(min_length=1, max_length=50)]
    username: str | None = None
    password_file: str | None = Field(None, alias="passwordFile")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and passwordFile belong together")
        if self.username is not None and self.security == "none":
            raise ValueError("a password needs security: starttls or tls")
        return self


class Receiver(_Fields):
    """A receiver and its filters: `namespaces` and `guards` empty means all; `resolved`: also when an alert ends."""

    name: Annotated[str, Field(pattern=NAME)]
    slack: Webhook | None = None
    webhook: Webhook | None = None
    email: Email | None = None
    namespaces: list[str] = []
    guards: list[GuardRule] = []
    resolved: bool = True
    folder: Path = Field(Path(), exclude=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(kind is not None for kind in (self.slack, self.webhook, self.email)) != 1:
            raise ValueError("set one of slack, webhook and email")
        return self

    def secret(self, file: str) -> str:
        """The content of one of the receiver's files, without blanks around it. Raises ReceiversError."""
        path = self.folder / file
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ReceiversError(f"The receiver {self.name} needs the file {path}, which cannot be read.") from error

    def url_of(self, webhook: Webhook) -> str:
        """Where a webhook is sent. Raises ReceiversError, which does not show the URL: it may be a secret."""
        if webhook.url is not None:
            return webhook.url
        try:
            return checked_url(self.secret(webhook.url_file or ""))
        except ValueError as error:
            raise ReceiversError(
                f"The file {webhook.url_file} of the receiver {self.name} is invalid: {error}."
            ) from error


def checked_url(url: str) -> str:
    """The URL, if it is one of HTTP. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL must start with https:// or http://")
    return url


def read_receivers(path: Path) -> list[Receiver]:
    """The receivers of the file. Raises ReceiversError, which names field and remedy."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ReceiversError(f"The file of receivers {path} cannot be read: {error}") from error
    entries = content.get("receivers") if isinstance(content, dict) and content.keys() == {"receivers"} else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ReceiversError(f"The file of receivers {path} must have one field, `receivers`, with a list.")
    found = [_receiver(path, number, entry) for number, entry in enumerate(entries)]
    names = [receiver.name for receiver in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ReceiversError(f"In {path}, several receivers are named {twice[0]}: give each a name of its own.")
    return found


def _receiver(path: Path, number: int, entry: dict[str, object]) -> Receiver:
    try:
        receiver = Receiver.model_validate({name: value for name, value in entry.items() if name != "folder"})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(("receivers", str(number), *map(str, first["loc"])))
        words = first["msg"].removeprefix("Value error, ")
        raise ReceiversError(f"In {path}, {place} ({entry.get('name', 'without a name')}): {words}.") from error
    return receiver.model_copy(update={"folder": path.parent / receiver.name})
