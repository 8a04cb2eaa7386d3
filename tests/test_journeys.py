"""The documentation site: its journeys work by copy and paste, their first pages fit one screen, nothing is fetched."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import pytest
import yaml
from typer.testing import CliRunner

from calibrate.cli import app
from guardrail.__main__ import main as guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


MODEL = ScriptedChat(script={"Who wrote Faust?": ["Goethe"], "Who wrote The Waves?": ["Woolf", "Woolf", "Joyce"]})
"""Stands in for the model that a page names."""


def follow(page: str, names: dict[str, Any] | None = None, **replaced: str) -> dict[str, Any]:
    """Run the Python blocks and commands of a page, in order, as a reader pastes them; the names they define.

    Args:
        page: Its path in docs/.
        names: Names that it takes from the reader.
        **replaced: ``url`` of an endpoint, or ``model``, in place of those on the page.
    """
    names = {"__name__": page} if names is None else names
    text = (DOCS / page).read_text(encoding="utf-8")
    for what, new in replaced.items():
        old = {"url": "http://localhost:8000/v1", "model": "transformers:path/to/model"}[what]
        assert old in text
        text = text.replace(old, new)
    blocks = BLOCK.findall(text)
    assert blocks
    for number, (language, block) in enumerate(blocks, start=1):
        if language == "python":
            exec(compile(block, f"docs/{page}, block {number}", "exec"), names)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(line)
            if program == "guardrail":
                assert guardrail(arguments) == 0, line
            else:
                assert program == "calibrate"
                ran = CliRunner().invoke(app, arguments)
                assert ran.exit_code == 0, (line, ran.output, ran.exception)
    return names


def test_an_app_with_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    from tests.integrations.openai.faulty_endpoint import Endpoint, serving

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    answers = {f"[{i}] who?": ["Ada"] if i % 3 else ["Ada", "Bob", "Cleo", "Dora"] for i in range(45)}
    rows = [
        {"question": question, "references": ["Ada" if len(texts) == 1 else "Emil"]}
        for question, texts in answers.items()
    ]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with serving(Endpoint(answers={**answers, "Who wrote Faust?": ["Goethe"]})) as endpoint:
        follow("start/app.md", url=endpoint.url)
    assert capsys.readouterr().out.endswith("Goethe\nTrue\n")
    assert Path("calibration/report.html").is_file()


def test_logged_generations_in_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journey, and docs/python.md, which goes on from its last line."""
    pytest.importorskip("pandas")
    mpl.use("agg")  # the page draws, and no window may open
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names = follow("python.md", follow("start/calibrate.md"))
    printed = capsys.readouterr().out
    for output in (
        "Appaloosa\nHELD BACK",
        "\nSupported: ",
        "0.3 75 0\n",
        "half\n",
        "['graded_disagreement', 'lexical_similarity', 'num_sets']",
    ):
        assert output in printed
    assert Path("report.html").is_file()
    assert CalibrationArtifact.load("artifact.json").outcome.rule == "certified"
    assert [row.rule for row in names["table"].rows] == ["acrc", "half"]


def test_a_file_with_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names = follow("start/scores.md")
    written = CalibrationArtifact.load("artifact.json")
    assert names["artifact"].outcome == written.outcome
    assert written.outcome.n_accepted > 200


MY_APP = """
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

SYSTEM = "You are the shop's assistant."
chat = ChatOpenAI(model="shop-1", base_url="{url}", api_key="none", max_retries=0)
paid = []

@tool
def orders(customer: str) -> str:
    "List the orders of a customer."
    return "17"

@tool
def refund(order: str, amount: int, note: str) -> str:
    "Refund an order."
    paid.append((order, amount))
    return f"refunded {{amount}}"
"""
"""An application with a model, a prompt and tools that this project has never seen."""


