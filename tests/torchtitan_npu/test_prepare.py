"""`torchtitan-npu prepare`: what it reads, what it refuses, and that it gives the same files each time."""

import json
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
        (b'{"text": "a"}\nnot json\n', "bad.jsonl", "line 2 is not a JSON object"),
        (b'{"body": "a"}\n', "field.jsonl", "field 'text'"),
        (b"\xff\xfe\x00", "bytes.txt", "not UTF-8"),
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
