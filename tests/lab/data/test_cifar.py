"""CIFAR from files in the original format, which the tests write: unpacked, packed, and damaged in every way."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from eigengrad.lab.data import CorruptDataError, MissingDataError, load

#: What the two sets call their folder, files and keys, and the length of a batch here.
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
SETS = {
    "cifar10": ("cifar-10-batches-py", BATCHES, "test_batch", "batches.meta", "labels", "label_names", 10),
    "cifar100": ("cifar-100-python", ["train"], "test", "meta", "fine_labels", "fine_label_names", 100),
}
ROWS = 200
ARCHIVE = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def contents(name: str) -> dict[str, dict]:
    """What each file holds."""
    _, train, test, meta, labels, names, classes = SETS[name]
    rng = np.random.default_rng(0)
    files: dict[str, dict] = {}
    for file in [*train, test]:
        files[file] = {
            "batch_label": f"batch {file}",
            labels: (np.arange(ROWS) % classes).tolist(),
            "data": rng.integers(0, 256, (ROWS, 3072), dtype=np.uint8),
            "filenames": [f"{file}_{i}.png" for i in range(ROWS)],
        }
    files[meta] = {names: [f"class {i}" for i in range(classes)], "num_cases_per_batch": ROWS}
    return files


def python2_pickle(value: object) -> bytes:
    """As the originals are: protocol 2, and numpy's functions under the names they had."""
    return pickle.dumps(value, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def python2_batch(data: np.ndarray, labels: list[int]) -> bytes:
    """A batch in the very opcodes of the published files."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85"
        + string(b"b")
        + b"\x87Rq\x06(K\x01J"
        + struct.pack("<i", len(data))
        + b"M\x00\x0c\x86cnumpy\ndtype\nq\x07"
        + string(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + string(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", data.size)
        + data.tobytes()
        + b"tb"
    )
    numbers = b"]q\x02(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}q\x01(" + string(b"labels") + numbers + string(b"data") + array + b"u."


def write(name: str, root: Path) -> Path:
    folder = root / SETS[name][0]
    folder.mkdir(parents=True)
    for file, value in contents(name).items():
        (folder / file).write_bytes(python2_pickle(value))
    return folder


def pack(name: str, root: Path) -> Path:
    """The archive, as published: one folder of files."""
    folder = write(name, root / "unpacked")
    archive = root / ARCHIVE[name]
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, SETS[name][0])
    for file in folder.iterdir():
        file.unlink()
    return archive


@pytest.fixture(params=SETS)
def name(request) -> str:
    return request.param


def check(data, name: str) -> None:
    _, train, test, _, labels, _, classes = SETS[name]
    files = contents(name)
    expected = np.concatenate([files[f]["data"] for f in train]).reshape(-1, 3, 32, 32)
    assert torch.equal(data.train.images, torch.from_numpy(expected))
    assert data.train.labels.tolist() == [label for f in train for label in files[f][labels]]
    assert torch.equal(data.test.images, torch.from_numpy(files[test]["data"].reshape(-1, 3, 32, 32)))
    assert data.classes == tuple(f"class {i}" for i in range(classes))
    assert (data.name, data.channels, data.image_size) == (name, 3, 32)
    assert (data.augmentation.padding, data.augmentation.flip) == (4, True)


def test_a_folder_that_holds_the_files_folder(name, tmp_path):
    write(name, tmp_path)
    check(load(name, tmp_path), name)


def test_the_files_folder_itself(name, tmp_path):
    check(load(name, str(write(name, tmp_path))), name)


def test_a_folder_that_holds_the_archive(name, tmp_path):
    pack(name, tmp_path)
    check(load(name, tmp_path), name)


def test_the_archive_itself(name, tmp_path):
    check(load(name, pack(name, tmp_path)), name)


def test_colours_are_planes(tmp_path):
    """A row is 1,024 reds, then greens, then blues, each row by row."""
    folder = write("cifar10", tmp_path)
    value = contents("cifar10")["test_batch"]
    value["data"][0] = np.arange(3072) // 1024 * 100
    value["data"][0, 1 * 1024 + 2 * 32 + 5] = 7
    (folder / "test_batch").write_bytes(python2_pickle(value))
    image = load("cifar10", tmp_path).test.images[0]
    assert image[:, 0, 0].tolist() == [0, 100, 200]
    assert image[1, 2, 5] == 7


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("numpy_core", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_that_python_3_has_written_again(protocol, numpy_core, order, tmp_path):
    """Numpy 1 and 2 differ in the names of their modules, the protocols in how they write bytes."""
    folder = write("cifar10", tmp_path)
    for file, value in contents("cifar10").items():
        if "data" in value:
            value["data"] = np.asarray(value["data"], order=order)
        content = pickle.dumps(value, protocol=protocol)
        if numpy_core == b"numpy.core":
            for module in (b"multiarray", b"numeric"):
                old, new = b"numpy._core." + module, b"numpy.core." + module
                content = content.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new)
                content = content.replace(b"c" + old, b"c" + new)
        (folder / file).write_bytes(content)
    if protocol >= 4 and numpy_core == b"numpy.core":  # a frame knows its length, which is not checked
        assert b"numpy.core" in (folder / "test_batch").read_bytes()
    check(load("cifar10", tmp_path), "cifar10")


def test_a_file_as_python_2_wrote_it(tmp_path):
    """Strings of bytes, which Python 3 cannot write: the opcodes of the published files."""
    folder = write("cifar10", tmp_path)
    value = contents("cifar10")["test_batch"]
    (folder / "test_batch").write_bytes(python2_batch(value["data"], value["labels"]))
    check(load("cifar10", tmp_path), "cifar10")


def test_another_size_scales_image_and_border(tmp_path):
    write("cifar10", tmp_path)
    data = load("cifar10", tmp_path, image_size=16)
    assert data.train.images.shape == (5 * ROWS, 3, 16, 16)
    assert data.test.images.shape == (ROWS, 3, 16, 16)
    assert data.image_size == 16
    assert data.augmentation.padding == 2


def test_a_subset(tmp_path):
    write("cifar10", tmp_path)
    assert load("cifar10", tmp_path, subset=50).train.labels.bincount().tolist() == [5] * 10


# What is missing.


def assert_says_how_to_get_it(error: Exception, name: str, root: Path) -> None:
    assert f"https://www.cs.toronto.edu/~kriz/{ARCHIVE[name]}" in str(error)
    assert f"eigengrad fetch {name} --data-root {root}" in str(error)


def test_an_empty_folder(name, tmp_path):
    with pytest.raises(MissingDataError, match=rf"holds neither {SETS[name][0]} nor {ARCHIVE[name]}") as caught:
        load(name, tmp_path)
    assert_says_how_to_get_it(caught.value, name, tmp_path)


def test_a_folder_that_does_not_exist(name, tmp_path):
    with pytest.raises(MissingDataError, match=r"nowhere: does not exist"):
        load(name, tmp_path / "nowhere")


def test_each_missing_file_is_named(name, tmp_path):
    folder = write(name, tmp_path)
    for file in list(contents(name)):
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        with pytest.raises(MissingDataError) as caught:
            load(name, tmp_path)
        assert str(caught.value).startswith(f"{folder / file}: is missing")
        assert_says_how_to_get_it(caught.value, name, tmp_path)
        (folder / file).write_bytes(content)


def test_a_file_missing_from_the_archive(tmp_path):
    folder = write("cifar10", tmp_path / "unpacked")
    (folder / "data_batch_3").unlink()
    with tarfile.open(tmp_path / ARCHIVE["cifar10"], "w:gz") as tar:
        tar.add(folder, folder.name)
    with pytest.raises(CorruptDataError, match=r"tar.gz: does not hold cifar-10-batches-py/data_batch_3"):
        load("cifar10", tmp_path)


# What is damaged.


@pytest.mark.parametrize("length", [0, 1, 100, 5000, -1])
def test_a_truncated_file_is_named(name, length, tmp_path):
    folder = write(name, tmp_path)
    for file in list(contents(name)):
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: min(length, len(content) - 1)])
        with pytest.raises(CorruptDataError, match="is truncated or damaged") as caught:
            load(name, tmp_path)
        assert caught.value.file == str(folder / file)
        assert_says_how_to_get_it(caught.value, name, tmp_path)
        (folder / file).write_bytes(content)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_a_truncated_archive_is_named(name, share, tmp_path):
    archive = pack(name, tmp_path)
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CorruptDataError, match="is truncated or damaged") as caught:
        load(name, tmp_path)
    assert caught.value.file == str(archive)
    assert_says_how_to_get_it(caught.value, name, tmp_path)


def test_the_remedy_for_a_truncated_archive_is_its_folder(tmp_path):
    archive = pack("cifar10", tmp_path)
    archive.write_bytes(archive.read_bytes()[:1000])
    with pytest.raises(CorruptDataError) as caught:
        load("cifar10", archive)
    assert_says_how_to_get_it(caught.value, "cifar10", tmp_path)


def test_a_flipped_bit_in_the_archive_is_noticed(tmp_path):
    archive = pack("cifar10", tmp_path)
    content = bytearray(archive.read_bytes())
    for place in (4_000, len(content) // 2, len(content) - 6):  # the last is in the checksum
        damaged = bytearray(content)
        damaged[place] ^= 16
        archive.write_bytes(damaged)
        with pytest.raises(CorruptDataError):
            load("cifar10", tmp_path)


def test_an_archive_that_is_something_else(tmp_path):
    (tmp_path / ARCHIVE["cifar10"]).write_text("<html>404 Not Found</html>")
    with pytest.raises(CorruptDataError, match="is truncated or damaged"):
        load("cifar10", tmp_path)


class Malicious:
    def __reduce__(self):
        return os.system, ("echo harm > harm.txt",)


@pytest.mark.parametrize("where", ["whole", "value"])
def test_a_pickle_cannot_run_anything(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write("cifar10", tmp_path)
    value = Malicious() if where == "whole" else contents("cifar10")["data_batch_2"] | {"batch_label": Malicious()}
    (folder / "data_batch_2").write_bytes(pickle.dumps(value, protocol=2))
    with pytest.raises(CorruptDataError, match=r"data_batch_2: is truncated or damaged .*would call .*system.*"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "harm.txt").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, r"holds NoneType under 'data'; expected uint8 \(N, 3072\)"),
        ({"data": np.zeros((ROWS, 3071), np.uint8)}, r"holds uint8 \(200, 3071\) under 'data'"),
        ({"data": np.zeros((ROWS, 3072), np.float32)}, r"is truncated .* an array has the type 'f4'; expected uint8"),
        ({"labels": list(range(10))}, r"holds 10 labels under 'labels'; expected a list of 200"),
        ({"labels": None}, r"holds NoneType under 'labels'; expected a list of 200"),
        ({"labels": [10] * ROWS}, r"has the label 10; expected 0 to 9"),
        ({"labels": [-1] * ROWS}, r"has the label -1; expected 0 to 9"),
    ],
)
def test_wrong_contents_are_named(change, message, tmp_path):
    folder = write("cifar10", tmp_path)
    (folder / "data_batch_4").write_bytes(python2_pickle(contents("cifar10")["data_batch_4"] | change))
    with pytest.raises(CorruptDataError, match=rf"data_batch_4: {message}"):
        load("cifar10", tmp_path)


def test_a_pickle_of_something_else_is_named(tmp_path):
    folder = write("cifar10", tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(CorruptDataError, match="test_batch: holds a list; expected a dictionary"):
        load("cifar10", tmp_path)


def test_names_of_classes_must_be_names(tmp_path):
    folder = write("cifar10", tmp_path)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": 10}))
    with pytest.raises(CorruptDataError, match=r"batches\.meta: holds no list of names under 'label_names'"):
        load("cifar10", tmp_path)


def test_cifar10_in_the_place_of_cifar100(tmp_path):
    pack("cifar10", tmp_path)
    (tmp_path / ARCHIVE["cifar10"]).rename(tmp_path / ARCHIVE["cifar100"])
    with pytest.raises(CorruptDataError, match="does not hold cifar-100-python/train"):
        load("cifar100", tmp_path)


def test_an_archive_with_links_and_odd_members_is_read_without_unpacking(tmp_path):
    folder = write("cifar10", tmp_path / "unpacked")
    with tarfile.open(tmp_path / ARCHIVE["cifar10"], "w:gz") as tar:
        link = tarfile.TarInfo("../outside")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        absolute = tarfile.TarInfo("/absolute")
        absolute.size = 3
        tar.addfile(absolute, io.BytesIO(b"abc"))
        tar.add(folder, f"./{folder.name}")
    check(load("cifar10", tmp_path), "cifar10")
    assert sorted(p.name for p in tmp_path.iterdir()) == [ARCHIVE["cifar10"], "unpacked"]
