"""Looks for phrases that plain American English avoids, in everything that people read: pages, comments, and strings.

    python tools/english.py          # exit code 1 if there are any
    python tools/english.py --count  # how often each occurs

CONTRIBUTING.md explains the style. A line that ends with `english: quoted` is skipped.
"""

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = {"tools/english.py", "tests/project/test_english.py"}
PAGES = {".md", ".rst", ".toml", ".yml", ".yaml", ".sh", ".in", ""}

# What to look for -> what to write.
PHRASES = {
    r"of (ours|its own|their own|his own|your own|one's own)(?! (accord|right|kind))": "our X; its own X",
    r"anew": "again",
    r"for ever": "forever",
    r"mend(s|ed|ing)?": "fix, repair",
    r"held against": "checked against",
    r"(comes|came|come) of": "results from",
    r"what of (the|its?|their|a|an)\b[^.;:]*|what (of )?(it|them|these|that) is": "its ...; how much",
    r"(is|are|was|were|has|have|had) to be \w+ed": "must be ...ed",
    r"(has|have|had) to be": "must be",
    r"goes on where": "resumes",
    r"let through|lets through": "accepted",
    r"(stands|stand|stood) (in|beside|before|behind|for itself)": "is in, is next to",
    r"as far as": "if",
    r"the way back|way of \w+ back": "the inverse of",
    r"a mistake of": "an error in; internal error",
    r"of which it \w+s": "(a second sentence)",
    r"whatever (ends|comes|happens)": "(say what)",
    r"the least that": "the smallest",
    r"takes? the place of|took the place of": "replaces",
    r"makes? of (it|them|these|that|an?|the)": "converts to",
    r"as (many|much|long) as there (is|are)": "all",
    r"(not|nor) any ?more": "no longer",
    r"thereby|therein|thereof|whereby|wherein|hitherto|henceforth|hence": "so, by it, in it",
    r"be it|were it|had it": "if",
    r"whether or not": "whether",
    r"shall": "must, will",
    r"of late|by and by|at all events": "(nothing)",
    r"in (which|that) case": "then",
    r"all the same|just the same": "anyway",
    r"such a one": "one",
}
SPELLINGS = {
    r"\w*(colour|behaviour|neighbour|favour|honour|labour)\w*": "-or-",
    r"(?!(?:\w*raise|size|prize|exercise|otherwise|likewise|\w*_wise|rise|raise|wise|precise|promise|advise|revise|supervise|surprise|noise|"
    r"comprise|compromise|disguise|enterprise|expertise|improvise|premise|arise|poise|praise|cruise|bruise|paradise|"
    r"concise|excise|franchise|merchandise|televise|devise|demise|despise|treatise|turquoise|mayonnaise|tortoise|"
    r"equipoise|rollercoaster|chaise|appraise|braise|clockwise|counterclockwise|elementwise|pairwise|stepwise|rowwise|"
    r"columnwise|bitwise|piecewise|edgewise|lengthwise)(?:s|d|r)?\b)\w+is(e|es|ed|er|ing|ation|ations)(?<!rising)"
    r"(?<!raising)(?<!promising)(?<!surprising)(?<!advertising)(?<!supervising)(?<!comprising)(?<!arising)(?<!revising)"
    r"(?<!exercising)": "-ize",
    r"(centre|metre|litre|fibre)\w*": "-er",
    r"\w*(cancell|labell|modell|travell|signall|channell|fuell|levell|totall|initiall)(ed|ing)": "one l",
    r"(licence|defence|offence|pretence)s?": "-se",
    r"grey\w*": "gray",
    r"whilst|amongst|towards|afterwards|backwards|forwards|upwards|downwards": "while, among, toward, afterward",
    r"(analys|catalys|paralys)(e|ed|es|ing)": "-yze",
    r"catalogue|dialogue|analogue": "-og",
    r"judgement|ageing|acknowledgement|artefact\w*|programme|sceptic\w*|tyre|aluminium|learnt|spelt|burnt": "American",
}
# `where` tells a place; `if` states a condition. These words before it name a place.
PLACES = re.compile(
    r"(know|say|see|show|find|tell|ask|decide|remember|wonder|look|name|stop)(s|n|ed)?|said|told|from|to|of|and|or|exactly|is|"
    r"(place|position|file|point|step|page|module|row|line|byte|offset|column|machine|worker|case|path|environment|test|"
    r"package|layer|shard|address|state|one)s?|director(y|ies)|folders?|index|code|matters"
)
CONDITION = r"(?<![.\w`])(?P<before>[\w`')\].:-]+,? |^)where (?!clause)"
MOST_CONDITIONS = 100
QUOTED = "english: quoted"


