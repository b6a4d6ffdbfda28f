"""The countable rules of plain English, in every text that a user reads: no area has more of a pattern than its row allows.

A row of ``ALLOWED`` may only become smaller. A failure prints each place, with the words around it.
"""

import ast
import html
import io
import re
import tokenize
from collections.abc import Iterator

import nbformat
import pytest
import yaml

from kit.system.paths import ROOT

UNIT = (
    r"(?:\{\}|\b(?:[mnuµ]?s|tok/s|[KMG]i?B|[KMG]?B/s|seconds?|minutes?|hours?|bytes?|bits?|FLOPs|tokens?|tiles?|values?|"
    r"operations?|least))"
)
RATED = (
    "second|minute|hour|token|tile|weight|value|tensor|layer|row|pass|use|byte|symbol|block|expert|step|call|core|thread|"
    "matrix|GiB|MiB|element|position|product|run|sample|state|head|word|page|slot|read|miss|hit|launch|draw|channel|column"
)
STARTS = r"(?:^|[.!?] )[*_(\"“]*"
PARTICIPLES = "Run|Kept|Held|Said|Given|Shown|Known|Seen|Done|Left|Written|Read|Meant|Told|Built|Taken|Drawn|Made|Found"
PATTERNS = {  # rule -> what breaks it, in one paragraph, list item or table cell
    "participle first": rf"{STARTS}(?:(?!Speed|Need|Seed)[A-Z]\w+ed|{PARTICIPLES})(?: and \w+)? (?:is|are|was|were)\b",
    "of or beside first": rf"{STARTS}(?:Of|Beside)\b",
    "for, because": r"[,;] for (?:it|they|he|we|you|there|this|that|these|those|no|none|nothing|nobody|all|each|to|what|its|"
    r"their|one|only|by|in|on|at|without|as|both|then)\b",
    "a, per": rf"{UNIT} an? (?:{RATED})\b",
    "beside": r"\b[Bb]esides?\b",
    "stands, lies": r"\b(?:stands?|stood|standing|lies|lie|lying)\b(?!-)",
    "mend, anew, apart": r"\b[Mm]end(?:s|ed|ing)?\b|\banew\b|\bapart\b",
    "what is there": r"\b(?:what|that) (?:is|was|are|were) (?:not )?(?:there|here)\b|\bnot (?:here|there)\b",
    "bound, limit": r"(?<![\w-])[Bb]ounds?\b(?![-_])",
    "times a noun": r"(?:\{\}|\d) times (?:an?|no|one|the|its|their|this|that|those|[\w.]+['’]s?)(?= |$)",
}
RULES = [*PATTERNS]
ALLOWED = {  # area -> at most so many of each rule, in the order of PATTERNS
    "README": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "docs": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "notebooks": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "pages": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "help": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "messages": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
}
GENERATED = {"api.md", "cli.md"}  # of docstrings
NAMED = {  # names of quantities in committed records, by which runs are compared: they keep the words of their day
    "a token, blocks as they lie", "blocks as they lie", "tokens a second, all float32 kept",
    "bits a weight that {}, by family",
    "predicted over measured seconds a token, all ways", "tokens a second of {} from {} at the reports' bandwidth",
    "tokens a second for the weights of {}, from blocks on the device", "seconds a token",
    "tokens at 5 ms a tile and 85% hits: 1", "tokens at 5 ms a tile and 85% hits: 5",
}  # fmt: skip
OF_PAGES = ("findings", "report", "claims")  # packages of kit/lab whose strings are the report's


