"""The table "What opens with what" of docs/formats.md: its rows are made of the code's versions and of golden files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine

from calibrate.data import column_build
from calibrate.data.records import read_records
from guardrail.artifact import CalibrationArtifact, CascadeArtifact
from guardrail.errors import GuardrailError
from guardrail.files import _digest
from guardrail.guard import config
from guardrail.judges import cache
from guardrail.judges.cache import PairCache, cached
from guardrail.monitor import CanaryMonitor, DriftMonitor, RiskMonitor
from guardrail.review import CandidateRule, ReviewStore
from guardrail.review.queue import schema
from guardrail.review.queue.database import migrate
from guardrail.review.web import accounts
from guardrail.review.web.accounts import Accounts
from guardrail.sampling import draws
from integrations._agents import decisions, held, verdicts
from integrations._agents.verdicts import VerdictStore

from .make_formats import FOLDER, NOW, PAIRS, QUESTION, STORED, ToyJudge

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


class Format(NamedTuple):
    """A row of the table.

    Attributes:
        name: Name on the page.
        writes: Versions that are written today.
        files: The golden file of each version that is read; a number for a review store that `migrate` makes.
        change: The change of an older file, and when it happens.
        open: Read a file; a refusal raises.
        renew: Make a file one of the version after today's.
    """

    name: str
    writes: str
    files: dict[str, str]
    change: str
    open: Callable[[Path], object]
    renew: Callable[[Path], None]

    @property
    def row(self) -> str:
        return f"|{self.name}|{self.writes}|{', '.join(self.files)}|{self.change}|"


def next_artifact(version: int) -> Callable[[Path], None]:
    def renew(path: Path) -> None:
        content = {
            name: field for name, field in json.loads(path.read_text(encoding="utf-8")).items() if name != "digest"
        }
        content["schema_version"] = version + 1
        path.write_text(json.dumps({"digest": _digest(content), **content}), encoding="utf-8")

    return renew


def next_json(version: int) -> Callable[[Path], None]:
    def renew(path: Path) -> None:
        path.write_text(
            json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"format": version + 1}), encoding="utf-8"
        )

    return renew


def next_records(path: Path) -> None:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    content = json.loads(header)
    content["header"]["format"] += 1
    path.write_text("\n".join([json.dumps(content), *lines, ""]), encoding="utf-8")


def statement(sql: str) -> Callable[[Path], None]:
    def renew(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(sql)

    return renew


def open_store(path: Path) -> object:
    with ReviewStore(f"sqlite:///{path}", clock=lambda: NOW + 30) as store:
        return store.items()


def open_verdicts(path: Path) -> object:
    with closing(VerdictStore(path)) as store:
        return store.get("call_1", '{"to":"bob"}')


ARTIFACT, CASCADE = CalibrationArtifact.SCHEMA_VERSION, CascadeArtifact.SCHEMA_VERSION
RISK, DRIFT = RiskMonitor(0.1).state.FORMAT, DriftMonitor(STORED).state.FORMAT
CANARY = CanaryMonitor(1).state.FORMAT
TABLE = [
    Format(
        "artifact", f"{CalibrationArtifact.model_fields['schema_version'].default}, {ARTIFACT} with parts",
        {"1": "version1/artifact.json", "2": "artifact.json", "3": "artifact-parts.json"},
        "none; `at` and `model_copy` make version 2", CalibrationArtifact.load, next_artifact(ARTIFACT),
    ),
    Format(
        "cascade artifact", f"{CASCADE}", {"1": "version1/cascade.json", "2": "cascade.json"}, "none",
        CascadeArtifact.load, next_artifact(CASCADE),
    ),
    Format(
        "candidate rule", f"{CandidateRule.SCHEMA_VERSION}", {"1": "candidates.json"}, "none", CandidateRule.load,
        next_artifact(CandidateRule.SCHEMA_VERSION),
    ),
    Format(
        "records", "1", {"1": "records.jsonl"}, "none; a rewrite drops fields that it does not know",
        lambda path: read_records(path).records, next_records,
    ),
    Format(
        "risk monitor", f"{RISK}", {"none": "unversioned/risk-monitor.json", "1": "risk-monitor.json"},
        "`save` writes today's version", RiskMonitor.load, next_json(RISK),
    ),
    Format(
        "drift monitor", f"{DRIFT}",
        {"none": "unversioned/drift-monitor.json", "1": "version1/drift-monitor.json", "2": "drift-monitor.json"},
        "`save` writes today's version", lambda path: DriftMonitor.load(path, STORED), next_json(DRIFT),
    ),
    Format(
        "canary", f"{CANARY}", {"1": "canary-monitor.json"}, "`save` writes today's version", CanaryMonitor.load,
        next_json(CANARY),
    ),
    Format(
        "review store", schema.LAYOUT, {"1": "version1/reviews.sql", "2": "2", "3": "3", "4": "reviews.sql"},
        "migrated when it is opened", open_store,
        statement(f"UPDATE review_meta SET value = '{int(schema.LAYOUT) + 1}' WHERE name = 'layout'"),
    ),
    Format(
        "verdict store", f"{verdicts.FORMAT}", {"none": "unversioned/verdicts.sql", "1": "verdicts.sql"},
        "columns are added when it is opened", open_verdicts, statement(f"PRAGMA user_version={verdicts.FORMAT + 1}"),
    ),
    Format(
        "pair cache", f"{cache._LAYOUT}", {"1": "pairs.sql"}, "none",
        lambda path: cached(ToyJudge("toy"), PairCache(path)).equivalent(QUESTION, PAIRS),
        statement(f"PRAGMA user_version={cache._LAYOUT + 1}"),
    ),
    Format(
        "tokens", f"{accounts.FORMAT}", {"none": "unversioned/tokens.json", "1": "tokens.json"},
        "`--add-token` writes today's version", lambda path: Accounts(path).all(), next_json(accounts.FORMAT),
    ),
]  # fmt: skip
NAMES = {row.name: row for row in TABLE}


def copy(file: str, folder: Path) -> Path:
    """A golden file, or the database of a golden dump or of an older layout, in a folder of its own."""
    path = folder / (Path(file).stem + (".db" if file.endswith(".sql") or file.isdigit() else Path(file).suffix))
    if file.isdigit():
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((FOLDER / "version1/reviews.sql").read_text(encoding="utf-8"))
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as begun:
            migrate(begun, file)
        engine.dispose()
    elif file.endswith(".sql"):
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((FOLDER / file).read_text(encoding="utf-8"))
    else:
        path.write_bytes((FOLDER / file).read_bytes())
    return path


def stored_layout(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        (value,) = connection.execute("SELECT value FROM review_meta WHERE name = 'layout'").fetchone()
    return str(value)


def test_the_page_has_these_rows_and_no_others() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What opens with what\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert rows == [row.row for row in TABLE]


def test_the_versions_in_the_other_table_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for text in (
        f'`layout` "{schema.LAYOUT}"',
        f'`layout` "{column_build._LAYOUT}"',
        f'"{held.LAYOUT}"',
        f'"{config.FORMAT}"',
    ):
        assert text in page
    assert f"`format` {decisions.REQUEST_FORMAT}|`ReviewBridge`" in page
    assert f"`{draws.FORMAT}`" in page


@pytest.mark.parametrize(("name", "version"), [(row.name, version) for row in TABLE for version in row.files])
def test_a_file_of_each_version_opens(name: str, version: str, tmp_path: Path) -> None:
    path = copy(NAMES[name].files[version], tmp_path)
    if name == "review store":
        assert stored_layout(path) == version
    opened: Any = NAMES[name].open(path)
    assert opened is not None
    if name == "review store":
        assert len(opened) == 5
        assert stored_layout(path) == schema.LAYOUT


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_the_next_version_is_refused_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    row = NAMES[name]
    path = copy(list(row.files.values())[-1], tmp_path)
    row.renew(path)
    before = path.read_bytes()
    with pytest.raises(GuardrailError, match="Upgrade acrc-guardrail"):
        row.open(path)
    assert path.read_bytes()[100:] == before[100:]  # SQLite counts openings in the first 100 bytes
