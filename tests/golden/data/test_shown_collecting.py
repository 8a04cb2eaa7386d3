"""Collection: what is asked and stored, what its progress says, why it stops; batches, steps of agents, columns."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from rich.console import Console

from calibrate.agent_steps import collect_steps, fit_action, read_steps, split_by_action, steps_of, write_steps
from calibrate.candidate_sets import Judged, evaluate_candidates, fit_candidates, judge_candidates, quantile
from calibrate.correctness import make_rule
from calibrate.data import column_build, column_store
from calibrate.data.batches import Batches
from calibrate.data.collect import collect_records
from calibrate.data.column_store import ColumnRecords, in_memory, open_records, share_ids
from calibrate.data.progress import bar
from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordFile, read_records, write_records
from guardrail.bindings import bindings_for
from guardrail.prompting import PromptWrapping
from guardrail.sampling.batches import BatchState
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, Sample, SampleSet, SamplingPlan, Uncertainty
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for
from guardrail.verdict import Reason, Verdict
from integrations.openai_chat import OpenAICompatibleChat
from tests.calibrate import fakes

from .story import Story, spelled, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name files as a user types them, which is without the folder of the test."""
    monkeypatch.chdir(tmp_path)


PLAN = plan_for([make_estimator("discrete_semantic_entropy")], n=3)


def questions(n: int) -> list[Question]:
    return [Question(**row) for row in fakes.rows(n)]


def model(n: int, *bad: int) -> ScriptedChat:
    """The fakes' model; questions of these numbers fail."""
    script = {f"plant {i}?": list(answers) for i, answers in enumerate(fakes.script(n).values())}
    return fakes.scripted(script | {f"plant {i}?": [ConnectionError("refused")] for i in bad})


def untimed(record: Record) -> Record:
    """The record without the seconds that its answers took."""
    assert record.drawn is not None
    cost = record.drawn.cost.model_copy(update={"seconds": 0.0})
    return record.model_copy(update={"drawn": record.drawn.model_copy(update={"cost": cost})})


def stored(path: str) -> list[Record]:
    return sorted(map(untimed, read_records(path).records), key=lambda record: record.id)


class Twice(ScriptedChat):
    """A model that gives one answer only."""