def shop(question: str, temperature: float, place: int) -> dict[str, Any]:
    """Refunds what is asked for, with a new note each time; guesses the amount where the customer names none."""
    number = question.rpartition(" ")[2]
    if not question.startswith("Refund"):
        return {"role": "assistant", "content": f"Hello {place if temperature else 0}"}
    amount = int(number) if "all" not in question else 10 * (place % 4 if temperature else 9)
    call = {"name": "refund", "arguments": json.dumps({"order": number, "amount": amount, "note": f"note {place}"})}
    tool_call = {"id": f"call_{place}", "type": "function", "function": call}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def test_an_agent_with_tools_its_own_model_and_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
    pytest.importorskip("langchain_openai")
    from guardrail.review import Decision
    from tests.integrations.openai.scripted_server import Served

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_app", raising=False)
    first, learn, second = BLOCK.findall((DOCS / "start/agent.md").read_text(encoding="utf-8"))
    served, names = Served(shop), dict[str, Any]()
    try:
        Path("my_app.py").write_text(MY_APP.format(url=served.url), encoding="utf-8")
        exec(compile(first[1], "docs/start/agent.md, block 1", "exec"), names)
        store, paid = names["bridge"].store, sys.modules["my_app"].paid
        asked = [f"Refund order {n}" if n % 6 else f"Refund it all {n}" for n in range(1, 73)]
        for text in asked:
            assert len(names["ask"](text, {"configurable": {"thread_id": text}})) == 1, "every refund waits"
        assert names["go_on"]() == {}
        while lease := store.claim("ann"):  # what a clear request says is right; a guess is not
            store.decide(lease, Decision(action="approve" if "order" in lease.item.content.question else "reject"))
        ended = names["go_on"]()
        assert ended.keys() == set(asked)
        assert ({result["messages"][-1].text for result in ended.values()}, len(paid)) == ({"Done."}, 60)
        assert set(names["go_on"]().values()) == {None}, "none goes on twice"
        assert CliRunner().invoke(app, shlex.split(learn[1])[1:]).exit_code == 0
        exec(compile(second[1], "docs/start/agent.md, block 3", "exec"), names)
        clear, unclear = ({"configurable": {"thread_id": name}} for name in ("clear", "unclear"))
        assert names["ask"]("Refund order 99", clear) == [], "nobody is asked"
        assert paid[-1] == ("99", 99)
        assert capsys.readouterr().out.endswith("Done.\n"), "the customer's reply"
        (item,) = names["ask"]("Refund it all 98", unclear)
        store.decide(store.claim("ann", item=item.id), Decision(action="answer", text="Which amount?"))
        assert names["go_on"]()["unclear"]["messages"][-1].text == "Which amount?"
        (item,) = names["ask"]("Refund it all 97", unclear)
        store.decide(store.claim("ann", item=item.id), Decision(action="answer", text="And which now?"))
        assert names["go_on"]()["unclear"]["messages"][-1].text == "And which now?", "of two decisions in a thread"
        assert len(paid) == 61
        store.close()
    finally:
        served.close()
        sys.modules.pop("my_app", None)


def test_pinned_tools_of_a_server_are_those_that_were_calibrated() -> None:
    """A tool that appeared at the server stopped the agent with a KeyError in the very function that leaves it out."""
    text = (DOCS / "mcp.md").read_text(encoding="utf-8")
    (block,) = [block for _, block in BLOCK.findall(text) if "def pinned" in block]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/mcp.md", "exec"), names)
    schema = {"type": "object", "properties": {"order": {"type": "string"}}}
    function = {"name": "refund", "description": "Pay money back.", "parameters": schema}
    bindings = Bindings(tools=({"type": "function", "function": function},))
    changed = SimpleNamespace(name="refund", description="Pay twice.", args_schema={})
    appeared = SimpleNamespace(name="wipe", description="Delete all.", args_schema={})
    artifact = make_artifact(MODEL, n=2, bindings=bindings)
    assert names["pinned"]([appeared, changed], artifact) == [changed]
    assert (changed.description, changed.args_schema) == ("Pay money back.", schema)


