"""The configuration of a run: what it refuses, and what makes two of them the same run."""

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from eigengrad.lab.training import Config

OTHER_VALUES = {
    "seed": 3,
    "precision": "bf16",
    "threads": 2,
    "data_digest": "0123456789ab",
    "data_root": "/data",
    "data": "cifar10",
    "subset": 100,
    "image_size": 16,
    "colour_jitter": 0.4,
    "model": "resnet18",
    "stem_width": 16,
    "width": 8,
    "norm": "iternorm",
    "group_size": 4,
    "gradient": "clip",
    "degree": 5,
    "eps": 0.1,
    "whitening": "pca",
    "average": "whitening",
    "norm_momentum": 0.2,
    "whitened": "all",
    "pooling": "exact",
    "pooling_eps": 0.1,
    "epochs": 3,
    "batch_size": 32,
    "lr": 0.2,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "lr_step": 2,
    "lr_factor": 0.5,
}
FIELDS = [field.name for field in fields(Config)]


def test_it_survives_json():
    config = Config(**OTHER_VALUES)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert set(OTHER_VALUES) == set(FIELDS)


def test_absent_fields_take_their_defaults():
    assert Config.from_dict({"lr": 0.3}) == Config(lr=0.3)


def test_it_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Config().lr = 1.0


def test_unknown_fields_are_named():
    with pytest.raises(ValueError, match=r"unknown fields 'depth', 'learning_rate'; there are: .*lr_step"):
        Config.from_dict({"learning_rate": 0.1, "depth": 3})


@pytest.mark.parametrize("field", ["data", "model", "norm", "gradient", "pooling", "precision", "whitening", "average"])
def test_an_unknown_name_lists_the_choices(field):
    with pytest.raises(ValueError, match=rf"{field}: got 'nothing'; expected one of '"):
        Config(**{field: "nothing"})


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("epochs", 0, ValueError),
        ("epochs", 2.5, TypeError),
        ("batch_size", -1, ValueError),
        ("seed", -1, ValueError),
        ("seed", True, TypeError),
        ("seed", 2**63, ValueError),
        ("subset", 0, ValueError),
        ("threads", 0, ValueError),
        ("lr", 0.0, ValueError),
        ("lr", "0.1", TypeError),
        ("lr", float("nan"), ValueError),
        ("momentum", -0.1, ValueError),
        ("eps", float("inf"), ValueError),
        ("colour_jitter", 1.0, ValueError),
        ("norm_momentum", -1.0, ValueError),
        ("pooling_eps", -1.0, ValueError),
        ("whitened", "", ValueError),
        ("data_root", 3, TypeError),
        ("data_digest", 3, TypeError),
    ],
)
def test_a_value_that_cannot_be_is_named(field, value, kind):
    with pytest.raises(kind, match=rf"Config: {field} must .*got"):
        Config(**{field: value})


@pytest.mark.parametrize("field", FIELDS)
def test_the_key_changes_with_what_matters_and_with_nothing_else(field):
    base = Config(pooling="exact") if field == "pooling_eps" else Config()
    changed = base.replace(**{field: OTHER_VALUES[field] if field != "pooling" else "exact"})
    assert (changed.key() == base.key()) == (field in ("threads", "data_root"))


def test_options_that_came_later_leave_the_names_of_older_runs_alone():
    assert Config().key() == "digits-convnet-dbn-taylor-d16-s0-13613483"
    assert "-clip_threshold=50-" in Config(pooling="clip(threshold=50)").key()
    assert Config(gradient="clip(threshold=50)").key().startswith("digits-convnet-dbn-clip_threshold=50-d16-s0-")


def test_options_that_a_method_does_not_have_make_no_other_run():
    norm = Config(norm="batchnorm")
    assert norm.key() == norm.replace(group_size=4, gradient="svd", degree=3, eps=0.1).key()
    assert Config(norm="iternorm").key() == Config(norm="iternorm", gradient="svd").key()
    assert Config(norm="iternorm").key() != Config(norm="iternorm", group_size=4).key()
    assert Config(gradient="clip").key() == Config(gradient="clip", degree=3).key()
    assert Config(gradient="power_iteration").key() != Config(gradient="power_iteration", degree=3).key()
    assert Config(whitening="cholesky").key() == Config(whitening="cholesky", gradient="svd", degree=3).key()
    assert norm.key() == norm.replace(whitening="pca", average="whitening", whitened="all").key()
    assert norm.key() != norm.replace(norm_momentum=0.2).key()
    assert Config().key() == Config(pooling_eps=0.5).key()


def test_whole_numbers_are_the_same_run_as_floats():
    assert Config(lr=1).key() == Config(lr=1.0).key()
    assert Config(data_root=Path("/data")) == Config(data_root="/data")


def test_the_key_is_the_same_in_another_process():
    script = "from eigengrad.lab.training import Config; print(Config(lr=0.3, seed=7).key())"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == Config(lr=0.3, seed=7).key()
    assert printed.startswith("digits-convnet-dbn-taylor-d16-s7-")
