"""The loop is not for classifiers only: adversarial training, counted in iterations, with images to look at."""

import os
from dataclasses import dataclass

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from eigengrad.lab.training import Result, Settings, Task, run
from eigengrad.lab.training.reporter import Silent


@dataclass(frozen=True, kw_only=True)
class Duel(Settings):
    """The settings of the task below."""

    iterations: int = 40
    report_every: int = 10
    lr: float = 0.05


class Adversarial(Task):
    """A generator learns to draw points from a ring; a critic learns to tell."""

    criterion = "distance"

    def __init__(self, settings: Duel, engine) -> None:
        self.settings, self.engine = settings, engine
        self.modules = {
            "generator": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)),
            "critic": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1)),
        }
        self.optimizers = {
            name: torch.optim.Adam(network.parameters(), settings.lr) for name, network in self.modules.items()
        }
        self.schedulers = {
            name: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for name, optimizer in self.optimizers.items()
        }
        self.epochs = settings.iterations // settings.report_every

    def epoch_batches(self, epoch):
        generator = torch.Generator().manual_seed(epoch)
        points = torch.randn(self.settings.report_every, 16, 2, generator=generator)
        return [(batch / batch.norm(dim=1, keepdim=True),) for batch in points]

    def step(self, batch):
        (real,) = batch
        fake = self.modules["generator"](torch.randn_like(real))
        critic = self.modules["critic"]
        critic_loss = (
            nn.functional.softplus(critic(fake.detach())).mean() + nn.functional.softplus(-critic(real)).mean()
        )
        self.engine.descend(critic_loss, "critic")
        loss = nn.functional.softplus(-critic(fake)).mean()
        self.engine.descend(loss, "generator")
        return {"loss": loss.detach(), "critic": critic_loss.detach()}

    @torch.no_grad()
    def evaluate(self):
        noise = torch.linspace(-2, 2, 64).reshape(32, 2)
        return {"distance": float((self.modules["generator"](noise).norm(dim=1) - 1).abs().mean())}

    def images(self):
        return {"points": torch.rand(2, 3, 8, 8)}


SETTINGS = Duel(seed=3)


def go(folder, settings=SETTINGS, task=Adversarial, **options):
    return run(settings, lambda engine: task(settings, engine), folder, **{"progress": False, **options})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("duel")
    return go(folder), folder


def test_it_ends_in_a_result_of_its_own_kind(finished):
    result, folder = finished
    assert Result.load(folder, Duel) == result
    assert {"train_loss", "train_critic", "distance"} <= set(result.curves)
    assert {len(curve) for curve in result.curves.values()} == {4}
    assert (result.steps, result.best_error) == (40, min(result.curves["distance"]))
    assert set(torch.load(folder / "last.pt", weights_only=True)["modules"]) == {"generator", "critic"}


def test_tensorboard_shows_its_images(finished):
    events = EventAccumulator(str(finished[1] / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Images("points")] == [1, 2, 3, 4]


def test_it_can_be_interrupted_in_the_middle(finished, tmp_path):
    class Stop(Silent):
        def step(self, snapshot):
            os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, progress=Stop())
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, progress=Stop())
    go(tmp_path)
    for name in ("generator", "critic"):
        got, expected = (
            torch.load(folder / "last.pt", weights_only=True)["modules"][name] for folder in (tmp_path, finished[1])
        )
        assert all(torch.equal(got[key], value) for key, value in expected.items())


def test_the_parameter_that_fails_is_named_with_its_network(tmp_path):
    class Broken(Adversarial):
        def __init__(self, settings, engine):
            super().__init__(settings, engine)
            self.modules["generator"][2].weight.register_hook(lambda g: g / 0)

    result = go(tmp_path, task=Broken)
    assert result.outcome == "failed"
    assert (result.failure.reason, result.failure.where) == ("non-finite gradient", "generator.2.weight")
