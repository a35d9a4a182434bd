"""`torchtitan-npu prepare`: what it reads, what it refuses, and that it gives the same files each time."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from torchtitan_npu.data import corpus, prepare, tokenizer
from torchtitan_npu.errors import UserError


def run(output: Path, *files: Path, **options) -> list[str]:
    said: list[str] = []
    settings = {"tokenizer": None, "vocab_size": 300, "field": "text", "held_out": 0.25, **options}
    prepare.run(files=[str(file) for file in files], output=str(output), say=said.append, **settings)
    return said


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {n} says hello"}) + "\n" for n in range(8)))
    return path


def test_default_corpus_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path / name, vocab_size=2048, held_out=0.05)
    first = files_of(tmp_path / "a")
    assert first == files_of(tmp_path / "b")
    assert set(first) == {
        "manifest.json",
        "train/data.jsonl",
        "held_out/data.jsonl",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    }
    assert tokenizer.vocabulary_size(tmp_path / "a" / "tokenizer") == 2048


def test_a_second_run_does_nothing(tmp_path: Path, lines: Path) -> None:
    run(tmp_path / "out", lines)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert "up to date" in run(tmp_path / "out", lines)[-1]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert "wrote" in run(tmp_path / "out", lines, vocab_size=310)[-1]


def two_at_once(output: Path, lines: Path, after: Callable[[], None]) -> list[str]:
    """What a second run says that begins in the middle of a first; the first goes on with `after`."""
    waiting, said = threading.Event(), []

    def first_says(line: str) -> None:
        if "documents for training" in line:
            other.start()
            assert waiting.wait(60)
            after()

    def second_says(line: str) -> None:
        said.append(line)
        if "waiting for it" in line:
            waiting.set()

    settings = {"files": [str(lines)], "output": str(output), "tokenizer": None, "vocab_size": 300, "field": "text"}
    other = threading.Thread(target=lambda: prepare.run(say=second_says, held_out=0.25, **settings))
    try:
        prepare.run(say=first_says, held_out=0.25, **settings)
    finally:
        other.join(60)
    return said


def test_of_two_runs_at_once_into_a_new_folder_the_second_finds_it_made(tmp_path: Path, lines: Path) -> None:
    assert "up to date" in two_at_once(tmp_path / "out", lines, lambda: None)[-1]
    run(tmp_path / "alone", lines)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "alone")


def test_a_run_that_waited_for_one_that_failed_makes_the_folder_itself(tmp_path: Path, lines: Path) -> None:
    def fail() -> None:
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        two_at_once(tmp_path / "out", lines, fail)
    run(tmp_path / "alone", lines)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "alone")


def test_held_out_documents_are_not_in_the_training_text(tmp_path: Path, lines: Path) -> None:
    run(tmp_path / "out", lines)
    train, held_out = (
        {json.loads(line)["text"] for line in (tmp_path / "out" / part / "data.jsonl").read_text().splitlines()}
        for part in ("train", "held_out")
    )
    assert len(train) == 6 and len(held_out) == 2 and not train & held_out


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["one", "two", None, "three"]}), path)
    assert list(corpus.documents([str(path)], "body")) == ["one", "two", "three"]
    with pytest.raises(UserError, match="no column 'text'; it has body"):
        list(corpus.documents([str(path)], "text"))


def test_plain_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("\n\n".join(f"paragraph {n} " + "x" * 1000 for n in range(10)))
    documents = list(corpus.documents([str(path)], "text"))
    assert len(documents) == 3
    assert "".join(documents).count("paragraph") == 10


def test_an_existing_tokenizer_is_taken(tmp_path: Path, lines: Path) -> None:
    run(tmp_path / "first", lines)
    run(tmp_path / "second", lines, tokenizer=str(tmp_path / "first" / "tokenizer"))
    assert files_of(tmp_path / "first" / "tokenizer") == files_of(tmp_path / "second" / "tokenizer")


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "absent.txt", "does not exist"),
        (b'{"text": "a"}\nnot json\n', "bad.jsonl", "line 2 is not JSON"),
        (b'[{"text": "a"}]\n', "array.json", "line 1 is not a JSON object"),
        (b'{"body": "a"}\n', "field.jsonl", "no field 'text'; it has body"),
        (b'{"text": 3}\n', "number.jsonl", "line 1: 'text' is int, not text"),
        (b'{"text": "\\ud800"}\n', "surrogate.jsonl", "line 1: 'text' is not Unicode text"),
        (b'{"text": "caf\xe9"}\n', "latin.jsonl", "not UTF-8 text: .* at byte 13"),
        (b"\xff\xfe\x00", "bytes.txt", "not UTF-8"),
        (b"PAR1 and no more", "torn.parquet", "cannot be read as Parquet"),
        (b"", "empty.parquet", "cannot be read as Parquet"),
        (b"", "empty.txt", "holds no text"),
        (b'{"text": "only one"}\n', "one.jsonl", "too few to hold out"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, content: bytes | None, name: str, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        run(tmp_path / "out", path)
    assert not (tmp_path / "out").exists()


def test_a_mark_of_the_byte_order_and_null_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n{"text": null}\n{"text": ""}\n{"text": "two"}\n')
    assert list(corpus.documents([str(path)], "text")) == ["one", "two"]


def test_a_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [0, 1]}), path)
    with pytest.raises(UserError, match=r"numbers.parquet row 1: 'text' is int, not text"):
        run(tmp_path / "out", path)


def test_a_file_given_twice_is_refused(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(lines)
    with pytest.raises(UserError, match=r"link.jsonl is given twice"):
        run(tmp_path / "out", lines, tmp_path / "link.jsonl")


@pytest.mark.parametrize("share", [0.1, 0.25, 0.4, 0.9])
def test_the_share_that_is_held_out_is_the_one_asked_for(tmp_path: Path, share: float) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(200)))
    run(tmp_path / "out", path, held_out=share)
    assert len((tmp_path / "out" / "held_out" / "data.jsonl").read_text().splitlines()) == round(200 * share)


def test_a_text_that_occurs_twice_is_not_both_held_out_and_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {n % 10}"}) + "\n" for n in range(40)))
    run(tmp_path / "out", path)
    train, held_out = (set((tmp_path / "out" / part / "data.jsonl").open()) for part in ("train", "held_out"))
    assert train and held_out and not train & held_out


def test_a_failure_leaves_what_was_made_before(tmp_path: Path, lines: Path) -> None:
    run(tmp_path / "out", lines)
    before = files_of(tmp_path / "out")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer.json cannot be read"):
        run(tmp_path / "out", lines, tokenizer=str(tmp_path / "torn"))
    assert files_of(tmp_path / "out") == before


def test_what_an_interrupted_run_left_is_made_again(tmp_path: Path, lines: Path) -> None:
    run(tmp_path / "out", lines)
    whole = files_of(tmp_path / "out")
    # Killed while the parts were replaced: one is gone, and the manifest still lies with the new ones.
    (tmp_path / "out" / ".unfinished").mkdir()
    (tmp_path / "out" / "manifest.json").rename(tmp_path / "out" / ".unfinished" / "manifest.json")
    (tmp_path / "out" / "held_out" / "data.jsonl").unlink()
    run(tmp_path / "out", lines)
    assert files_of(tmp_path / "out") == whole
    (tmp_path / "out" / "manifest.json").write_text("{")
    run(tmp_path / "out", lines)
    assert files_of(tmp_path / "out") == whole


def test_folders_of_the_same_names_that_are_not_of_this_making_are_left_alone(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "train" / "data.jsonl").write_text("mine")
    with pytest.raises(UserError, match=r"holds other files \(train\)"):
        run(tmp_path / "out", lines)
    assert files_of(tmp_path / "out") == {"train/data.jsonl": b"mine"}


def test_a_vocabulary_beyond_what_the_text_can_give_needs_no_memory(tmp_path: Path, lines: Path) -> None:
    run(tmp_path / "out", lines, vocab_size=10**9)
    assert tokenizer.vocabulary_size(tmp_path / "out" / "tokenizer") < 600


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\)"):
        run(tmp_path / "out", lines)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_a_vocabulary_smaller_than_the_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot have 257 tokens.*\n.*--vocab-size 258"):
        run(tmp_path / "out", vocab_size=257)
    assert not (tmp_path / "out").exists()
