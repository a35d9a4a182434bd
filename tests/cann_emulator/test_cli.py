"""The command line: what it prints, what it sets, what it refuses; and that it starts without torch."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cann_emulator import coverage, settings
from cann_emulator.home import environment, find_home

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_", "CANN_EMULATOR_"))}
CLEAN = {k: v for k, v in CLEAN.items() if k not in ("TASK_QUEUE_ENABLE", "LD_LIBRARY_PATH", "PYTHONPATH")}
CLEAN |= {k: os.environ[k] for k in ("CANN_EMULATOR_HOME",) if k in os.environ}
PRINT_ENVIRONMENT = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]


def cli(*arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None):
    return subprocess.run(
        [sys.executable, "-m", "cann_emulator.cli", *arguments],
        env=CLEAN | (env or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
    )


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = cli(*arguments, env=env)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


# ---- run and env ---------------------------------------------------------------------------------------------------
def test_run_sets_what_set_env_sh_sets():
    by_run = json.loads(cli("run", "--", *PRINT_ENVIRONMENT).stdout)
    script = f'. "{find_home()}/set_env.sh" && exec "$@"'
    sourced = subprocess.run(["bash", "-c", script, "-", *PRINT_ENVIRONMENT], env=CLEAN, capture_output=True, text=True)
    by_script = json.loads(sourced.stdout)
    names = set(environment(find_home(), {})) - {"PYTHONPATH"}
    assert {name: by_run.get(name) for name in names} == {name: by_script.get(name) for name in names}
    assert by_run["PYTHONPATH"].startswith(by_script["PYTHONPATH"])


def test_run_twice_is_run_once():
    once = environment(find_home(), {"LD_LIBRARY_PATH": "/opt/lib"})
    assert environment(find_home(), once) == once
    assert once["LD_LIBRARY_PATH"].endswith(":/opt/lib")


def sourced(shell: str, script: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run([shell, "-c", script], env=CLEAN | env, capture_output=True, text=True)


def test_set_env_sh_twice_is_once():
    source, show = f'. "{find_home()}/set_env.sh"', 'echo "$LD_LIBRARY_PATH $PYTHONPATH"'
    once = sourced("bash", f"{source}; {show}", LD_LIBRARY_PATH="/opt/lib")
    twice = sourced("bash", f"{source}; {source}; {show}", LD_LIBRARY_PATH="/opt/lib")
    assert once.stdout == twice.stdout
    assert once.stdout.split()[0] == f"{find_home()}/lib64:/opt/lib"


def test_set_env_sh_finds_its_folder_whatever_cdpath_is():
    folder = find_home()
    script = f'cd "{folder.parent}" && . {folder.name}/set_env.sh && echo "$ASCEND_HOME_PATH"'
    assert sourced("bash", script, CDPATH=f"/tmp:{folder.parent}").stdout.strip() == str(folder)


def test_a_shell_that_does_not_name_the_sourced_script_is_told_what_to_do():
    # Such as dash: there $0 is the shell. Bash has no name for a script on its input either.
    script = (find_home() / "set_env.sh").read_text()
    script = f'source_it() {{\n{script}}}\nsource_it; echo "code $?"'
    result = subprocess.run(["bash"], input=script, env=CLEAN, text=True, capture_output=True)
    assert result.stdout.strip() == "code 1"
    assert 'eval "$(cann-emulator env)"' in result.stderr


def test_env_can_be_evaluated(tmp_path):
    script = f"""eval "$({sys.executable} -m cann_emulator.cli env --devices 3 --stats '{tmp_path}/with space')"
    printf '%s|%s' "$CANN_EMULATOR_DEVICES" "$CANN_EMULATOR_STATS" """
    result = subprocess.run(["bash", "-c", script], env=CLEAN, capture_output=True, text=True)
    assert result.stdout == f"3|{tmp_path}/with space"
    assert json.loads(cli("env", "--json").stdout)["TASK_QUEUE_ENABLE"] == "0"


def test_options_become_settings_and_paths_absolute(tmp_path):
    options = ["--devices", "2", "--soc", "Ascend910B1", "--hbm-gb", "1.5", "--stats", "s", "--trace", "t.json"]
    env = json.loads(cli("run", *options, "--", *PRINT_ENVIRONMENT, cwd=tmp_path).stdout)
    assert env["CANN_EMULATOR_DEVICES"] == "2"
    assert env["CANN_EMULATOR_SOC"] == "Ascend910B1"
    assert env["CANN_EMULATOR_HBM_GB"] == "1.5"
    assert env["CANN_EMULATOR_STATS"] == str(tmp_path / "s")
    assert env["CANN_EMULATOR_TRACE"] == str(tmp_path / "t.json")
    assert (tmp_path / "s").is_dir()


def test_run_hands_over_arguments_and_exit_code():
    result = cli("run", "--", sys.executable, "-c", "import sys; sys.exit(len(sys.argv))", "--devices", "--", "x")
    assert result.returncode == 4


def test_kernels_are_importable_from_another_folder(tmp_path):
    code = "import cann_emulator.kernels.registry"
    assert cli("run", "--", sys.executable, "-c", code, cwd=tmp_path).returncode == 0


def test_a_chosen_task_queue_is_kept_with_a_warning():
    result = cli("run", "--", *PRINT_ENVIRONMENT, env={"TASK_QUEUE_ENABLE": "1"})
    assert json.loads(result.stdout)["TASK_QUEUE_ENABLE"] == "1"
    assert "TASK_QUEUE_ENABLE=1" in result.stderr


# ---- refusals ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CANN_EMULATOR_SOC", "Ascend910_9390", "did you mean Ascend910_939"),
        ("CANN_EMULATOR_SOC", "H100", "known names: "),
        ("CANN_EMULATOR_DEVICES", "two", "a whole number from 1"),
        ("CANN_EMULATOR_DEVICES", "0", "a whole number from 1"),
        ("CANN_EMULATOR_HBM_GB", "64GB", "a number of GiB"),
        ("CANN_EMULATOR_HBM_GB", "-1", "a number of GiB"),
        ("CANN_EMULATOR_HBM_GB", "1e-12", "a number of GiB of at least 0.01"),
        ("CANN_EMULATOR_HBM_GB", "nan", "a number of GiB"),
        ("CANN_EMULATOR_TRACE", "/no/such/folder/trace.json", "a file in an existing folder"),
        ("CANN_EMULATOR_STATS", __file__, "it is a file"),
        ("CANN_EMULATOR_HCCL_PORT_CLASH", "yes", "0 or 1 is wanted"),
        ("CANN_EMULATOR_LOSE_DEVICE", "1", "DEVICE:N is wanted"),
    ],
)
def test_a_bad_setting_is_named(name, value, expected):
    message = refused("run", "--", "true", env={name: value})
    assert f"{name}={value}" in message
    assert expected in message


def test_a_mistyped_setting_is_a_warning():
    result = cli("run", "--", "true", env={"CANN_EMULATOR_DEVICE": "2"})
    assert result.returncode == 0
    assert "did you mean CANN_EMULATOR_DEVICES?" in result.stderr


def test_no_command_and_unknown_command():
    assert "no command given" in refused("run")
    assert "no-such-program: command not found" in refused("run", "--", "no-such-program")
    assert cli("run", "--", "no-such-program").returncode == 127


def test_a_home_that_is_none(tmp_path):
    assert "not a CANN home" in refused("home", env={"CANN_EMULATOR_HOME": str(tmp_path)})
    assert f"none: CANN_EMULATOR_HOME is {tmp_path}" in cli("info", env={"CANN_EMULATOR_HOME": str(tmp_path)}).stdout


# ---- home, info, ops, stats ----------------------------------------------------------------------------------------
def test_home_has_the_libraries_that_torch_npu_loads():
    home = Path(cli("home").stdout.strip())
    names = {path.name for path in (home / "lib64").iterdir()}
    assert {"libascendcl.so", "libacl_op_compiler.so", "libopapi.so", "libhccl.so"} <= names
    assert all((home / folder).is_dir() for folder in ("runtime", "compiler", "opp"))


def test_info():
    facts = json.loads(cli("info", "--json", env={"CANN_EMULATOR_DEVICES": "2"}).stdout)
    assert facts["devices"] == 2
    assert facts["soc"] == "Ascend910_9391"
    assert facts["versions"]["torch"] == "2.14.0"
    assert facts["torch_build"] == "CPU" or facts["torch_build"].startswith("CUDA ")
    assert max(map(len, cli("info").stdout.splitlines())) <= 110


def test_ops_lists_every_signature():
    listed = json.loads(cli("ops", "--json").stdout)
    assert len(listed) > 850
    assert all(set(op) == {"name", "implemented", "kernel_file", "source"} for op in listed)
    assert all(op["implemented"] == (op["source"] is not None) == (op["kernel_file"] is not None) for op in listed)
    for path in {op["kernel_file"] for op in listed if op["implemented"]}:
        assert (coverage.PACKAGE.parent / path).exists()
    missing = json.loads(cli("ops", "--json", "--missing").stdout)
    assert [op["name"] for op in missing] == [op["name"] for op in listed if not op["implemented"]]


def test_ops_can_be_searched():
    assert "aclnnRmsNormGrad" in cli("ops", "rmsnorm").stdout
    assert "no operator's name contains" in refused("ops", "aclnnNoSuch")


def test_ops_knows_what_the_registry_knows():
    """What is read from the source without importing it is what importing it registers."""
    from cann_emulator.kernels import registry

    written = {name for name, (source, _) in coverage.kernels().items() if source == "function"}
    assert written == set(registry.functions())


def test_every_row_and_function_is_in_the_signature_table():
    assert set(coverage.kernels()) <= {op.name for op in coverage.operators()}


def test_stats_adds_up_processes(tmp_path):
    def counters(launches: int, peak: int) -> str:
        add = {"name": "aclnnAdd", "kind": "kernel", "launches": launches, "bytes": 8 * launches, "time_ns": 1000}
        copy = {"name": "host to device", "kind": "copy", "launches": 1, "bytes": 16, "time_ns": 10}
        return json.dumps({"pid": 1, "devices": {"0": {"hbm_peak_bytes": peak}}, "counters": [add, copy]})

    (tmp_path / "1.json").write_text(counters(2, 1 << 20))
    (tmp_path / "2.json").write_text(counters(3, 2 << 20))
    merged = json.loads(cli("stats", str(tmp_path), "--json").stdout)
    assert merged["processes"] == 2
    assert merged["kernel_launches"] == 5
    assert merged["hbm_peak_bytes"] == {"0": 2 << 20}
    assert merged["counters"][0] == {
        "name": "aclnnAdd",
        "kind": "kernel",
        "launches": 5,
        "bytes": 40,
        "time_ns": 2000,
    }
    table = cli("stats", "--top", "1", env={"CANN_EMULATOR_STATS": str(tmp_path)}).stdout
    assert "aclnnAdd" in table
    assert "host to device" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_stats_of_a_real_program(tmp_path):
    code = "import torch; x = torch.ones(4, device='npu'); [x.add(x) for _ in range(3)]"
    assert cli("run", "--stats", str(tmp_path), "--", sys.executable, "-c", code).returncode == 0
    merged = json.loads(cli("stats", str(tmp_path), "--json").stdout)
    assert [c["launches"] for c in merged["counters"] if c["name"] == "aclnnAdd"] == [3]
    assert merged["hbm_peak_bytes"]["0"] > 0


def test_stats_without_counters(tmp_path):
    assert "no folder given" in refused("stats")
    assert "no counters there" in refused("stats", str(tmp_path))
    assert "is not a folder" in refused("stats", str(tmp_path / "none"))
    (tmp_path / "1.json").write_text("[]")
    assert "does not hold the emulator's counters" in refused("stats", str(tmp_path))


def test_the_soc_names_are_those_of_the_libraries():
    source = (coverage.PACKAGE / "native" / "ascendcl" / "soc.cpp").read_text()
    assert set(re.findall(r'\{"(Ascend[^"]+)",', source)) == set(settings.SOCS)


def test_starts_fast_and_without_torch():
    code = "import sys; from cann_emulator.cli import main; main(['info']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], env=CLEAN, capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "False"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(4):
        cli("home")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, which does not depend on what else the machine does.
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 4 < 0.2
