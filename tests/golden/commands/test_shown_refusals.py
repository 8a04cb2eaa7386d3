"""Command lines that are refused: what each says is wrong, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guardrail.testing import make_artifact
from tests.golden.commands import plants
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    return Terminal(monkeypatch, tmp_path)


FIT = """
fit r.jsonl -a 15
fit r.jsonl -a 0
fit r.jsonl -a -3
fit none.jsonl -a 0.1
fit q.jsonl -a 0.1
fit text.jsonl -a 0.1
fit table.csv -a 0.1
fit r.jsonl -a 0.1 --out r.jsonl
fit r.jsonl -a 0.1 --out no/folder/a.json --test-fraction 3
fit r.jsonl -a 0.1 -e magic
fit r.jsonl -a 0.1 -e degree
fit r.jsonl -a 0.1 -e none.json
fit r.jsonl -a 0.1 -e text.json
fit r.jsonl -a 0.1 -e a.json
fit r.jsonl -a 0.1 -e semantic_entropy:exact
fit scored.jsonl -a 0.1
fit own.jsonl -a 0.1
fit r.jsonl -a 0.1 --rule certfied
fit r.jsonl -a 0.1 --rule zebra
fit r.jsonl -a 0.1 --rule acrc:min_acept=3
fit r.jsonl -a 0.1 --rule acrc:min_accept=0
fit r.jsonl -a 0.1 --rule acrc:envelope=3
fit r.jsonl -a 0.1 --rule acrc:min_accept
fit r.jsonl -a 0.1 --rule empirical:x=1
fit r.jsonl -a 0.1 --delta 0.1
fit r.jsonl -a 0.1 --rule certified --delta 10
fit r.jsonl -a 0.1 --rule certified --delta 2
fit r.jsonl -a 0.1 --rule certified --expect 70
fit r.jsonl -a 0.1 --rule certified:min_accept=10 --expect 0.7
fit r.jsonl -a 0.1 --expect 0.7
fit r.jsonl -a 0.1 --rule fixed_sequence:start=0
fit r.jsonl -a 0.1 --rule fixed_quantile:quantile=50
fit r.jsonl -a 0.1 --rule bonferroni:points=0
fit r.jsonl -a 0.1 --rule bonferroni:holm=3
fit r.jsonl -a 0.1 --rule one_per_group:seed=x
fit r.jsonl -a 0.1 --rule group_mean:seed=x
fit r.jsonl -a 0.1 --rule group_total:largest_group=0
fit r.jsonl -a 0.1 --rule group_total:largest_group=5 --cluster-by-group
fit ungrouped.jsonl -a 0.1 --cluster-by-group
fit ungrouped.jsonl -a 0.1 --by group
fit r.jsonl -a 0.1 --by group --min-labels 1000
fit r.jsonl -a 0.1 --by group --min-labels 0
fit r.jsonl -a 0.1 --by group --rule acrc
fit r.jsonl -a 0.1 --by group --rule certified:min_accept=10
fit r.jsonl -a 0.1 --by group --cluster-by-group
fit r.jsonl -a 0.1 --by group --looks 20,40 --look 1
fit r.jsonl -a 0.1 --test r.jsonl --test-fraction 0.2
fit r.jsonl -a 0.1 --test r.jsonl
fit r.jsonl -a 0.1 --test scored.jsonl
fit r.jsonl -a 0.1 --test large.jsonl
fit r.jsonl -a 0.1 --test-fraction 0.2 --look 1
fit r.jsonl -a 0.1 --test-fraction 1
fit r.jsonl -a 0.1 --test-fraction 0.001
fit r.jsonl -a 0.1 --look 1
fit r.jsonl -a 0.1 --looks 20,40
fit r.jsonl -a 0.1 --looks some
fit r.jsonl -a 0.1 --looks 40,20 --look 1
fit r.jsonl -a 0.1 --looks 20,40 --look 3
fit r.jsonl -a 0.1 --human-labels people.csv --rule certified
fit r.jsonl -a 0.1 --human-labels people.csv -e auto
fit r.jsonl -a 0.1 --human-labels none.csv
fit r.jsonl -a 0.1 --human-labels text.jsonl
fit r.jsonl -a 0.1 --human-labels strangers.csv
fit r.jsonl -a 0.1 -e auto --share 2
fit few.jsonl -a 0.1 -e auto
fit r.jsonl -a 0.1 -e auto --look 1 --looks 20,40
fit r.jsonl -a 0.1 -e semantic_entropy --declare perplexity
fit r.jsonl -a 0.1 -e semantic_entropy --declare magic
fit r.jsonl large.jsonl -a 0.1
fit both.jsonl -a 0.1
fit r.jsonl -a 0.1 --cap 3
fit r.jsonl -a 0.1 --cut 0.3
fit r.jsonl -a 0.1 --planned 3
fit r.jsonl -a 0.1 --by-length 2
fit r.jsonl -a 0.1 --parts json
fit r.jsonl -a 0.1 --parts json -e perplexity
fit r.jsonl -a 0.1 --parts json --by group
fit r.jsonl -a 0.1 --parts json --rule certified
fit r.jsonl -a 0.1 --parts json --by-length two
fit r.jsonl -a 0.1 --parts json --test r.jsonl --test-fraction 0.3
inspect none.json
inspect text.json
inspect r.jsonl
inspect changed.json
inspect cascade.json
"""
OTHERS = """
plan -a 0.1
plan -a 10 --accuracy 0.7 --auroc 0.8
plan -a 0.1 --accuracy 70 --auroc 0.8
plan -a 0.1 --accuracy 0.7 --auroc 80
plan -a 0.1 --accuracy 0.7
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --pilot r.jsonl
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --acceptance 40
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --delta 5
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --n 0
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --rule zebra
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --labels 3
plan -a 0.1 --accuracy 0.7 --auroc 0.8 --cut 3
plan -a 0.1 --records scored.jsonl
plan -a 0.1 --records own.jsonl --accuracy 0.7 --auroc 0.8
plan -a 0.1 --records scored.jsonl --accuracy 0.7 --auroc 0.8 --rule acrc --rule lec
plan -a 0.1 --records scored.jsonl --accuracy 0.7 --auroc 0.8 --labels 3000
plan -a 0.1 --pilot few.jsonl
plan -a 0.1 --pilot scored.jsonl
plan -a 0.1 --parts json
plan -a 0.1 --parts json --accuracy 0.7
plan -a 0.1 --parts json --pilot r.jsonl
sample --records scored.jsonl
sample --records scored.jsonl --n 0
sample --records scored.jsonl --n 1000
sample --records scored.jsonl --n 10 --reach 50 --fixed-beforehand
sample --records scored.jsonl --n 10 --reach 0.9
sample --records fresh-open.jsonl -e perplexity --n 30 --reach 0.8
sample --records scored.jsonl --n 30 --looks 10,20
sample --records scored.jsonl --looks 20,10
sample --records scored.jsonl --looks few
sample --records scored.jsonl --n 10 --out scored.jsonl
sample --records r.jsonl --n 10
sample --records own.jsonl --n 10
sample --records drawn.jsonl --n 10
fit drawn.jsonl -a 0.1
score r.jsonl -e magic
score r.jsonl -e semantic_entropy:magic
score r.jsonl -e semantic_entropy:exact:gredy
score r.jsonl -e none.json
score r.jsonl --scorer none:Nothing
score r.jsonl --judge magic
score r.jsonl --judge numeric(x=1)
score r.jsonl --similarity magic
score r.jsonl --entailment magic
score r.jsonl --ties-by perplexity
score r.jsonl --address auto
score r.jsonl --cap 3
score r.jsonl --schema table.csv
score r.jsonl --parts json --judge exact
score r.jsonl --parts json --engine ray
score r.jsonl --parts json
score r.jsonl --parts json --schema text.json
score r.jsonl --parts json --schema table.csv
score r.jsonl --parts json --field-judge total
score r.jsonl --parts json --field-judge /total=magic
score r.jsonl --parts json --key-field /items=
score r.jsonl --parts sentences
score r.jsonl large.jsonl
score r.jsonl few.jsonl
score r.jsonl --pair-cache r.jsonl
label r.jsonl --rule magic
label r.jsonl --rule token_f1(limit=1)
label r.jsonl --rule exact --threshold 0.5
label r.jsonl --threshold 5
label r.jsonl --tolerance 1
label r.jsonl --rule chat_judge
label r.jsonl --rule numeric --judge-model python:tests.golden.commands.plants:model
label r.jsonl --rule python:tests.golden.commands.plants:nothing
label r.jsonl --rule exact --interactive
label r.jsonl --rule exact --labels people.csv
label r.jsonl --labels none.csv
label r.jsonl --labels r.jsonl
label r.jsonl --labels empty.csv
label r.jsonl --labels odd.csv
label r.jsonl --labels strangers.csv
label r.jsonl --undecided
label scored.jsonl --undecided --interactive
label r.jsonl --order certain --interactive
label r.jsonl --order best --interactive
label r.jsonl --alpha 0.1
label r.jsonl --acceptance 0.1
label r.jsonl --estimator perplexity
label r.jsonl --interactive --until certified
label r.jsonl --interactive --until certified --alpha 0.1
label r.jsonl --interactive --until certified --alpha 0.1 --limit 3
label r.jsonl --undecided --interactive --until certified
label waiting.jsonl --undecided --interactive --until certified --alpha 0.1
label r.jsonl --cut 0.3
label r.jsonl --parts json
label r.jsonl --parts json --rule exact
label r.jsonl --parts json --limit 3
label r.jsonl few.jsonl
evaluate r.jsonl --splits 2 -e magic
evaluate own.jsonl --splits 2
evaluate scored.jsonl --splits 2
evaluate r.jsonl --splits 2 -a 10
evaluate r.jsonl --splits 2 --n-calibration 1000
evaluate r.jsonl --splits 2 --rule zebra
evaluate r.jsonl --splits 2 --rule acrc:zebra=1
evaluate r.jsonl --splits 2 --table main --rule acrc
evaluate r.jsonl --splits 2 --figure p.png --rule acrc
evaluate r.jsonl --splits 2 --csv r.jsonl
evaluate r.jsonl --splits 2 -a 0.2 -e perplexity --rule acrc --rest rest.jsonl
evaluate r.jsonl --splits 2 --cut 3
evaluate r.jsonl --splits 2 --parts json
evaluate r.jsonl --splits 2 --parts json --apart
evaluate r.jsonl --splits 2 --parts json --table main
evaluate ungrouped.jsonl --splits 2 --cluster-by-group
evaluate r.jsonl large.jsonl --splits 2
evaluate r.jsonl large.jsonl --splits 2 --apart --rest rest.jsonl
report r.jsonl --artifact none.json
report large.jsonl --artifact a.json
report r.jsonl --artifact a.json --out r.jsonl
report r.jsonl --artifact a.json -e magic
report scored.jsonl --artifact a.json
report r.jsonl --artifact a.json --test large.jsonl
audit --records fresh.jsonl --artifact none.json
audit --records none.jsonl --artifact a.json
audit --records large.jsonl --artifact a.json
audit --records fresh.jsonl --artifact a.json --level 0.6
audit --records fresh.jsonl --artifact a.json --level 0
audit --records fresh.jsonl --artifact a.json --at-most 10
audit --records fresh.jsonl --artifact a.json -e magic
audit --records fresh.jsonl --artifact a.json -e perplexity
audit --records r.jsonl --artifact a.json
audit --records overlap.jsonl --artifact a.json
audit --records open.jsonl --artifact people.json
drift large.jsonl --artifact a.json
drift fresh.jsonl --artifact none.json
drift fresh.jsonl --artifact a.json --delta 5
drift fresh.jsonl --artifact made.json
ensemble r.jsonl -m semantic_entropy
ensemble r.jsonl -m semantic_entropy,magic
ensemble r.jsonl -m semantic_entropy,degree
ensemble r.jsonl -m perplexity,perplexity
ensemble r.jsonl -m semantic_entropy,perplexity --out e.txt
ensemble r.jsonl -m semantic_entropy,perplexity --train-fraction 30
ensemble r.jsonl -m semantic_entropy,perplexity --train-fraction 0.001
ensemble few.jsonl -m semantic_entropy,perplexity
ensemble ungrouped.jsonl -m semantic_entropy,perplexity --cluster-by-group
two-stage r.jsonl
fit-cascade r.jsonl -a 0.1
fit-cascade r.jsonl large.jsonl -a 10 -e perplexity
fit-cascade r.jsonl large.jsonl -a 0.1 -e perplexity -e perplexity -e perplexity
fit-cascade r.jsonl large.jsonl -a 0.1 -e perplexity --rule acrc
fit-cascade r.jsonl large.jsonl -a 0.1 -e perplexity --delta 0.1
fit-cascade r.jsonl large.jsonl -a 0.1 -e perplexity --price -1
fit-cascade r.jsonl fresh.jsonl -a 0.1 -e perplexity
fit-cascade r.jsonl scored.jsonl -a 0.1 -e perplexity
fit-cascade r.jsonl stated.jsonl -a 0.1 -e perplexity
fit-cascade r.jsonl drawn.jsonl -a 0.1 -e perplexity
fit-cascade ungrouped.jsonl large.jsonl -a 0.1 -e perplexity --cluster-by-group
fit-cascade r.jsonl large.jsonl -a 0.1 -e perplexity --out r.jsonl
candidates fresh.jsonl --artifact a.json --epsilon 20
candidates fresh.jsonl --artifact a.json --delta 20
candidates fresh.jsonl --artifact a.json --judge-model python:tests.golden.commands.plants:model
candidates fresh.jsonl --artifact people.json
candidates fresh.jsonl --artifact a.json --calibration fresh.jsonl
candidates r.jsonl --artifact a.json
candidates large.jsonl --artifact a.json
candidates large.jsonl --artifact a.json --population all
candidates drawn.jsonl --artifact a.json --population all
select r.jsonl r.jsonl -a 0.1
select r.jsonl fresh.jsonl -a 10
select r.jsonl large.jsonl -a 0.1
select scored.jsonl fresh.jsonl -a 0.1
select r.jsonl fresh.jsonl -a 0.1 -e magic
select r.jsonl fresh.jsonl -a 0.1 --out r.jsonl
collect none.jsonl --model python:tests.golden.commands.plants:model
collect text.jsonl --model python:tests.golden.commands.plants:model
collect empty.csv --model python:tests.golden.commands.plants:model
collect q.jsonl --model python:tests.golden.commands.plants:nothing
collect q.jsonl --model python:tests.golden
collect q.jsonl --model python:tests.golden.commands.plants:WORDS
collect q.jsonl --model python:tests.golden.commands.plants:model --out q.jsonl
collect q.jsonl --model python:tests.golden.commands.plants:model --n -1
collect q.jsonl --model python:tests.golden.commands.plants:model --temperature 0
collect q.jsonl --model python:tests.golden.commands.plants:model --top-p 2
collect q.jsonl --model python:tests.golden.commands.plants:model --max-tokens 0
collect q.jsonl --model python:tests.golden.commands.plants:model --calls 2
collect q.jsonl --model python:tests.golden.commands.plants:model -e magic
collect q.jsonl --model python:tests.golden.commands.plants:model -e predictive_entropy
collect q.jsonl --model python:tests.golden.commands.plants:model --scorer none:Nothing
collect q.jsonl --model python:tests.golden.commands.plants:model --tools text.json
collect q.jsonl --model python:tests.golden.commands.plants:model --tools none.json
collect q.jsonl --model python:tests.golden.commands.plants:model --questions-format magic
collect q.jsonl --model python:tests.golden.commands.plants:model --template plain
collect q.jsonl --model python:tests.golden.commands.plants:model --export-only
collect q.jsonl --model python:tests.golden.commands.plants:model --results text.jsonl
collect q.jsonl --model python:tests.golden.commands.plants:model --address auto
collect q.jsonl --model python:tests.golden.commands.plants:model --out large.jsonl --n 5
collect q.jsonl --model python:tests.golden.commands.plants:model --parts json --engine batch
identify large.jsonl --model python:tests.golden.commands.plants:model
identify none.jsonl --model python:tests.golden.commands.plants:model
import none.csv --out t.jsonl
import none.csv
import table.csv --out r.jsonl
import table.csv --out t.jsonl --max-bad 5
import table.csv --out t.jsonl --unit bits
import table.csv --out t.jsonl --score-direction up
import table.csv --out t.jsonl --option-scale odds
import table.csv --out t.jsonl --other-labels right
import table.csv --out t.jsonl --field name
import table.csv --out t.jsonl --map question
import table.csv --out t.jsonl --map zebra=question
import table.csv --out t.jsonl --map question=ask --map samples=one,two
import table.csv --out t.jsonl --map question=ask --map samples=one
import table.csv --out t.jsonl --map question=ask --map answer=one --map confidence=sure:half --map correct=ok
import table.csv --out t.jsonl --map question=ask --map score=s:half --map correct=ask
import table.csv --out t.jsonl --parts json
import table.csv --out t.jsonl --format magic
run
run --questions q.jsonl
run settings.yaml
run wrong.yaml
run list.yaml
run text.json
run none.yaml
run --questions q.jsonl --model python:tests.golden.commands.plants:model --alpha 10
run --questions q.jsonl --model python:tests.golden.commands.plants:model --test-fraction 3
run --questions q.jsonl --model python:tests.golden.commands.plants:model --rule zebra
run --questions q.jsonl --model python:tests.golden.commands.plants:model --estimator magic
run --questions q.jsonl --model python:tests.golden.commands.plants:model --calls 1.4
run --questions q.jsonl --model python:tests.golden.commands.plants:model --calls 1.4 --estimator perplexity
run --questions q.jsonl --model python:tests.golden.commands.plants:model --scorer none:Nothing --calls 1
run --questions q.jsonl --model python:tests.golden.commands.plants:model --correctness magic
run --questions q.jsonl --model python:tests.golden.commands.plants:model --correctness exact --judge-model python:x:y
run --questions q.jsonl --model python:tests.golden.commands.plants:model --test-questions q.jsonl
run --questions q.jsonl --model python:tests.golden.commands.plants:model --parts json --estimator perplexity
run --questions q.jsonl --model python:tests.golden.commands.plants:model --parts json --rule certified
run --questions unknown.jsonl --model python:tests.golden.commands.plants:model
run --questions q.jsonl --model python:tests.golden.commands.plants:model --out . --price -1
from-reviews none.db --artifact a.json
from-reviews text.json --artifact a.json
from-reviews none.db --artifact a.json --out a.json
from-reviews none.db --artifact none.json
from-reviews none.db --artifact a.json --monitor risk --missing wrong
steps none.db --records none.jsonl
steps text.json
steps none.db --records r.jsonl --model python:tests.golden.commands.plants:model
steps none.db --model python:tests.golden.commands.plants:model
steps none.db --compare transfer --records r.jsonl
"""


def write_files() -> None:
    """The files that the command lines name, and some that are not what they should be."""
    plants.labelled("r.jsonl", 60)
    plants.labelled("large.jsonl", 60, name="large")
    plants.labelled("fresh.jsonl", 40, "f")
    plants.labelled("few.jsonl", 8, "w")
    plants.unlabelled("scored.jsonl", 60)
    plants.unlabelled("open.jsonl", 30, "o")
    plants.unlabelled("fresh-open.jsonl", 40, "f")
    plants.unscored("own.jsonl", 30)
    plants.write_questions("q.jsonl", 6)
    file = plants.population(60)
    records = file.records
    plants.write("ungrouped.jsonl", [record.model_copy(update={"group": None}) for record in records], file.header)
    plants.write("waiting.jsonl", [record.model_copy(update={"correct": None, "label_detail": ""}) if i % 3 == 0 else
                                   record for i, record in enumerate(records)], file.header)  # fmt: skip
    again = [record.model_copy(update={"id": f"again {record.id}"}) for record in records[:5]]
    plants.write("again.jsonl", again, file.header)
    both = [*records, records[0].model_copy(update={"id": "twin", "correct": not records[0].correct})]
    plants.write("both.jsonl", both, file.header)
    fresh = plants.population(40, "f")
    plants.write("overlap.jsonl", [*fresh.records, *records[:20]], fresh.header)
    Path("unknown.jsonl").write_text('{"question": "why?"}\n{"question": "who?"}\n', encoding="utf-8")
    Path("text.jsonl").write_text("not JSON\n", encoding="utf-8")
    Path("text.json").write_text("[1, 2]\n", encoding="utf-8")
    Path("table.csv").write_text("ask,one,two,half,ok\nwho?,Ada,,0.5,yes\nwhy?,,,x,maybe\n", encoding="utf-8")
    Path("people.csv").write_text("id,correct\n" + "".join(f"p{i},1\n" for i in range(40)), encoding="utf-8")
    Path("strangers.csv").write_text("id,correct\nx1,1\nx2,0\n", encoding="utf-8")
    Path("odd.csv").write_text("id,correct\np1,perhaps\n", encoding="utf-8")
    Path("empty.csv").write_text("", encoding="utf-8")
    Path("settings.yaml").write_text("questions: q.jsonl\nmodel: m\nalhpa: 0.1\n", encoding="utf-8")
    Path("wrong.yaml").write_text("questions: [q.jsonl\n", encoding="utf-8")
    Path("list.yaml").write_text("- questions\n", encoding="utf-8")
    make_artifact(plants.model()).save("made.json")


def prepare(terminal: Terminal) -> None:
    """Artifacts and files that commands write."""
    write_files()
    for line in (
        "fit r.jsonl -e semantic_entropy -a 0.2 --out a.json",
        "label r.jsonl --labels people.csv --out people.jsonl",
        "fit people.jsonl -e semantic_entropy -a 0.2 --out people.json",
        "label r.jsonl --rule stated --out stated.jsonl",
        "fit-cascade r.jsonl large.jsonl -a 0.2 -e semantic_entropy --out cascade.json",
        "sample --records scored.jsonl -e perplexity --reach 0.5 --n 8 --out drawn.jsonl",
        "label drawn.jsonl --rule exact",
    ):
        terminal.run(line)
    content = json.loads(Path("a.json").read_text(encoding="utf-8"))
    Path("changed.json").write_text(json.dumps({**content, "digest": "sha256:" + "0" * 64}), encoding="utf-8")
    for path in Path().glob("*.fits.jsonl"):
        path.unlink()
    terminal.lines.clear()


@pytest.mark.parametrize(("name", "lines"), [("refused_fits", FIT), ("refused", OTHERS)])
def test_refused_command_lines(name: str, lines: str, terminal: Terminal) -> None:
    prepare(terminal)
    for line in lines.strip().splitlines():
        terminal.refused(line)
    same(f"commands/{name}.txt", terminal.text)
