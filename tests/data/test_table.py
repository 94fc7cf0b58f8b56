"""Tables: columns by name, labels told, and nothing guessed about a value that is missing or unclear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from biascope import data
from biascope.data.text import texts_of
from biascope.tasks.samples import samples_of

PEOPLE = "age,city,income,bought\n31,Rome,2.5,no\n42,Paris,3.5,yes\n53,Rome,1e1,no\n"
COLUMNS = {
    "age": [31, 42, 53],
    "city": ["Rome", "Paris", "Rome"],
    "income": [2.5, 3.5, 10.0],
    "bought": ["no", "yes", "no"],
}
NAMES = ("age", "city=Paris", "city=Rome", "income")
VALUES = [[31, 0, 1, 2.5], [42, 1, 0, 3.5], [53, 0, 1, 10]]


def written(folder: Path, text: str, name: str = "mine.csv") -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(text.encode())
    return folder / name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PEOPLE, "mine.csv"),
        ("\ufeff" + PEOPLE.replace("\n", "\r\n"), "mine.csv"),
        (PEOPLE.replace(",", ";"), "mine.csv"),
        (PEOPLE.replace(",", "\t"), "mine.tsv"),
        (PEOPLE.replace("Rome", '"Rome"').replace(",", ", ") + "\n", "mine.csv"),
    ],
    ids=["plain", "Windows", "semicolons", "tabs", "quotes"],
)
def test_a_csv_file_is_read_by_its_columns(tmp_path: Path, text: str, name: str) -> None:
    found = data.load(written(tmp_path, text, name))
    inputs, labels = found.splits["train"]
    assert labels is not None
    assert found.axes[0].labels == NAMES
    assert inputs.tolist() == VALUES
    assert (labels.tolist(), found.classes) == ([0, 1, 0], ("no", "yes"))
    assert found.told == "label 'bought', the last column; a feature for each of the 2 values of city"


@pytest.mark.parametrize(
    ("text", "label", "labels", "classes", "told"),
    [
        ("label,a\n1,7\n0,8\n", None, [1, 0], ("0", "1"), "label 'label'"),
        ("a,b\n1,7\n0,8\n", "a", [1, 0], ("0", "1"), "label 'a'"),
        ("2019,b\n7,1\n8,0\n", None, [1, 0], ("0", "1"), "label 'b', the last column"),
        ("a,b\n1,1.0\n0,3.0\n", None, [1, 3], ("0", "1", "2", "3"), "label 'b', the last column"),
        ("a,sign\n1,1\n0,-1\n", None, [1, 0], ("sign -1", "sign 1"), "label 'sign', the last column"),
        ("a,year\n1,1990\n0,2000\n", None, [0, 1], ("year 1990", "year 2000"), "label 'year', the last column"),
    ],
)
def test_labels_keep_their_numbers_or_have_names(
    tmp_path: Path, text: str, label: str | None, labels: list[int], classes: tuple[str, ...], told: str
) -> None:
    found = data.load(written(tmp_path, text), label=label)
    assert found.splits["train"][1] is not None
    assert (found.splits["train"][1].tolist(), found.classes, found.told) == (labels, classes, told)


def test_a_folder_has_a_table_for_each_split(tmp_path: Path) -> None:
    written(tmp_path, PEOPLE, "mine/train.csv")
    written(tmp_path, "age,city,income,bought\n20,Oslo,0,yes\n", "mine/test.csv")
    found = data.load(tmp_path / "mine")
    assert list(found.splits) == ["train", "test"]
    assert found.axes[0].labels == ("age", "city=Oslo", "city=Paris", "city=Rome", "income")
    assert found.splits["test"][0].tolist() == [[20, 1, 0, 0, 0]]
    written(tmp_path, "city,age,income,bought\nOslo,20,0,yes\n", "mine/test.csv")
    with pytest.raises(
        ValueError, match=r"test.csv must have the columns of .*train.csv in their order, got city, age"
    ):
        data.load(tmp_path / "mine")
    written(tmp_path, "age,city,income,bought\nold,Oslo,0,yes\n", "mine/test.csv")
    with pytest.raises(ValueError, match=r"Column 'age' of .* must be numbers in all files or in none"):
        data.load(tmp_path / "mine")


def test_samples_say_how_they_were_read_and_scaled(tmp_path: Path) -> None:
    found = samples_of(written(tmp_path, PEOPLE.replace("Paris", "Rome")), label="bought", standardise="none")
    assert found.prepared == "label 'bought'; a feature for each of the 1 values of city; numbers as they are"
    assert found.axes[0].labels == ("age", "city=Rome", "income")
    assert found.classes == ("no", "yes")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have columns and rows, but has none"),
        ("a,b\n", "must have columns and rows, but has none"),
        ("1,2\n3,4\n", "must begin with the names of its columns, but begins with numbers"),
        ("0.5,Rome,1\n2.5,Paris,0\n", "begins with values, such as '0.5'"),
        ("34,Rome,1\n35,Paris,0\n36,Rome,1\n", "begins with values, such as '34'"),
        (",a,b\n0,1,1\n1,2,0\n", "must name each column, but column 1 has no name"),
        ("a,a\n1,0\n", "must have different names of columns, but has 'a' twice"),
        ("b\n1\n0\n", "must have a column beside the label 'b'"),
        ("a,b\n1,0\n2\n", "must have 2 values in each row, but has 1 in line 3"),
        ("a,b\n1,0\n\n2,0,1\n", "must have 2 values in each row, but has 3 in line 4"),
        ("a,b\n1,0\n,1\n", "a finite value in each row, but column 'a' has none in line 3"),
        ("a,b\nx,0\n,1\n", "a finite value in each row, but column 'a' has none in line 3"),
        ("a,b\nnan,0\n1,1\n", "a finite value in each row, but column 'a' has none in line 2"),
        ("a,b\n1,0\nn/a,1\n", "numbers in the whole column 'a' or in none of it, but has 'n/a' in line 3"),
        ('a,b\n"1,5",0\n"2,5",1\n', "Column 'a' of .* must be numbers with a point, or words, but has '1,5'"),
        ("a,b\n?,0\nx,1\n", "must be numbers with a point, or words, but has '\\?'"),
        ("a,b\n1,0.5\n2,1\n", "The label 'b' of .* must be a class, a whole number or a word, but 0.5 is a fraction"),
        ("a,b\n" + "".join(f"1,{k}\n" for k in range(40)), "must be a class, but has 40 values in 40 rows"),
        ("a,b\n" + "".join(f"1,w{k}\n" for k in range(40)), "must be a class, but has 40 values in 40 rows"),
        ("a,b\n" + "".join(f"w{k},0\n" for k in range(40)), "words with at most 32 values, but has 40"),
        ('a,b\n"1,0\n', "must be a whole table, but cannot be read"),
    ],
)
def test_what_a_table_cannot_be_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        data.load(written(tmp_path, text))


def test_a_label_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"--label must be a column of .*, got 'sold'. It has age, city, income and bought"
    ):
        data.load(written(tmp_path, PEOPLE), label="sold")
    np.savez(tmp_path / "mine.npz", x=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"label must be left out for .*mine.npz, which is no table"):
        data.load(tmp_path / "mine.npz", label="sold")
    (tmp_path / "mine.csv").write_bytes(b"a,b\n\xff,1\n")
    with pytest.raises(ValueError, match=r"mine.csv must be text in UTF-8"):
        data.load(tmp_path / "mine.csv")


# -- Parquet and Arrow


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow", reason="Parquet and Arrow files need pyarrow (extra tables)")


def save(arrow: Any, table: Any, path: Path) -> Path:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, path)
        return path
    kind = arrow.ipc.new_file if path.suffix == ".feather" else arrow.ipc.new_stream
    with arrow.OSFile(str(path), "wb") as file, kind(file, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["mine.parquet", "mine.arrow", "mine.feather"])
def test_files_of_arrow_are_the_same_set(arrow: Any, tmp_path: Path, name: str) -> None:
    table = arrow.table(COLUMNS | {"city": arrow.array(COLUMNS["city"]).dictionary_encode()})
    found = data.load(save(arrow, table, tmp_path / name))
    assert found.identity == data.load(written(tmp_path, PEOPLE)).identity
    assert found.told == "label 'bought', the last column; a feature for each of the 2 values of city"
    content = (tmp_path / name).read_bytes()
    for damage in (b"", b"hello", content[: len(content) // 2]):
        (tmp_path / name).write_bytes(damage)
        with pytest.raises(ValueError, match=f"{name} must (be a whole|have columns)"):
            data.load(tmp_path / name)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ([1, None, 3], "column 'a' has none in row 2"),
        ([1.0, 2.0, float("nan")], "column 'a' has none in row 3"),
        (["x", None, "y"], "column 'a' has none in row 2"),
        ([[1], [2], [3]], "must hold numbers, words or truth values, but holds list"),
    ],
)
def test_what_a_column_of_arrow_cannot_be_is_a_sentence(
    arrow: Any, tmp_path: Path, column: list[Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        data.load(save(arrow, arrow.table({"a": column, "b": [0, 1, 0]}), tmp_path / "mine.parquet"))


def test_without_pyarrow_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"need pyarrow, which is not installed. Run pip install 'biascope\[tables\]'"):
        data.load(tmp_path / "mine.parquet")


# -- what the library datasets saved


def saved(arrow: Any, folder: Path, columns: dict[str, Any], names: list[str] | None = None) -> None:
    """A data set as save_to_disk writes it, in two parts."""
    folder.mkdir(parents=True, exist_ok=True)
    features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
    table = arrow.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    files = [f"data-{part:05}-of-00002.arrow" for part in range(2)]
    for file, part in zip(files, (table.slice(0, 2), table.slice(2)), strict=True):
        save(arrow, part, folder / file)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": file} for file in files]}))


def test_a_saved_data_set_is_read_with_its_parts_splits_and_names(arrow: Any, tmp_path: Path) -> None:
    columns = {"label": [1, 0, 1], "a": [1.0, 2.0, 3.0], "b": [5, 6, 7]}
    saved(arrow, tmp_path / "one", columns, ["cat", "dog"])
    found = data.load(tmp_path / "one")
    assert found.splits["train"][0].tolist() == [[1, 5], [2, 6], [3, 7]]
    assert found.splits["train"][1] is not None
    assert (found.splits["train"][1].tolist(), found.classes) == ([1, 0, 1], ("cat", "dog"))
    for split in ("train", "test"):
        saved(arrow, tmp_path / "both" / split, columns, ["cat", "dog"])
    (tmp_path / "both" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert repr(data.load(tmp_path / "both")) == "both: 3 train, 3 test samples of 2 features, 2 classes"
    (tmp_path / "one" / "state.json").unlink()
    with pytest.raises(ValueError, match=r"state.json must list the files of the data set"):
        data.load(tmp_path / "one")


def test_texts_of_a_saved_data_set(arrow: Any, tmp_path: Path) -> None:
    saved(arrow, tmp_path / "one", {"text": ["a", "b", "c"], "label": [1, 0, 1]}, ["sad", "glad"])
    texts, told = texts_of(tmp_path / "one")
    assert texts.splits["train"][0] == ("a", "b", "c")
    assert (texts.classes, told) == (("sad", "glad"), "label 'label'; texts of 'text'")
