"""The page of the command line, from its parser."""

from __future__ import annotations

import argparse
import re

from markdown_text import make_table

from efficient_attn import cli
from efficient_attn.cli.parser import EXAMPLES, Parser, make_parser

INTRODUCTION = """# Command line

`efficient-attn VERB --help` prints the same for one verb. Every verb accepts `--json`, which prints JSON for programs,
and `--plugin FILE`, which imports a `.py` file or module first.

| Verb | Does |
|---|---|
"""
COMPLETION = """## Shell completion

`efficient-attn --print-completion bash` prints a script that completes verbs, options, mechanisms, suites and files. It
needs shtab (`python -m pip install shtab`, or the extra `completion`).

| Shell | Command |
|---|---|
| bash | `efficient-attn --print-completion bash > ~/.local/share/bash-completion/completions/efficient-attn` |
| zsh | `efficient-attn --print-completion zsh > "${fpath[1]}/_efficient-attn"` |
| tcsh | `efficient-attn --print-completion tcsh > /etc/profile.d/efficient-attn.completion.csh` |
"""
COMMON = ("--help", "--json", "--plugin")


def render_page() -> str:
    """All verbs with their options and examples."""
    parser = make_parser()
    texts = {action.dest: action.help or "" for action in _find_verbs(parser)}
    listed = [f"| [`{name}`](#{name}) | {text} |" for name, text in texts.items()]
    parts = [INTRODUCTION + "\n".join(listed) + "\n", *map(_render_verb, texts, (parser.verbs[name] for name in texts))]
    return "\n".join([*parts, "## Exit status\n", _describe_exit_status(), COMPLETION])


def _find_verbs(parser: Parser) -> list[argparse.Action]:
    (subparsers,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return list(subparsers._choices_actions)


def _render_verb(name: str, verb: Parser) -> str:
    examples = "\n".join(f"efficient-attn {example}" for example in EXAMPLES[name])
    actions = [action for action in verb._actions if not set(action.option_strings) & set(COMMON)]
    rows = [[_format_names(action), _format_help(action)] for action in actions if action.help != argparse.SUPPRESS]
    table = make_table(("Argument", "Meaning"), rows) if rows else ""
    return f"## {name}\n\n{verb.description}\n\n```bash\n{examples}\n```\n\n{table}"


def _format_names(action: argparse.Action) -> str:
    value = str(action.metavar or "")
    if action.choices and not value:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"`{value or action.dest}{' ...' if action.nargs in ('*', '+') else ''}`"
    return " ".join([", ".join(f"`{name}`" for name in action.option_strings), f"`{value}`" if value else ""]).strip()


def _format_help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return re.sub(r"<", "&lt;", text)


def _describe_exit_status() -> str:
    """The list in the docstring of the command line's package."""
    text = re.search(r"Exit codes: (.*?)\.\n", (cli.__doc__ or "") + "\n", re.DOTALL)
    if not text:
        raise ValueError("efficient_attn.cli: the docstring has no 'Exit codes:'")
    pairs = [item.strip().partition(" ")[::2] for item in " ".join(text[1].split()).replace("``", "`").split(";")]
    return make_table(("Status", "Meaning"), [[f"`{code}`", meaning] for code, meaning in pairs])
