"""The tables of docs/security.md: each way in that reviews of the platform found, what closes it, and its tests."""

import re
from typing import Final

from sections import TESTS, with_section

BEGIN, END = "<!-- attacks: begin (make generate) -->", "<!-- attacks: end -->"
# Tests are named after the finding (`test_a01_...`); a test may try several. B: what the first review held for
# doubtful. E: what later ones looked for in the parts that came since.
_NAME = re.compile(r"^def (test(?:_(?:a\d\d|d|e\d+|doubt_\d))+)_\w+", re.MULTILINE)
_FINDING = re.compile(r"_(a\d\d|d|e\d+|doubt_\d)(?=_|$)")

# By finding: what a hostile tenant or a bad input could do, and what prevents it.
CLOSED: Final[dict[str, tuple[str, str]]] = {
    "A1": ("A termination message ends the operator", "messages are parsed in bounds; one object never ends a watch"),
    "A2": ("A deeply nested DAPOJob stops the watch of all", "JSON is cut off at 100 levels before it is parsed"),
    "A3": (
        "Numbers in a team's rows end the operator",
        "CHECK constraints; runs are read in halves until only the bad one is left out",
    ),
    "A4": (
        "A locked, full or read-only database fails healthy jobs",
        "rights by column, so that no tenant locks a table; stalls are judged only while writing works",
    ),
    "A5": ("The dashboard's key reads another team's samples", "only folders of its own store are opened"),
    "A6": ("Any pod reads the dashboard", "without login, its NetworkPolicy admits no pod"),
    "A7": ("A long quantity blocks the operator", "bounded length, and a pattern that cannot backtrack"),
    "A8": (
        "Large gangs starve all other requests",
        "namespaces take turns, and each always has a place at work; waiting is no part of a request's time limit",
    ),
    "A9": (
        "Run IDs are guessed and taken in advance",
        "12 characters from the UID; nothing is recorded in another namespace's row",
    ),
    "A10": ("The numbers of metric names are used up", "a trigger draws them; writers give the name alone"),
    "A11": (
        "Rows, links and files break everybody's pages",
        "constraints, a share of each list for each namespace, bounds of links, patterns, specs and names of metrics; "
        "another process with little memory and time unpacks files; nobody but people acknowledges alerts; a "
        "namespace's refused alerts hold up no other's; ambiguous names are refused",
    ),
    "A12": ("A checkpoint runs code at export", "torch.load with weights_only"),
    "A13": ("A temporary table lifts row-level security", "functions name the schema of what they read"),
    "A14": (
        "Credentials cannot be renewed or revoked",
        "new passwords replace old ones; keys that users make of their own are denied and deleted",
    ),
    "A15": ("A listing reaches namespaces of a longer name", "the policy's prefixes end with a slash"),
    "A16": (
        "One login stops the shared database",
        "a limit of connections, row locks, no advisory locks, no other databases, no large objects",
    ),
    "A17": (
        "Large DAPOJobs exceed the operator's memory",
        "a spec over 256 KiB is refused before it is parsed; `jobs.maxPerNamespace` limits the jobs of each namespace",
    ),
    "A18": (
        "The operator's rights are more than it needs",
        "it creates Secrets and reads none; its database login administers nothing",
    ),
    "A19": ("Last words block a job's status", "reasons and messages are cleaned; made-up reasons are one label"),
    "A20": ("Markup and escapes in the terminal", "everything from the store is printed as text"),
    "A21": (
        "Secrets on pages, foreign frames, other names, colliding names; a node's credentials; threads of the operator",
        "redaction, response headers, allowed host names, checks of the chart; an egress policy for jobs' pods; a "
        "bound of the telemetry port's connections; `jobs.podTemplatePolicy`",
    ),
    "B1": (
        "A pod takes a job's weights, or sends it others, where nothing enforces NetworkPolicies",
        "weights are encrypted, with keys that Ray hands out, and headers are JSON; both ends of the pods' start prove "
        "that they have the job's token",
    ),
    "B2": (
        "A job that restarts at once and for ever uses up the operator's requests",
        "the share of its namespace (A8)",
    ),
    "B4": (
        "A manifest stops an administrator's `dapo checkpoints sweep`",
        "an invalid manifest affects that run only",
    ),
    "B7": (
        "Somebody registers at the login with another's e-mail address",
        "an address that the provider says is not verified is no name and no group",
    ),
    "D": (
        "Bad spool lines, manifests, templates, batches and data files",
        "an error of its own, or a value that was checked",
    ),
    "E1": (
        "A metric's name, an answer or a tag is a formula where a saved chart, an export or a table is opened",
        "an apostrophe before texts that a spreadsheet would compute",
    ),
    "E2": (
        "Errors, the end of a log, what a pod tells `dapo chaos` and a job's metric control a terminal",
        "all of it is printed as text",
    ),
    "E3": (
        "A pod with a job's labels is hit by `dapo chaos` in its place, or ends or holds up the command",
        "pods are a job's by their owner; output and time of what runs in them are bounded",
    ),
    "E4": (
        "Long specs make everybody's table of runs wait for minutes, and a long field fills the dashboard's memory",
        "specs are read once, for half a second at a time, of each namespace in turn; fields are cut in the database; "
        "pages show no job of more than 256 KiB",
    ),
    "E5": (
        "Notes, objects or attempts in very large numbers fill the dashboard's memory",
        "a share of the notes for each namespace, of which tables show the beginning; listings and searches end",
    ),
    "E6": (
        "A run whose job names an impossible store ends `dapo db deliver` for all",
        "what cannot be opened is a sentence, and that run's alone",
    ),
    "E7": ("A log of any size or name in a run's folder is read", "keys of our own form, and no more than a part has"),
    "E8": ("Samples run code in a notebook, or decide how it reads them", "Arrow without the file's metadata"),
    "E9": ("An alert adds headers, recipients or links to the messages", "one line of text, escaped and bounded"),
    "E10": (
        "A name in a job's spec or annotations, such as `../../../pods`, has the operator read other objects, or those "
        "of all namespaces again and again",
        "a name is one part of a path, as Kubernetes defines it, or the request is not sent",
    ),
    "E11": (
        "A manifest, or metrics that wait for their delivery, of any size fill the memory of `dapo checkpoints sweep` "
        "or `dapo db deliver`",
        "an object is read into memory up to a number of bytes",
    ),
}
# What remains, and what a site can do about it.
OPEN: Final[dict[str, tuple[str, str]]] = {
    "A10": ("Every login reads the names of all metrics, not their values", "no secrets in the names of metrics"),
    "A16": (
        "A login can still fill the database's disk or use its processors, and a team the bucket",
        "a bucket with a quota for each namespace (stores.md); servers of their own for teams that must not be able to "
        "stop each other",
    ),
    "A21": (
        "A user who may create DAPOJobs may create any pod that the namespace admits, with any of its service accounts "
        "and Secrets",
        "`jobs.podTemplatePolicy: restricted`, the pod security standard `restricted` on job namespaces, and no other "
        "Secrets there",
    ),
    "A21, egress": (
        "Job pods reach the API server, where they have no token, and the internet; other pods of a job namespace "
        "reach the node's metadata service",
        "`networkPolicies.jobEgress.to` with what jobs download; a policy of the site for all pods of the namespace",
    ),
    "B3": (
        "Who may edit NetworkPolicies in a job namespace opens the jobs there: an edit of the operator's own is not "
        "undone, and an additional policy would do the same",
        "no such permission for people who are not to have it",
    ),
    "B5": (
        "Reward code and code of models read their job's credentials in the environment",
        "code and models that the team trusts; what the credentials reach is the team's alone",
    ),
    "Network plug-in, B1": (
        "Without NetworkPolicies a pod reaches other jobs' vLLM servers, verl's data queue (pickled messages) "
        "and NCCL, none of which asks for a token; Ray, the start of pods and our weight transfer do, but a pod opens "
        "as many connections to them as it likes",
        "a network plug-in that enforces them",
    ),
    "E3": (
        "Who may delete pods, exec in them or edit NetworkPolicies in a namespace disturbs every job there, by "
        "`dapo chaos` or without it",
        "a namespace for each team that is not to be disturbed by another",
    ),
    "E8": (
        "A file of samples that is gigabytes in memory ends `dapo export`, or the notebook that reads it",
        "run them where that harms nobody else; the dashboard reads with limits",
    ),
    "Plain connections, B6": (
        "Postgres and MinIO of the chart use no TLS",
        "external stores with TLS, or a network that encrypts",
    ),
}