class Text(NamedTuple):
    """One line that people read."""

    path: str
    line: int
    text: str
    starts: bool
    """Whether it is the first line of a docstring or of an attribute's description."""


def texts() -> Iterator[Text]:
    """Every line of prose below version control."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        path = ROOT / name
        if not name or name in SKIPPED or not path.is_file() or "LICENSE" in name:
            continue
        if path.suffix == ".py":
            yield from python_texts(name, path.read_text())
        elif path.suffix in PAGES and is_text(path):
            lines = enumerate(path.read_text().splitlines(), 1)
            yield from (Text(name, number, line, False) for number, line in lines if not line.endswith(QUOTED))


def is_text(path: Path) -> bool:
    return b"\0" not in path.read_bytes()[:4096]


def python_texts(name: str, source: str) -> Iterator[Text]:
    """The comments and strings of a module."""
    first, lines = True, source.splitlines()  # first in its statement
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            docstring = token.type == tokenize.STRING and first
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                if lines[number - 1].endswith(QUOTED):
                    continue
                yield Text(name, number, line, docstring and number == token.start[0])
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            first = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL):
            first = False


def problems(text: Text) -> Iterator[tuple[str, str]]:
    """What is wrong with a line: the phrase, and what to write."""
    prose = re.sub(r"https?://\S+|`[^`]*`|\{[^}]*\}|\\[a-z]|[A-Z]+_[A-Z_]+", " ", text.text)
    for pattern, advice in COMPILED:
        for match in pattern.finditer(prose):
            yield match[0].lower(), advice
    if text.starts and re.match(r'[rRbBfFuU]*"""Of\b|[rRbBfFuU]*"""of\b', text.text):
        yield "a docstring that begins with Of", "a noun phrase"
    if re.match(r"\s*\w+: of\b", text.text):
        yield "an attribute that begins with of", "a noun phrase"
    if re.search(r", too\.", prose):
        yield "too.", "also, or nothing"


COMPILED = [
    (re.compile(rf"(?<![\w./-])(?:{pattern})(?![\w-])", re.IGNORECASE), advice)
    for pattern, advice in {**PHRASES, **SPELLINGS}.items()
]


def is_condition(text: Text) -> int:
    """How often a line says `where` for `if`."""
    prose = re.sub(r"`[^`]*`", "`", text.text)
    matches = re.finditer(CONDITION, prose)
    return sum(not PLACES.fullmatch(match["before"].strip(" ,.:`'").lower()) for match in matches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", action="store_true", help="print how often each phrase occurs")
    parser.add_argument("--where", action="store_true", help="print the uses of `where` that seem to mean `if`")
    parser.add_argument("paths", nargs="*", help="only files below these")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    conditions = 0
    for text in texts():
        if args.paths and not any(text.path.startswith(path) for path in args.paths):
            continue
        for phrase, advice in problems(text):
            counts[phrase] += 1
            if not args.count:
                print(f"{text.path}:{text.line}: {phrase}; write: {advice}")
        conditions += (here := is_condition(text))
        if args.where and here:
            print(f"{text.path}:{text.line}: {text.text.strip()}")
    if args.count:
        print("\n".join(f"{count:6} {phrase}" for phrase, count in counts.most_common()))
    print(f"{counts.total()} phrases; `where` means `if` {conditions} times, {MOST_CONDITIONS} are allowed")
    return int(bool(counts) or conditions > MOST_CONDITIONS)


if __name__ == "__main__":
    sys.exit(main())
