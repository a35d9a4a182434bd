"""The user guide and the agent skill say what the code does."""

import re
from pathlib import Path

import pytest

from torchtitan_sync import cli, settings
from torchtitan_sync.grades import TABLE

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/user-guides/torchtitan_sync.md"
SKILL = ROOT / ".agents/skills/torchtitan-sync/SKILL.md"


def grades() -> str:
    rows = ["| grade | kind | what changed | what happens |", "| --- | --- | --- | --- |"]
    rows += [f"| {kind.grade.name} | `{name}` | {kind.title} | {kind.why} |" for name, kind in TABLE.items()]
    return "\n".join(rows)


def test_guide_has_the_table_of_grades() -> None:
    found = re.search(r"<!-- grades -->\n(.*)\n<!-- /grades -->", GUIDE.read_text(), re.DOTALL)
    assert found and found[1] == grades()


@pytest.mark.parametrize("document", [GUIDE, SKILL], ids=["guide", "skill"])
def test_every_command_and_no_other_is_shown(document: Path) -> None:
    shown = set(re.findall(r"torchtitan-sync ([a-z]+)", document.read_text()))
    assert shown == set(cli.COMMANDS)


@pytest.mark.parametrize("document", [GUIDE, SKILL], ids=["guide", "skill"])
def test_options_that_are_shown_exist(document: Path) -> None:
    commands = re.findall(r"torchtitan-sync ([a-z]+)((?: +--?[a-z-]+(?: [A-Z][A-Z:]*)?)*)", document.read_text())
    assert commands
    for command, options in commands:
        known = {word for action in cli._parser([command])._actions for word in action.option_strings}
        choices = next(a.choices for a in cli._parser([command])._actions if a.choices)
        known |= set(choices[command]._option_string_actions)
        assert set(re.findall(r"--[a-z-]+", options)) <= known, command


def test_settings_that_are_shown_exist(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert example
    (tmp_path / "pyproject.toml").write_text(example[1])
    (tmp_path / "my_plugin").mkdir()
    plugin = settings.load(tmp_path)
    assert plugin.package == "my_plugin" and plugin.areas == {"attention": ("**/attention/**",)}
    assert plugin.replaced == {"torchtitan.config.job_config.JobConfig": "torchtitan.trainer.Trainer.Config"}


def test_skill_is_in_both_languages_and_ends_with_the_reminder() -> None:
    text = SKILL.read_text()
    chinese, english = text.split("\n# torchtitan-sync (English)\n")
    assert len(re.findall(r"[一-鿿]", chinese)) > 300 and not re.search(r"[一-鿿]", english)
    assert chinese.count("\n## ") == english.count("\n## ")
    for part in (chinese, english):
        assert "torchtitan-sync record" in part.rstrip().splitlines()[-1]
