"""The messages for each kind of receiver: Slack's blocks, JSON, or an e-mail. Pure.

Names and messages come from tenants: secrets are removed, control characters are replaced, and nothing of them is
markup, a link or a mention.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final
from urllib.parse import quote

from dapo_core.run.formatting import duration, fit, plural, printable
from dapo_core.run.guards import HEALTH_RULES
from dapo_core.run.redaction import text_without_secrets
from dapo_core.run.store_rows import Notice

VERSION: Final = 1
# What Slack takes in a section; it takes 50 of them.
_SECTION: Final = 3000
_HALF_ENTITY: Final = re.compile(r"&[a-z]*$")
_LONGEST: Final = 600
_NAME: Final = 128
# Also of a newer version. The title is what servers that imitate Slack show, where `@channel` calls everybody.
_RULE: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_VERBS: Final = {"raised": "Alert", "cleared": "Resolved"}
_REMEDIES: Final[Mapping[str, str]] = {name: rule.remedy for name, rule in HEALTH_RULES.items()}
_TITLES: Final[Mapping[str, str]] = {name: rule.title for name, rule in HEALTH_RULES.items()}


@dataclass(frozen=True)
class Bulletin:
    """Notices that go out as one message. `dashboard_url`: without a trailing slash; empty: there are no links."""

    notices: Sequence[Notice]
    dashboard_url: str = ""

    @property
    def key(self) -> str:
        """The same for the same notices: who gets them twice can tell."""
        return _digest(*(notice_id(notice) for notice in self.notices))

    @property
    def title(self) -> str:
        """One line of plain text."""
        if len(self.notices) == 1:
            notice = self.notices[0]
            return f"{_VERBS[notice.kind]}: {_title(notice)} in {_line(notice.run_id)} ({_line(notice.namespace)})"
        raised = sum(notice.kind == "raised" for notice in self.notices)
        parts = [(raised, "alert"), (len(self.notices) - raised, "resolved alert")]
        return ", ".join(plural(count, noun) for count, noun in parts if count)

    def slack(self) -> dict[str, Any]:
        """The body for an incoming webhook of Slack, or of what imitates it."""
        blocks = [
            # Verbatim: Slack makes no links and mentions of its own out of the text.
            {"type": "section", "text": {"type": "mrkdwn", "text": self._slack_text(notice), "verbatim": True}}
            for notice in self.notices
        ]
        return {"text": _escaped(self.title), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}

    def json(self) -> dict[str, Any]:
        """The body for any other webhook (docs/alerts.md)."""
        return {"version": VERSION, "id": self.key, "title": self.title, "alerts": [*map(self._fields, self.notices)]}

    def email(self, sender: str, to: Sequence[str], now: float) -> EmailMessage:
        """The message as plain text; `now` in Unix seconds is its date."""
        mail = EmailMessage()
        mail["Subject"] = f"[DAPO] {self.title}"
        mail["From"], mail["To"] = sender, ", ".join(to)
        mail["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
        # The same again if it is sent again: mail servers and clients drop the second one.
        mail["Message-ID"] = f"<{self.key}@{sender.rpartition('@')[2].rstrip('>') or 'dapo'}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content("\n\n".join(map(self._plain_text, self.notices)) + "\n")
        return mail

    def _link(self, notice: Notice) -> str | None:
        return (
            f"{self.dashboard_url}/run?run={quote(notice.run_id, safe='', errors='replace')}"
            if self.dashboard_url
            else None
        )

    def _fields(self, notice: Notice) -> dict[str, Any]:
        return {
            "id": notice_id(notice),
            "status": notice.kind,
            "run": _line(notice.run_id),
            "job": _line(notice.job),
            "namespace": _line(notice.namespace),
            "guard": _line(notice.rule),
            "title": _title(notice),
            "message": _message(notice),
            "remedy": _REMEDIES.get(notice.rule),
            "action": _line(notice.action),
            "step": notice.first_step,
            "since": _moment(notice.first_seen),
            "resolved": _moment(notice.cleared_at),
            "url": self._link(notice),
        }

    def _slack_text(self, notice: Notice) -> str:
        link = self._link(notice)
        run = _escaped(_line(notice.run_id))
        head = f"*{_VERBS[notice.kind]}: {_escaped(_title(notice))}* in {f'<{link}|{run}>' if link else run}"
        text = "\n".join([head, _escaped(_message(notice)), _escaped(_circumstances(notice))])
        return text if len(text) <= _SECTION else _HALF_ENTITY.sub("", text[:_SECTION])

    def _plain_text(self, notice: Notice) -> str:
        lines = [
            f"{_VERBS[notice.kind]}: {_title(notice)} in {_line(notice.run_id)}",
            _message(notice),
            _circumstances(notice),
            self._link(notice),
        ]
        return "\n".join(line for line in lines if line)


def notice_id(notice: Notice) -> str:
    """Names the notice: the same for every receiver, and whenever it is sent."""
    return _digest(notice.run_id, notice.rule, repr(notice.first_seen), notice.kind)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def _title(notice: Notice) -> str:
    return _TITLES.get(notice.rule) or (notice.rule if _RULE.fullmatch(notice.rule) else "Unknown guard")


def _message(notice: Notice) -> str:
    return fit(" ".join(printable(text_without_secrets(notice.message)).split()), _LONGEST)


def _circumstances(notice: Notice) -> str:
    """`Job math, namespace team-a, since step 40 (2026-01-01 10:00 UTC), action Warn.`"""
    step = f" step {notice.first_step}" if notice.first_step is not None else ""
    since = f"since{step} ({_moment(notice.first_seen)})"
    if notice.kind == "cleared" and notice.cleared_at is not None:
        since = f"held{step and ' from' + step} for {duration(notice.cleared_at - notice.first_seen)}"
    return f"Job {_line(notice.job)}, namespace {_line(notice.namespace)}, {since}, action {_line(notice.action)}."


def _line(text: str) -> str:
    """One line of text that others wrote."""
    return fit(" ".join(printable(text).split()), _NAME)


def _moment(ts: float | None) -> str | None:
    return None if ts is None else datetime.fromtimestamp(ts, UTC).isoformat(timespec="seconds")


def _escaped(text: str) -> str:
    """The three signs by which Slack recognizes links and mentions, such as `<!channel>`, as text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
