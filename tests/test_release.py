"""Release files: the workflow calls make targets that exist, the versions agree, and every extra is tried out."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


def calls(workflow: dict[str, Any]) -> set[str]:
    """Every command of a workflow, with the targets of its matrix filled in."""
    commands: set[str] = set()
    for job in workflow["jobs"].values():
        targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
        for step in job["steps"]:
            commands |= {step["run"].replace("${{ matrix.target }}", target) for target in targets if "run" in step}
    return commands


def test_the_workflow_calls_make_targets_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    commands = [command.split() for command in calls(workflow)]
    assert {words[0] for words in commands} == {"make"}
    called = {words[1] for words in commands}
    assert called <= TARGETS
    assert called >= {
        "types",
        "style",
        "docs",
        "test",
        "test-oldest",
        "test-newest",
        "test-pure",
        "release-check",
        "audit",
    }
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(PROJECT["classifiers"])


def test_a_call_of_an_unknown_target_is_noticed() -> None:
    assert calls({"jobs": {"x": {"steps": [{"run": "make nothing"}]}}}) - {f"make {name}" for name in TARGETS}


def test_the_versions_agree() -> None:
    version = PROJECT["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    for name in ("SECURITY.md", "CHANGELOG.md"):
        assert version in (ROOT / name).read_text(encoding="utf-8"), name
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (.*)$", changes, flags=re.MULTILINE)[0] == "Recalibrate"


def test_every_extra_for_users_is_tried_out() -> None:
    tried = set(runpy.run_path(str(ROOT / "scripts" / "release_check.py"))["CALLS"])
    assert tried == set(PROJECT["optional-dependencies"]) - {"all", "dev", "docs"}


# -- what a container installs -----------------------------------------------------------------------------------------


def loose_images(text: str) -> list[str]:
    """Images of an ARG, a FROM or a compose file that another digest could replace; `acrc-guardrail` is built here."""
    images = re.findall(r"(?:^ARG PYTHON=|^FROM |^ *image: )(\S+)", text, flags=re.MULTILINE)
    assert images
    return [
        i for i in images if i not in ("${PYTHON}", "acrc-guardrail") and not re.search(r"@sha256:[0-9a-f]{64}$", i)
    ]


def test_images_are_pinned_by_digest() -> None:
    for name in ("Containerfile", "compose.yaml"):
        assert loose_images((ROOT / "examples" / "deploy" / name).read_text(encoding="utf-8")) == []


def test_a_loose_image_is_noticed() -> None:
    assert loose_images("ARG PYTHON=python:3.12\nFROM ${PYTHON}\n") == ["python:3.12"]
    assert loose_images("  image: postgres:17@sha256:12\n") == ["postgres:17@sha256:12"]


def pins(text: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each requirement."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\n]+)[^\n]*\n((?:    --hash=[^\n]*\n)*)", text, flags=re.MULTILINE)
    return {
        re.sub(r"[-_.]+", "-", name).lower(): (version, re.findall(r"--hash=sha256:([0-9a-f]{64})\b", hashes))
        for name, version, hashes in found
    }


def test_the_container_installs_the_pinned_versions_by_hash() -> None:
    text = (ROOT / "examples" / "deploy" / "requirements.txt").read_text(encoding="utf-8")
    tested = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    hashed = pins(text)
    assert all(hashes for _, hashes in hashed.values())
    assert {name: version for name, (version, _) in hashed.items() if name in tested} == {
        name: tested[name][0] for name in hashed if name in tested
    }
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *extras["serve"], *extras["review"], *extras["openai"], "psycopg"]:
        name = re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()
        assert name == "acrc-guardrail" or name in hashed, f"{name}: run `make container-requirements`"
    assert "://" not in text  # no index of the machine that wrote it


def test_a_pin_without_a_hash_is_noticed() -> None:
    assert pins("a_b==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\nc==2\n") == {
        "a-b": ("1.0", ["0" * 64]),
        "c": ("2", []),
    }


def test_the_licences_of_bundled_data_and_models_are_in_the_metadata() -> None:
    files = {path.name for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)}
    data = {path.with_suffix(".txt").name for path in (ROOT / "examples" / "recorded").glob("*.[cj]s*")}
    assert data
    assert files == {"LICENSE", "models.txt"} | data
