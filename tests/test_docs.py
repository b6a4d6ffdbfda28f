"""The documentation: links lead somewhere, commands that it shows exist with these options, its policy is one."""

import os
import re
import shlex
import subprocess
import sys
import textwrap

import click
import pytest

from kit import cache
from kit.commands import cli
from kit.lab.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^ {4}(?:\$ )?(kit [a-z].*?)(?: {2,}.*| #.*| \|.*)?$", re.MULTILINE)
SHOWN = [(page.name, line) for page in PAGES for line in COMMAND.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    prose = re.sub(r"^ {4}.*|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_commands_that_are_shown_exist(page, line):
    command, words = cli.main, shlex.split(line)[1:]
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_parser(click.Context(command)).parse_args(args=list(words))  # an unknown option is a UsageError


def test_the_site_builds_and_asks_nobody_for_anything(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert {page.stem for page in pages} >= {"index", "tour", "verdicts", "faq", "cli", "api"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"""(?:src=|rel="stylesheet" href=)["']?https?:[^"' >]*""", text) == [], page.name


def test_the_policy_of_the_page_is_one(monkeypatch):
    monkeypatch.setattr(cache.policy, "POLICIES", {})
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    policy, test = (
        textwrap.dedent(re.search(rf"^ {{4}}{start}.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)[0])
        for start in ("class Largest", "def test_largest")
    )
    namespace = {"Policy": cache.policy.Policy}
    exec(policy, namespace)
    monkeypatch.setattr(cache, "POLICIES", {"Largest": namespace["Largest"]})
    exec(test, scope := {"cache": cache})
    scope["test_largest_evicts_the_largest"]()