def test_collections() -> None:
    story = Story("collecting.txt")
    seen: list[str] = []
    few = model(8, 3)
    done = collect_records(
        questions(8),
        few,
        PLAN,
        "records.jsonl",
        max_concurrency=1,
        name="plants",
        probe="off",
        progress=lambda done, total, note="": seen.append(f"{done} of {total} {note}".strip()),
    )
    story.show("collected", done)
    story.show("failed", done.n_failed)
    story.show("progress", seen)
    header = read_records("records.jsonl").header
    story.show("header", header.model_copy(update={"created": "", "packages": {}}))
    story.say(*(spelled(record) for record in stored("records.jsonl")[:4]))
    again = collect_records(
        questions(8), model(8), PLAN, "records.jsonl", probe="off", name="plants", retry_failed=True
    )
    story.show("asked again", again)
    story.head("a prompt with slots and options")
    wrapped = PromptWrapping(system="Be brief.", template="{context}\n{question}", slots=("context",))
    asked = [Question(id="1", question="Which?", references=("A",), slots={"context": "A story."}, group="g")]
    collect_records(asked, ScriptedChat(default=("A", "B", "C", "D")), PLAN, "slots.jsonl", prompt=wrapped, probe="off")
    story.say(spelled(stored("slots.jsonl")))
    story.head("a conversation instead of the question")
    messages = {"p0": [HumanMessage("Hello"), AIMessage("Hi"), HumanMessage("plant 0?")]}
    collect_records(questions(2), model(2), PLAN, "talk.jsonl", messages=messages, probe="off")
    story.say(*(spelled({"id": record.id, "turns": record.turns}) for record in stored("talk.jsonl")))
    story.head("cut off")
    cut = AIMessage("Par", response_metadata={"finish_reason": "length"})
    done = collect_records(
        questions(1), ScriptedChat(script={"plant 0?": [cut, "x", "y", "z"]}), PLAN, "cut.jsonl", probe="off"
    )
    story.show("counted", [done.n_cut_off, done.problems, read_records("cut.jsonl").records[0].cut_off])
    story.head("refused")
    own = [questions(1)[0].model_copy(update={"tools": ("search",)})]
    mixed = [questions(1)[0], questions(2)[1].model_copy(update={"options": {"A": "x", "B": "y"}})]
    same = ScriptedChat(default=("the same",))
    failing = model(20, *range(20))
    options = SamplingPlan(n=0, options=("A", "B"))
    refusals: dict[str, Callable[[], object]] = {
        "no question": lambda: collect_records([], few, PLAN, "x.jsonl"),
        "options for some": lambda: collect_records(mixed, few, PLAN, "x.jsonl"),
        "options of the plan": lambda: collect_records(questions(1), few, options, "x.jsonl"),
        "tools of a question": lambda: collect_records(own, few, PLAN, "x.jsonl"),
        "slots that are missing": lambda: collect_records(
            questions(1), few, PLAN, "x.jsonl", prompt=wrapped, probe="off"
        ),
        "another collection": lambda: collect_records(questions(5), few, PLAN, "records.jsonl", probe="off"),
        "an endpoint that repeats itself": lambda: collect_records(questions(4), same, PLAN, "y.jsonl"),
        "samples that are all alike": lambda: collect_records(questions(4), same, PLAN, "z.jsonl", probe="off"),
        "a model that fails": lambda: collect_records(
            questions(20), failing, PLAN, "w.jsonl", max_concurrency=4, probe="off"
        ),
        "a model without a batch service": lambda: collect_records(
            questions(1), few, PLAN, "v.jsonl", batches=Batches("v.jsonl", submit=False)
        ),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    allowed = collect_records(questions(4), same, PLAN, "z.jsonl", probe="off", allow_identical_samples=True)
    story.show("allowed", allowed)
    story.show("kept of a model that fails", Path("w.jsonl").exists() and len(read_records("w.jsonl").records))
    story.head("short work outside a terminal")
    out = io.StringIO()
    with bar(Console(file=out, width=100), "asking") as report:
        report(0, 10)
        report(5, 10, "2 failed")
    story.show("printed", repr(out.getvalue()))
    story.compare()


def completion(body: Mapping[str, Any]) -> dict[str, Any]:
    """A reply that depends on the request alone."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    message = {"role": "assistant", "content": f"town {digest[:4]}"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    return {"id": "x", "object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}


def reply_line(request: Mapping[str, Any], status: int = 200) -> str:
    body = completion(request["body"]) if status == 200 else {"error": {"message": "overloaded", "code": status}}
    return json.dumps({"custom_id": request["custom_id"], "response": {"status_code": status, "body": body}})


class Service(OpenAICompatibleChat):
    """A batch service without a network: each batch does what the next word of `fates` says."""

    fates: list[str] = []  # noqa: RUF012 - a field of the model
    files: dict[str, bytes] = {}  # noqa: RUF012 - a field of the model

    def submit_batch(self, path: Path, name: str, *, again: bool) -> str:
        batch = f"batch-{len(self.files)}"
        self.files[batch] = path.read_bytes()
        return batch

    def batch_state(self, batch: str) -> BatchState:
        requests = self.files[batch].splitlines()
        fate = self.fates.pop(0) if self.fates else "done"
        if fate == "waiting":
            return BatchState("in_progress", False, len(requests) // 2, len(requests))
        error = "the quota is used up" if fate == "failed" else ""
        files = (f"{batch}/{fate}",) if fate != "failed" else ()
        return BatchState("failed" if error else "completed", True, len(requests), len(requests), files, error)

    def batch_file(self, file: str) -> bytes:
        batch, _, fate = file.partition("/")
        requests = [json.loads(line) for line in self.files[batch].splitlines()]
        lines = [
            reply_line(request, 500 if fate == "errors" and i % 3 == 0 else 200) for i, request in enumerate(requests)
        ]
        return "\n".join(lines[: len(lines) // 2] if fate == "half" else lines).encode()


def test_batches() -> None:
    story = Story("batches.txt")
    plan = SamplingPlan(n=2, temperature=0.7, max_tokens=16, seed=3)
    asked = questions(3)
    for title, fates, settings in (
        ("all answered", ["waiting", "done"], {}),
        ("half answered, then all", ["half", "done"], {}),
        ("errors until the end", ["errors"] * 3, {}),
        ("three files", ["done"] * 3, {"most_requests": 3}),
    ):
        path = f"{title.split(',')[0].replace(' ', '-')}.jsonl"
        service = Service(
            model="towns",
            base_url="http://127.0.0.1:1/v1",
            max_retries=0,
            fates=fates,
            files={},
            several_per_call=False,
        )
        seen: list[str] = []
        batches = Batches(path, wait=0.0, **settings)  # type: ignore[arg-type]
        done = collect_records(
            asked,
            service,
            plan,
            path,
            batches=batches,
            probe="off",
            progress=lambda done, total, note="": seen.append(f"{done} of {total} {note}".strip()),  # noqa: B023
        )
        story.head(title)
        story.show("collected", done)
        story.show("progress", seen)
        folder = Path(f"{path}.batches")
        for file in sorted(folder.iterdir()):
            story.show(file.name, f"{len(file.read_bytes().splitlines())} lines")
        story.say(*(spelled(record) for record in stored(path)[:1]))
    story.head("the files")
    for name in ("collection.json", "0001-1.json", "0001-1.requests.jsonl"):
        story.show(name, (folder / name).read_text(encoding="utf-8").splitlines()[0])
    story.head("a batch that is not run")
    service = Service(
        model="towns", base_url="http://127.0.0.1:1/v1", fates=["failed"], files={}, several_per_call=False
    )
    story.refused(
        "failed",
        lambda: collect_records(asked, service, plan, "f.jsonl", batches=Batches("f.jsonl", wait=0.0), probe="off"),
    )
    story.show("files", sorted(file.name for file in Path("f.jsonl.batches").iterdir()))
    story.head("requests for another tool, and its results")
    exported = collect_records(asked, service, plan, "e.jsonl", batches=Batches("e.jsonl", submit=False), probe="off")
    story.show("exported", exported)
    requests = [json.loads(line) for line in Path("e.jsonl.batches/0001-1.requests.jsonl").read_bytes().splitlines()]
    results = write("results.jsonl", [reply_line(request) for request in requests[:3]])
    half = collect_records(
        asked, service, plan, "e.jsonl", batches=Batches("e.jsonl", submit=False, results=[results]), probe="off"
    )
    story.show("a part of the results", half)
    story.show("files", sorted(file.name for file in Path("e.jsonl.batches").iterdir()))
    story.head("refused")
    bodies = {
        "a torn line": '{"custom_id": "x',
        "no id": '{"response": {}}',
        "a list": "[]",
        "a status that is a word": '{"custom_id": "x", "response": {"status_code": "ok"}}',
        "results of other requests": '{"custom_id": "x.primary", "response": {"status_code": 200, "body": {}}}',
        "nothing": "",
    }
    for title, line in bodies.items():
        other = write("other.jsonl", f"{line}\n" if line else "")
        others = Batches("e.jsonl", submit=False, results=[other])
        story.refused(title, lambda: collect_records(asked, service, plan, "e.jsonl", batches=others, probe="off"))  # noqa: B023
    warmer = plan.model_copy(update={"temperature": 1.0})
    Path("e.jsonl").unlink()
    story.refused(
        "another plan",
        lambda: collect_records(
            asked, service, warmer, "e.jsonl", batches=Batches("e.jsonl", submit=False), probe="off"
        ),
    )
    errors: dict[str, dict[str, Any]] = {
        "an error with a message": {"error": {"message": "expired"}},
        "an error with a code": {"error": {"code": "batch_expired"}},
        "an error that is a word": {"error": "gone"},
        "nothing": {},
        "an HTTP error": {"response": {"status_code": 400, "body": {"error": {"message": "too long"}}}},
        "an HTTP error of a word": {"response": {"status_code": 404, "body": "gone"}},
    }
    from calibrate.data.batches import _read_results

    for title, values in errors.items():
        for custom, _, reply in _read_results(write("one.jsonl", [{"custom_id": "k.primary", **values}, ""])):
            story.show(title, [custom, reply.status, reply.error, reply.may_pass])
    story.compare()


def transfer(to: str, amount: int) -> str:
    """Send money."""
    return ""


def balance() -> str:
    """Read the balance."""
    return ""


def calling(name: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": "c1", "type": "tool_call"}])


def test_steps_of_agents() -> None:
    story = Story("agent_steps.txt")
    talk = [
        SystemMessage("You are a bank."),
        HumanMessage("how much?"),
        calling("balance"),
        ToolMessage("100", tool_call_id="c1"),
        AIMessage("100"),
        HumanMessage("send bob 5"),
        calling("transfer", to="bob", amount=5),
    ]
    steps = steps_of(talk, group="c")
    for step in steps:
        roles = [message["role"] for message in step.messages]
        story.say(spelled([roles, step.references, step.group]), step.to_question().question)
    write_steps("steps.jsonl", steps)
    story.show("read", read_steps("steps.jsonl") == steps)
    story.head("collected and cut by what was proposed")
    plan = plan_for([make_estimator("discrete_semantic_entropy")], n=2, bindings=bindings_for([transfer, balance]))
    chat = ScriptedChat(
        script={
            "how much?": [calling("balance")] * 2 + [AIMessage("none")],
            "100": [AIMessage("100"), AIMessage("100"), AIMessage("a hundred")],
            "send bob 5": [calling("transfer", to="bob", amount=5)] * 3,
        }
    )
    collect_steps(
        steps,
        chat,
        plan,
        "records.jsonl",
        system="You are a bank.",
        probe="off",
        max_concurrency=1,
        allow_identical_samples=True,
    )
    for record in sorted(stored("records.jsonl"), key=lambda record: len(record.question)):
        number = [step.id for step in steps].index(record.id)
        story.show(f"step {number}", [record.shown_answer, record.turns, record.group])
    for name, path in split_by_action("records.jsonl").items():
        story.show(name, [str(path), len(read_records(path).records), read_records(path).header.n_questions])
    story.show("without balance", sorted(split_by_action("records.jsonl", exempt=["balance"])))
    artifact = fit_action(
        "records.transfer.jsonl", make_estimator("discrete_semantic_entropy"), alpha=0.2, groups="category"
    )
    story.show("fit", [artifact.outcome, artifact.selection, artifact.correctness])
    story.head("refused")
    user = {"role": "user", "content": "hi"}
    for title, row in {
        "no JSON": "{",
        "a list": [],
        "no messages": {"references": ["x"]},
        "empty messages": {"messages": [], "references": ["x"]},
        "a system message": {"messages": [{"role": "system", "content": "x"}], "references": ["x"]},
        "no reference": {"messages": [user]},
        "an empty reference": {"messages": [user], "references": [" "]},
        "a reference that is a number": {"messages": [user], "references": [5]},
        "a later format": {"messages": [user], "references": ["x"], "format": 2},
    }.items():
        path = write("bad.jsonl", [row])
        story.refused(title, lambda: read_steps(path))  # noqa: B023
    twice = write("bad.jsonl", [{"messages": [user], "references": ["x"]}] * 2)
    story.refused("a step twice", lambda: read_steps(twice))
    twice_id = read_steps(write("one.jsonl", [{"messages": [user], "references": ["x"]}]))[0].id
    story.refused("nothing", lambda: read_steps(write("empty.jsonl", "\n")))
    story.refused("no file", lambda: read_steps("none.jsonl"))
    story.refused("ids that are alike", lambda: collect_steps([steps[0], steps[0]], chat, plan, "x.jsonl", system=None))
    more = read_steps(
        write(
            "good.jsonl",
            [
                {"id": 7, "messages": [user], "references": {"name": "f", "arguments": {"x": 1}}, "group": 3},
                {"messages": [user], "rejected": ["no"]},
            ],
        )
    )
    story.say(*(spelled(step.model_copy(update={"messages": ()})) for step in more))
    story.show("an id of its own", more[1].id == twice_id)
    story.compare()


def judged(shares: Sequence[float], acceptable: Sequence[bool], *, accepted: bool = False) -> Judged:
    verdict = Verdict(
        accepted=accepted,
        reason=Reason.ABOVE_THRESHOLD,
        detail="",
        threshold=0.5,
        alpha=0.1,
        guarantee="",
        uncertainty=Uncertainty(value=1.0, unit="nats", estimator="x"),
        artifact="",
        candidate=None,
        alternatives=tuple((f"a{i}", share) for i, share in enumerate(shares)),
    )
    return Judged("id", accepted, verdict, tuple(acceptable))


def test_lists_for_reviewers() -> None:
    story = Story("candidates.txt")
    base = make_artifact(ScriptedChat(), threshold=0.5)
    artifact = base.model_copy(update={"correctness": make_rule("exact").spec})
    lists = [judged([0.5, 0.3, 0.2], [i % 3 == place for place in range(3)], accepted=i % 7 == 0) for i in range(60)]
    lists += [judged([0.6, 0.4], [False, False])] * 3
    story.show("scores", [each.score for each in lists[:3]])
    for epsilon, delta, who in (
        (0.5, 0.1, "held_back"),
        (0.2, 0.1, "held_back"),
        (0.5, 0.2, "all"),
        (0.02, 0.1, "all"),
    ):
        rule = fit_candidates(lists, artifact, epsilon=epsilon, delta=delta, population=who)  # type: ignore[arg-type]
        story.show(
            f"{epsilon:g}, {delta:g}, {who}",
            [rule.model_copy(update={"artifact": ""}), evaluate_candidates(lists, rule)],
        )
    story.show("quantiles", [quantile([float(i) for i in range(n)], 0.1, 0.1) for n in (21, 22, 38)])
    samples = [["x", "x", "y"], ["x", "y", "z"], ["y", "y", "y"]]
    records = [
        Record(
            id=str(i),
            question="q?",
            references=("x",) if i < 3 else (),
            drawn=SampleSet(
                question="q?",
                primary=Sample(text=texts[0]),
                samples=tuple(Sample(text=text) for text in texts),
                cost=Cost(),
            ),
        )
        for i, texts in enumerate([*samples, samples[0]])
    ]
    found, left_out = judge_candidates(records, artifact, make_rule("exact"))
    story.show("left out", left_out)
    for each in found:
        story.show(each.id, [each.accepted, each.acceptable, each.verdict.alternatives, each.score])
    story.head("refused")
    easy = [judged([1.0], [True], accepted=True)]
    refusals: dict[str, Callable[[], object]] = {
        "another rule": lambda: judge_candidates(records, artifact, make_rule("stated")),
        "an epsilon of 10": lambda: fit_candidates(lists, artifact, epsilon=10),
        "a delta of 0": lambda: fit_candidates(lists, artifact, epsilon=0.1, delta=0),
        "nothing held back": lambda: fit_candidates(easy, artifact, epsilon=0.1),
        "nothing to evaluate on": lambda: evaluate_candidates(
            easy, rule.model_copy(update={"population": "held_back"})
        ),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_columns_say_what_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story("columns.txt")
    monkeypatch.setattr(column_store, "LARGE", 0)
    monkeypatch.setattr(column_build, "_BATCH", 2_000)
    collect_records(questions(24), model(24, 3), PLAN, "records.jsonl", probe="off")
    file = read_records("records.jsonl")
    labels = [
        {"correct": i % 3 > 0 if i % 5 else None, "label_detail": "" if i % 10 else "in doubt"} for i in range(24)
    ]
    by_id = sorted(file.records, key=lambda record: record.id)
    words = [record.model_copy(update=label) for record, label in zip(by_id, labels, strict=True)]
    words[4] = words[4].model_copy(
        update={"options": {"A": "x"}, "slots": {"a": "b"}, "rejected": ("no",), "tools": ("f",)}
    )
    write_records("records.jsonl", file.header, words)
    write_records(
        "more.jsonl",
        file.header,
        [record.model_copy(update={"id": f"{record.id}b", "question": f"{record.question}!"}) for record in words[:5]],
    )
    titles: list[str] = []

    def shown(title: str) -> Any:
        titles.append(title)
        return bar(Console(file=io.StringIO()), title)

    columns = open_records("records.jsonl", shown=shown).records
    assert isinstance(columns, ColumnRecords)
    story.show("titles", titles)
    for name in ("label", "flags", "kind", "id_hash", "question", "asked", "key"):
        assert columns.numbers(name).tolist() == file_of(words).records.numbers(name).tolist(), name
    plain_table = file_of(words).records
    for name in ("labels", "undecided", "counted_labels", "kinds", "fingerprint", "repeated", "first_of_groups"):
        ours, theirs = getattr(columns, name)(), getattr(plain_table, name)()
        assert spelled(ours) == spelled(theirs), name
        story.show(name, ours)
    assert list(columns) == list(plain_table)
    assert list(columns.ids) == list(plain_table.ids)
    story.show("groups", list(columns.groups))
    story.show("one", columns[3].id)
    story.show("last", columns[-1].id)
    story.show("some", [columns[2:5].ids[0], columns.ids[1:3], columns.groups[0]])
    story.show("taken", list(columns.take(np.array([5, 1])).ids))
    story.show("coded", columns.take(np.array([5, 1, 2])).coded("group"))
    story.show("units", [columns.units("id")[1], columns.units("group")])
    both = open_records("records.jsonl", "more.jsonl")
    story.show("two files", [len(both.records), both.header.n_questions, list(both.records.ids)[-2:]])
    story.show("in memory", type(in_memory(both).records).__name__)
    story.show(
        "share ids", [share_ids([Path("records.jsonl"), Path("more.jsonl")]), share_ids([Path("records.jsonl")] * 2)]
    )
    story.show("files", len(list(Path("records.jsonl.cols").glob("*.parquet"))))
    story.head("refused")
    content = Path("records.jsonl").read_text(encoding="utf-8")
    lines = content.splitlines()
    for title, text in {
        "an id twice": "\n".join([*lines, lines[3]]) + "\n",
        "a torn line": "\n".join([*lines[:5], lines[5][:60], *lines[6:]]) + "\n",
        "a label that is a word": content.replace('"correct":true', '"correct":"maybe"', 1),
        "empty": "",
    }.items():
        write("bad.jsonl", text)
        story.refused(title, lambda: open_records("bad.jsonl"))
    story.refused("no file", lambda: open_records("none.jsonl"))
    with pytest.raises(IndexError):
        columns[99]
    write("bad.jsonl", content + lines[2][:50])
    torn = open_records("bad.jsonl")
    story.show("a torn last line", [torn.torn, len(torn.records)])
    story.compare()


def file_of(records: Sequence[Record]) -> RecordFile:
    return RecordFile(Path("x"), read_records("records.jsonl").header, records)


def test_progress_of_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story("progress.txt")
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for title, start, step, total, note in (
        ("20 were there", 20, 3.0, 220, "2 failed"),
        ("slow", 0, 61.0, 4, ""),
        ("done at once", 50, 61.0, 50, ""),
    ):
        out = io.StringIO()
        with bar(Console(file=out, width=200), "asking", "records") as report:
            for done in range(start, min(total, start + 90) + 1):
                report(done, total, note)
                now[0] += step
        story.head(title)
        story.say(out.getvalue())
    story.compare()