def test_blocks_can_be_pasted_into_the_prompt_of_python() -> None:
    """Python's own prompt ends a block at an empty line: a statement right behind one is a syntax error there."""
    for page in sorted((DOCS / "start").glob("*.md")):
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = block.splitlines() if language == "python" else []
            for before, line in itertools.pairwise(lines):
                ends = before.startswith(" ") and line[:1] not in (" ", "", ")", "]", "}")
                assert not ends or line.split()[0].rstrip(":") in ("else", "elif", "except", "finally"), (page, line)


def test_fields_of_invoices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")
    monkeypatch.chdir(tmp_path)
    names = follow("start/fields.md")
    printed = capsys.readouterr().out
    assert "Rule wrong_share, a certificate: at most 5 % of the items kept are wrong" in printed
    assert names["artifact"].threshold is not None
    with names["ReviewStore"]("reviews.db") as store:
        assert printed.count("held back: ") == len(store.items()) > 0
    names["stack"].close()


def test_the_first_pages_about_models_and_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")
    monkeypatch.chdir(tmp_path)
    Path("calibration").mkdir()
    make_artifact(MODEL, n=2, threshold=0.1).save("calibration/artifact.json")
    names = follow("start/model.md", model="python:tests.test_journeys:MODEL")
    assert names["chain"].invoke({"question": "Who wrote Faust?"}) == "Goethe"
    names = follow("start/people.md", {"model": MODEL})
    assert "ann" in capsys.readouterr().out
    assert "Woolf" not in names["guard"].invoke("Who wrote The Waves?").content
    with names["ReviewStore"]("reviews.db") as store:
        assert [item.content.question for item in store.items()] == ["Who wrote The Waves?"]


CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_every_page_is_in_the_navigation_and_journeys_begin_with_one_screen() -> None:
    """One screen: a page of 1920 x 1080 shows 45 lines of this text; pictures taken by a person confirm it."""
    pages = [page for section in CONFIG["nav"] for page in next(iter(section.values()))]
    assert sorted(pages) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    titles = [next(iter(section)) for section in CONFIG["nav"]]
    assert titles[:4] == ["Start", "Guard a model", "An app with a URL", "Agents"]
    assert titles[4:] == ["Extract fields", "People", "Calibrate", "Guarantees", "Operate", "Reference"]
    assert "not in a registry yet: every `pip install '.[EXTRA]'`" in (DOCS / pages[0]).read_text(encoding="utf-8")
    for section in CONFIG["nav"]:
        first = next(iter(section.values()))[0]
        assert len((DOCS / first).read_text(encoding="utf-8").splitlines()) <= 45, first


def test_the_index_leads_to_every_page_and_example() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(pages) > 40
    assert [page for page in pages if page != "index.md" and f"]({page})" not in index] == []
    for module in re.findall(r"`(examples\.[\w.]+)`", index):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_strict_build_is_a_part_of_lint() -> None:
    dry = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "mkdocs build --strict" in dry.stdout


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/bank_agent/README.md"])
def test_links_of_pages_beside_the_site_lead_to_files(page: str) -> None:
    """Those of docs/ are checked by the strict build (`make docs`)."""
    path = ROOT / page
    linked = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [link for link in linked if "://" not in link and not (path.parent / link).exists()] == []


def test_the_site_fetches_nothing(tmp_path: Path) -> None:
    """A page built with the site's theme loads no script, style, font or image from elsewhere."""
    pytest.importorskip("material", reason="the `docs` extra is not installed")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n\n```python\nprint(1)\n```\n", encoding="utf-8")
    config = {**CONFIG, "plugins": ["search"], "hooks": [], "site_dir": "site"}
    del config["nav"]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "--strict"], cwd=tmp_path, check=True)
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?([^\"' >]+)", page)
    assert loaded
    assert [address for address in loaded if "//" in address] == []


@pytest.mark.parametrize("page", ["start/app.md", "endpoints.md", "loop.md"])
def test_pages_on_production_fit_certificates(page: str) -> None:
    """No command on a page about production names another rule than the default, which is the certificate."""
    text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"calibrate (?:run|fit) [^\n`]*", text)
    assert commands
    for command in commands:
        assert "--rule" not in command, command
