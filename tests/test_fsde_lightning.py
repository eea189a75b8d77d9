"""A NeuralFSDE in Lightning: training that goes on from a checkpoint ends where training in one go does."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import lightning.pytorch as pl
import torch

from hpfracc_nn.solvers import NeuralFSDE
from tests.test_fsde_modes import TS, Network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Model(pl.LightningModule):
    """Paths of each step are drawn from a generator that the step seeds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = NeuralFSDE(Network(), Network(0.3), alpha=0.8, learn_alpha=True)

    def training_step(self, batch, index):
        generator = torch.Generator().manual_seed(self.global_step)
        return self.model(batch[0], TS, generator=generator)[-1].square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.02)


def trained(folder, epochs, checkpoint=None):
    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 32).view(16, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model, trainer


def test_training_that_goes_on_from_a_checkpoint_is_the_same(tmp_path):
    whole, _ = trained(tmp_path / "whole", 4)
    _, trainer = trained(tmp_path / "part", 2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = trained(tmp_path / "rest", 4, tmp_path / "half.ckpt")
    started = dict(Model().named_parameters())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
        assert name not in started or not torch.equal(value, started[name]), name