def tests_by_finding() -> dict[str, list[str]]:
    """The files of the tests of each finding, such as {"A1": ["tests/attacks/test_operator_objects.py"]}."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in _NAME.findall(path.read_text(encoding="utf-8")):
            for finding in _FINDING.findall(name):
                number = finding.replace("doubt_", "b")
                number = number[:1].upper() + number[1:].lstrip("0")
                found.setdefault(number, set()).add(str(path.relative_to(TESTS.parent)))
    return {number: sorted(paths) for number, paths in found.items()}


def page(old: str) -> str:
    """docs/security.md with its tables. Raises ValueError for a finding without a test."""
    tests = tests_by_finding()
    if missing := CLOSED.keys() - tests.keys():
        raise ValueError(f"No test is named after {', '.join(sorted(missing))}.")
    closed = [
        f"| {number} | {what} | {control} | {', '.join(f'`{path}`' for path in tests[number])} |"
        for number, (what, control) in CLOSED.items()
    ]
    open_ = [f"| {number} | {what} | {remedy} |" for number, (what, remedy) in OPEN.items()]
    section = "\n".join(
        [
            "| finding | attack | control | tests |",
            "|---|---|---|---|",
            *closed,
            "",
            "What is not prevented:",
            "",
            "| finding | what is possible | what a site can do |",
            "|---|---|---|",
            *open_,
            "",
        ]
    )
    return with_section(old, BEGIN, END, section)
