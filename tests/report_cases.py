"""Models and trainers for the tests of BackendReport; their fractional modules ask a manager and compute nothing."""

import lightning.pytorch as pl
import torch

from hpfracc_nn.selection import Workload

STEPS = 5


class Consulted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, site, plan):
        ctx.site, ctx.plan = site, plan
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        ctx.site.again(ctx.plan)
        return g, None, None


class Fractional(torch.nn.Module):
    """The identity; consults its site once forward and once backward, and says that a call took 2 ms.

    Or `seconds` by kernel, where it is asked for the time.
    """

    def __init__(self, manager, seconds=None):
        super().__init__()
        self.site = manager.site("test_op", "torch")
        self.seconds = seconds or {}

    def forward(self, x):
        work = Workload("test_op", "torch", rows=len(x), n=x.shape[1], needs_gradient=torch.is_grad_enabled())
        plan = self.site.pick((x.shape, torch.is_grad_enabled()), lambda: work)
        if not self.seconds:
            self.site.manager.record(plan, 2e-3)
        elif plan.due():
            self.site.manager.record(plan, self.seconds[plan.kernel.name])
        return Consulted.apply(x, self.site, plan)


class Net(pl.LightningModule):
    def __init__(self, manager, fractional=2, seconds=None):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.fractional = torch.nn.ModuleList(Fractional(manager, seconds) for _ in range(fractional))

    def forward(self, x):
        x = self.linear(x)
        for module in self.fractional:
            x = module(x)
        return x

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def predict_step(self, batch, batch_idx):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Net):
    def validation_step(self, batch, batch_idx):
        self(batch)


def loader(batches=STEPS):
    return torch.utils.data.DataLoader(list(torch.ones(3 * batches, 4)), batch_size=3)  # type: ignore[arg-type]


def trainer(tmp_path, report, **options):
    options = {
        "logger": False,
        "max_steps": STEPS,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **options,
    }
    return pl.Trainer(accelerator="cpu", callbacks=[report], default_root_dir=tmp_path, **options)
