"""The file a run ends in."""

import json
import math

import pytest

from eigengrad.lab.training import Config, Failure, Result

FAILURE = Failure(step=7, epoch=2, reason="non-finite loss", where="loss", message="the loss is nan at step 7")
SUCCESS = Result(
    Config(seed=3),
    "succeeded",
    curves={"train_loss": [1.5, 0.5], "test_error": [0.25, 0.125]},
    best_error=0.125,
    best_epoch=2,
    last_error=0.125,
    steps=40,
    seconds=2.5,
    seconds_per_step=0.0625,
    gradient={"norm_mean": 0.5, "norm_max": 1.5},
    seed=3,
)


@pytest.mark.parametrize("result", [SUCCESS, Result(Config(), "failed", FAILURE)])
def test_it_comes_back_from_its_file_and_its_folder(result, tmp_path):
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json") == result
    assert Result.load(tmp_path) == result


def test_it_says_what_it_was_made_with(tmp_path):
    SUCCESS.save(tmp_path / "result.json")
    content = json.loads((tmp_path / "result.json").read_text())
    assert {"eigengrad", "torch", "python", "accelerate", "numba"} <= set(content["versions"])
    assert content["machine"]["cores"] >= 1
    assert content["config"]["seed"] == content["seed"] == 3


def test_numbers_that_json_has_not_become_null(tmp_path):
    Result(Config(), "succeeded", curves={"test_loss": [math.inf, 1.0]}).save(tmp_path / "result.json")
    assert "Infinity" not in (tmp_path / "result.json").read_text()
    first, second = Result.load(tmp_path).curves["test_loss"]
    assert math.isnan(first)
    assert second == 1.0


def change(**values):
    return json.dumps({**SUCCESS.to_dict(), **values})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "\x00\x01",
        json.dumps(SUCCESS.to_dict())[:-20],
        json.dumps({"config": {}}),
        change(outcome="unknown"),
        change(outcome="failed"),
        change(failure=vars(FAILURE)),
        change(outcome="failed", failure={"step": 3}),
        change(config={"learning_rate": 1}),
        change(config=None),
        change(curves=None),
        change(more=1),
    ],
    ids=range(13),
)
def test_a_file_that_is_not_a_whole_result_is_named(content, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"result.json is not a whole result \(.*Delete it to do the run again"):
        Result.load(path)


def test_no_file_is_named_too(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no result at .*result.json"):
        Result.load(tmp_path / "result.json")
    with pytest.raises(FileNotFoundError, match=r"no result at .*result.json"):
        Result.load(tmp_path)
