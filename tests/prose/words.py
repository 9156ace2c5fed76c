"""Words that the project does not use, each with what to write instead (docs/glossary.md)."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "answer answers answered answering": "response, respond, return",
    "told tell tells telling": "inform, notify, send, report; 'tell apart' is 'distinguish'",
    "say says said": "report, log, state, specify; 'the config says' is 'the config value is'",
    "whoever whomever nobody somebody anybody everybody": "name the client, broker, replica or caller",
    "anew": "again, from the start; a deleted topic is recreated",
    "mend mends mended mending": "fix (code), repair (data)",
    "beside": "next to, with, in addition to",
    "rouse rouses roused": "wake",
    "hear hears heard hearing": "receive a heartbeat, request or response",
    "speak speaks spoken speaking": "use the protocol; an API is served",
    "rot rots rotten": "corrupt, corruption",
    "quicken quickens": "speed up, warm up",
    "patience patient impatient": "timeout",
    "door doors house houses": "interface, layer, node",
    "floor floors": "layer",
    "room rooms": "free space, component",
    "lies lie": "is (in)",
    "whence thence hither thereof thereby henceforth": "plain words",
    "vain": "without success",
    "goodbye goodbyes": "disconnect, unregister",
    "surroundings": "context, environment",
    "ours": "Odradek's",
    "ere": "before",
    "mate mates": "replica, peer",
    "betray betrays": "show",
}
"""Words that neither prose nor names contain."""

PHRASES: Mapping[str, str] = {
    r"made (again|anew)": "recreated",
    r"(goes|go|went|gone|going) on": "continue",
    r"what becomes of": "what happens to",
    r"(for|of|to|from|by|with) whom": "name the client, broker, replica or caller",
    r"without end": "forever, unbounded",
    r"comes? round": "runs periodically",
    r"(come|comes|came) to be": "become, is created",
    r"takes? (it|them) for": "treats it as",
    r"taken for": "treated as",
    r"once more": "again",
    r"at the moment": "currently, now",
    r"by and by": "gradually",
    r"nothing else": "only",
    r"or other": "any",
    r"so many|so much|so long": "a number with its unit",
}
"""Phrases that prose does not contain, as regular expressions."""

NAMES: Mapping[str, str] = {
    "teller asker": "name what it reports or requests",
    "roster": "members",
    "census": "a list of what",
    "crossing mirror blame": "swap, future replica, error source",
    "nominee": "candidate",
    "turnstile": "limiter",
    "doubt doubts dirt": "what is unknown, dirty bytes",
    "doomed": "to be deleted",
    "lest whom": "plain words",
}
"""Parts of names (snake_case or CamelCase) that no definition contains, besides WORDS."""

OPENINGS = frozenset(
    [
        "what",
        "who",
        "whom",
        "whose",
        "where",
        "from",
        "to",
        "by",
        "in",
        "on",
        "of",
        "beside",
        "with",
        "without",
        "as",
        "at",
        "until",
        "since",
        "through",
        "under",
        "over",
        "after",
        "before",
        "because",
    ]
)
"""Words that a docstring does not open with: its first word is a verb or the noun that it describes."""
