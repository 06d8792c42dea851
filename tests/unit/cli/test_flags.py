"""Unknown options of every verb: a hint is an option of the verb with that meaning or almost that spelling."""

from __future__ import annotations

import pytest

from efficient_attn import cli
from efficient_attn.cli.flags import SYNONYMS, check_flags, count_edits
from efficient_attn.cli.parser import Parser, make_parser

# for each verb: wrong options, with the hint; without "=": none
SUITE_FLAGS = (
    "--length=--seq-len --lenght=--seq-len --seq_len=--seq-len --SEQ-LEN=--seq-len --mechanism=--variant "
    "--variannt=--variant --precision=--dtype --batch-size=--batch --num-heads=--heads --kv=--kv-heads "
    "--kvheads=--kv-heads --head-size=--head-dim --modell=--model --sed=--seed --cores=--threads --gpu=--device "
    "--padding --rounds --step --test --file --mode --format --window --layers --repeat --min-error"
)
WRONG = {
    "list": "--jsno=--json --familly=--family --plugins=--plugin --plot=--picture --image=--picture --fam --padding "
    "--seq-len --variant --verbose --suite --quick --all --name",
    "info": "--jsonn=--json --pictre=--picture --plugin-=--plugin --out=--picture --image=--picture --padding --length "
    "--backend --options --verbose --spec --seed --dtype",
    "check": "--dtypr=--dtype --precision=--dtype --backendd=--backend --gpu=--device --cuda=--device --seeds=--seed "
    "--verbos=--verbose --padding --quick --fast --length --heads --threads --strict",
    "new": "--kin=--kind --kinds=--kind --type=--kind --template=--kind --nam=--name --jsn=--json --plugn=--plugin "
    "--force --overwrite --out --padding --family",
    "doctor": "--fast=--quick --quik=--quick --smoke=--quick --cores=--threads --jobs=--threads --gpu=--device "
    "--strct=--strict --heads --padding --seq-len --out --quiet --fix --dtype",
    "plan": SUITE_FLAGS + " --splitt=--split --output=--out --resume --timeout",
    "run": SUITE_FLAGS + " -o=--out --output=--out --ouput=--out --time-limit=--timeout --memory=--memory-limit "
    "--max-memory=--memory-limit --resum=--resume --retry --processes --baseline --engin=--engine --adress=--address "
    "--machine=--only-machine --node=--nodes --num-nodes=--nodes --partition=--slurm --scheduler=--engine",
    "merge": "-o=--out --output=--out --ouput=--out --jsno=--json --plugn=--plugin --padding --resume --force --suite "
    "--overwrite --run --verbose --plan-part",
    "report": "--outt=--out --output-dir=--out --site=--out --format=--export --exprot=--export --publishd=--published "
    "--html --padding --title --pdf --csv --figure --verbose",
    "compare": "--tolerence=--tolerance --threshold=--tolerance --alpha=--confidence --level=--confidence --markdown="
    "--format --output=--out --fail=--fail-on-regression --strict=--fail-on-regression --al=--all --heads --padding "
    "--base --seq-len --verbose",
    "claims": "--claim=--claims --chek=--check --jsn=--json --padding --run --out --id --paper --verbose --machine "
    "--rule --format --suite",
    "plot": "--variant=--only --mechanisms=--only --figre=--figure --reference=--baseline --processor=--machine "
    "--html=--format --precision=--dtype --labels=--label --head=--heads --padding --kvheads --size --dpi --title",
    "publish": "-o=--site --out=--site --output=--site --sites=--site --jsno=--json --padding --suite --title --port "
    "--format --only --run --verbose",
    "recommend": "--length=--seq-len --kv=--kv-heads --error=--max-error --perplexity=--max-ppl-ratio --ppl=--max-ppl-"
    "ratio --accuracy=--min-accuracy --time=--latency --memory-limit=--memory --model=--shape --training=--mode "
    "--bidirectional=--causal --noncausal=--causal --head-dimm=--head-dim --padding --mask --min-error --variant "
    "--quality --fill --out",
    "runs": "--jsno=--json --plugn=--plugin --padding --all --out --suite --sort --verbose --since --machine --limit "
    "--format --seq-len",
    "clean": "--dryrun=--dry-run --dry_run=--dry-run --preview=--dry-run --dry-rnu=--dry-run --jsn=--json --padding "
    "--force --all --yes --out --verbose --run --published",
}
CASES = [
    (verb, flag, hint or None)
    for verb, text in WRONG.items()
    for flag, _, hint in (word.partition("=") for word in text.split())
]


@pytest.fixture(scope="module")
def parser() -> Parser:
    return make_parser()


def test_every_verb_has_a_dozen_wrong_options(parser: Parser) -> None:
    assert set(WRONG) == set(parser.verbs)
    assert all(sum(case[0] == verb for case in CASES) >= 12 for verb in WRONG)


@pytest.mark.parametrize(("verb", "flag", "hint"), CASES, ids=lambda value: str(value))
def test_the_hint_of_an_unknown_option(
    verb: str, flag: str, hint: str | None, parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint is None or hint in parser.verbs[verb].options
    assert cli.main([verb, f"{flag}=7"]) == 2  # required arguments are missing, but the option is reported first
    remedy = f"did you mean {hint!r}?" if hint else f"see 'efficient-attn {verb} --help'"
    assert capsys.readouterr().err == f"efficient-attn: {verb}: unknown option {flag!r}; {remedy}\n"


def test_every_option_of_every_verb_is_accepted(parser: Parser) -> None:
    for name, verb in parser.verbs.items():
        for value in ("-64", "-.5", "a -b", "-"):
            check_flags(parser, [name, *verb.options, value])
        check_flags(parser, [name, "--", "--nonsense"])


def test_every_synonym_belongs_to_one_option_of_a_verb(parser: Parser) -> None:
    options = {option for verb in parser.verbs.values() for option in verb.options}
    assert set(SYNONYMS) <= options
    for verb in parser.verbs.values():
        names = [name for option in verb.options for name in SYNONYMS.get(option, "").split()]
        ambiguous = {name for name in names if names.count(name) > 1}
        assert not ambiguous, f"{verb.prog}: two options for {ambiguous}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--versoin"], "unknown option '--versoin'; did you mean '--version'?"),
        (["--nonsense", "list"], "unknown option '--nonsense'; see 'efficient-attn --help'"),
        (["info", "linear", "more"], "info: unexpected argument 'more'"),
        (["clean", "--json", "--nonsense=-3"], "clean: unknown option '--nonsense'; see 'efficient-attn clean --help'"),
    ],
)
def test_other_wrong_words(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == f"efficient-attn: {message}\n"


def test_an_unknown_verb_is_reported_before_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["rnu", "quickstart", "--quik"])
    assert "did you mean 'run'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [
        ("json", "json", 0),
        ("jsno", "json", 1),
        ("sed", "seed", 1),
        ("file", "fill", 2),
        ("step", "set", 2),
        ("", "ab", 2),
    ],
)
def test_edits(a: str, b: str, edits: int) -> None:
    assert count_edits(a, b) == count_edits(b, a) == edits