def paragraphs(text: str) -> list[str]:
    """Markdown without its code: paragraphs, list items and table cells, each on one line."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"``?[^`\n]+``?", "`x`", text)
    parts = re.split(r"\n\s*\n|\n *(?:[-*+]|\d+\.) |\n#+ |\s\|(?=\s|$)|\n\|", text)
    parts = (re.sub(r"^(?:[-+|#*]+ )+", "", " ".join(part.split())) for part in parts)
    return [part for part in parts if part]


def strings(tree: ast.AST, documented: bool) -> Iterator[str]:
    """Every string with a space, f-strings with {} for what is filled in; docstrings only where they are help."""
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree)
            if isinstance(node, scopes) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value if documented or id(node) not in docs else ""
        else:
            continue
        if " " in text.strip() and text not in NAMED:
            yield text


def of_python(paths, documented=False):
    for path in sorted(paths):
        for text in strings(ast.parse(path.read_text()), documented):
            yield path.relative_to(ROOT), text


def of_notebooks():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            where = f"{path.name}, {cell.id}"
            if cell.cell_type == "markdown":
                yield where, cell.source
                continue
            yield from ((where, text) for text in strings(ast.parse(cell.source), False))
            tokens = tokenize.generate_tokens(io.StringIO(cell.source).readline)
            yield from ((where, token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT)


def of_data(path, found):
    if isinstance(found, dict):
        found = [*found.values()]
    if isinstance(found, list):
        for value in found:
            yield from of_data(path, value)
    elif isinstance(found, str) and found not in NAMED:
        yield path.name, found


def of_pages():
    lab = ROOT / "kit" / "lab"
    yield from of_python(path for package in OF_PAGES for path in (lab / package).rglob("*.py"))
    for path in sorted((lab / "report" / "templates").glob("*.j2")):
        text = re.sub(r"\{[%#].*?[%#]\}|<(style|script).*?</\1>", "", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"\{\{.*?\}\}", "{}", text, flags=re.DOTALL)
        yield path.relative_to(ROOT), html.unescape(re.sub(r"</?(?!em|strong|b\b|i\b|a\b|code)[^>]*>", "\n\n", text))
    yield from of_data(ROOT / "data" / "claims.yaml", yaml.safe_load((ROOT / "data" / "claims.yaml").read_text()))


def of_markdown(*paths):
    generated = r"<!-- (\w+) -->.*?<!-- /\1 -->"  # output of a command and tables of records, in the words of their day
    return ((path.relative_to(ROOT), re.sub(generated, "", path.read_text(), flags=re.DOTALL)) for path in paths)


def of_messages():
    lab = ROOT / "kit" / "lab"
    elsewhere = {lab / package for package in (*OF_PAGES, "commands")}
    return of_python(path for path in (ROOT / "kit").rglob("*.py") if not elsewhere & {*path.parents})


AREAS = {
    "README": lambda: of_markdown(ROOT / "README.md"),
    "docs": lambda: of_markdown(*sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in GENERATED),
                                ROOT / "runpod" / "README.md", ROOT / "results" / "README.md", ROOT / "CHANGELOG.md"),
    "notebooks": of_notebooks,
    "pages": of_pages,
    "help": lambda: of_python((ROOT / "kit" / "lab" / "commands").glob("*.py"), documented=True),
    "messages": of_messages,
}  # fmt: skip


def broken(texts, rule: str) -> list[str]:
    """Every place where a text breaks the rule, with the words around it."""
    found = []
    for where, text in texts:
        for part in paragraphs(text):
            for match in re.finditer(PATTERNS[rule], part):
                found.append(f"{where}: ... {part[max(0, match.start() - 40) : match.end() + 30]} ...")
    return found


@pytest.fixture(scope="module")
def texts():
    return {area: list(made()) for area, made in AREAS.items()}


@pytest.mark.parametrize("area", AREAS)
def test_texts_for_users_break_no_more_rules_than_their_row_allows(area, texts):
    over = {}
    for rule, most in zip(RULES, ALLOWED[area], strict=True):
        if len(found := broken(texts[area], rule)) > most:
            over[f"{rule}: {len(found)}, allowed {most}"] = found
    assert not over, "\n".join(line for rule, found in over.items() for line in (rule, *found))


@pytest.mark.parametrize(
    "rule, wrong, right",
    [
        ("participle first", "It ran. Asked were 8 min.", "Seeds are few. The limit asked for is 8 min."),
        ("of or beside first", "**Of 8 runs** one failed.", "One of 8 runs failed. Often it does not."),
        ("for, because", "It failed, for nothing was left.", "Wait, for example, for a minute; for 8 tokens it is 3."),
        ("a, per", "It takes 3 ms a token, {} a layer, 5 tok/s.", "It takes 3 ms per token. It reads a token."),
        ("beside", "Speeds beside llama.cpp.", "Speeds compared with llama.cpp."),
        ("stands, lies", "What stands below.", "A stand-in, a standard, a line that earlier was an outlier."),
        ("mend, anew, apart", "The mended loop.", "We recommend the fixed loop, part by part."),
        ("what is there", "stopped: what is there is above; not here", "There it is."),
        ("bound, limit", "above its bound; two bounds", "the limit; `lab.bound`, memory-bound, lower_bound"),
        ("times a noun", "It takes 36.7 times a product, {} times llama.cpp's speed.", "36 times as long as a product."),
    ],
)
def test_each_rule_finds_what_breaks_it_and_nothing_else(rule, wrong, right):
    assert broken([("here", wrong)], rule)
    assert not broken([("here", right)], rule)


def test_code_is_no_prose_and_placeholders_are_filled():
    assert paragraphs("One `beside` two.\n\n```\nOf x\n```\n- a\n  b\n\n| c | d |") == ["One `x` two.", "a b", "c", "d"]
    tree = ast.parse('"""A doc string."""\nname = "key"\nsaid = f"a {name} of " "b"')
    assert list(strings(tree, False)) == ["a {} of b"] and "A doc string." in strings(tree, True)
