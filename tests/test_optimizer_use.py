"""The optimizers in use: hooks, schedules, states, scaling, autograd, compiling, processes, Lightning."""

import copy
import pickle
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

import hpfracc_nn.training
from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.training import FractionalAdam, FractionalAdamW, FractionalRMSprop, FractionalSGD
from tests.optimizer_cases import (
    AVERAGES,
    BASES,
    OPEN,
    distance,
    every_average,
    every_class,
    gradients,
    named,
    parameters,
    parameters_of,
    quartic,
    train,
)


@every_class
def test_hooks_run_once_and_see_the_gradients(cls):
    """Also after an optimizer of the base class was made, whose step has hooks of its own from then on."""
    made: Any = BASES[cls]
    made(parameters())
    optimizer = cls(parameters(), alpha=0.5)
    seen = []

    def look(opt: Any, args: Any, kwargs: Any) -> None:
        seen.append(parameters_of(opt)[0].grad.clone())  # type: ignore[union-attr]

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(look)
    for step in gradients(parameters_of(optimizer), 3):
        for p, grad in zip(parameters_of(optimizer), step, strict=True):
            p.grad = grad
        seen.clear()
        optimizer.step()
        assert [torch.equal(each, step[0]) for each in seen] == [True, True]


@every_average
def test_a_gradient_that_torch_changes_in_place_is_remembered_as_it_was(options):
    """The base optimizer adds the velocity to the gradient it is given, with foreach and Nesterov's momentum."""
    given = {"lr": 0.01, "momentum": 0.9, "nesterov": True, "alpha": 0.6, **options}
    runs = [
        train(FractionalSGD, 15, foreach=f, generator=torch.Generator().manual_seed(0), **given) for f in (False, True)
    ]
    assert distance(*runs) < 1e-14


@pytest.mark.parametrize("options", [{}, {"memory": "exponentials"}], ids=str)
def test_a_new_alpha_weighs_what_was_remembered_anew(options):
    """A schedule that ends at 0.5 has remembered the same gradients as a run at 0.5: equal gradients, equal steps."""
    runs = []
    for first in (0.5, 0.9):
        params = [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))]
        optimizer = FractionalSGD(params, lr=0.0, alpha=first, **options)
        for (grad,) in gradients(params, 6):
            params[0].grad = grad
            optimizer.step()
        optimizer.param_groups[0].update(alpha=0.5, lr=1.0)
        optimizer.step()
        runs.append(optimizer)
    assert distance(*runs) == 0


def test_rmsprops_smoothing_is_torchs_alpha():
    ours = train(FractionalRMSprop, 10, lr=0.01, smoothing=0.9, eps=1e-6)
    theirs = train(torch.optim.RMSprop, 10, lr=0.01, alpha=0.9, eps=1e-6)
    assert distance(ours, theirs) == 0
    assert (ours.param_groups[0]["alpha"], ours.param_groups[0]["smoothing"]) == (1.0, 0.9)


@pytest.mark.parametrize("options", OPEN, ids=named)
@every_class
def test_pickled_optimizers_go_on_alike(cls, options):
    optimizer = train(cls, 5, lr=0.01, alpha=0.6, **options)
    again = pickle.loads(pickle.dumps(optimizer))
    for each in (optimizer, again):
        for _ in range(10):
            each.step(quartic(each))
    assert distance(optimizer, again) == 0


@every_class
def test_an_optimizer_is_freed_with_its_last_reference(cls):
    optimizer = train(cls, 2, alpha=0.6)
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None


def test_a_copy_keeps_its_manager():
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    duplicate = copy.deepcopy(FractionalSGD(parameters(), alpha=0.5, manager=manager))
    duplicate.step(quartic(duplicate))
    assert manager.counters()["forward"] == 1


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"memory": "exponentials"}], ids=str)
def test_a_scaled_run_equals_one_that_is_not_and_skips_what_overflows(options):
    """Scales are powers of two, so that nothing is rounded; what overflowed is not remembered."""
    runs = []
    for enabled in (False, True):
        scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=2.0**10, growth_interval=3)
        params = parameters()
        optimizer = FractionalAdam(params, lr=0.05, alpha=0.6, **options)
        for step in range(14):
            optimizer.zero_grad()
            loss = torch.stack([(p - 1).square().sum() for p in params]).sum()
            if step == 6:
                if not enabled:
                    continue
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        runs.append(optimizer)
    assert distance(*runs) == 0


@pytest.mark.parametrize("memory", [1, 4, "exponentials"])
@every_class
def test_autograd_follows_differentiable_steps(cls, memory):
    """The parameters after three steps, as a function of those at the start and of all gradients."""

    def after(start, *grads):
        p = start.clone()
        optimizer = cls([p], lr=0.1, alpha=0.6, memory=memory, differentiable=True)
        for grad in grads:
            p.grad = grad.clone()
            optimizer.step()
        return p

    given = [torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    assert torch.autograd.gradcheck(after, given)


@pytest.mark.parametrize("options", [{}, {"memory": "exponentials"}, {"kind": "difference"}], ids=str)
def test_differentiable_steps_are_the_others(options):
    given = {"lr": 0.05, "alpha": 0.6, **options}
    tensors = [p.detach() for p in parameters()]
    runs = [train(FractionalSGD, 25, [t.clone() for t in tensors], differentiable=d, **given) for d in (False, True)]
    assert distance(*runs) < 1e-13


def test_the_average_of_an_ema_wrapper_is_of_the_stepped_weights():
    net = torch.nn.Linear(3, 2)
    optimizer, average = FractionalAdamW(net.parameters(), alpha=0.8), AveragedModel(net)
    for _ in range(4):
        net(torch.ones(5, 3)).square().mean().backward()
        optimizer.step()
        average.update_parameters(net)
    assert not torch.equal(next(average.module.parameters()), net.weight)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("options", [{"alpha": 1.0}, *({"alpha": 0.7, **each} for each in AVERAGES[::3])], ids=named)
@every_class
def test_the_step_can_be_compiled(cls, options):
    """Alone and as a part of the training step; no more graphs are made once the state is there."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    x, runs, counters = torch.randn(16, 5, dtype=torch.float64), [], []
    for way in ("eager", "step", "all"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).double()
        optimizer = cls(net.parameters(), lr=0.01, **options)
        counter = CompileCounterWithBackend("aot_eager")
        step = torch.compile(optimizer.step, backend=counter) if way == "step" else optimizer.step

        def iteration(net=net, optimizer=optimizer, step=step):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            step()

        run = torch.compile(iteration, backend=counter) if way == "all" else iteration
        frames = []
        for _ in range(20):
            run()
            frames.append(counter.frame_count)
        counters.append(frames)
        runs.append(optimizer)
    # Compiled, Adam corrects its bias in float32, the dtype of its step.
    assert distance(runs[0], runs[1]) < 1e-5
    assert distance(runs[0], runs[2]) < 1e-5
    assert [frames[5] == frames[-1] for frames in counters] == [True] * 3
    assert min(frames[-1] for frames in counters[1:]) > 0


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """With DistributedDataParallel, and with the states shared out by ZeroRedundancyOptimizer."""
    program = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from hpfracc_nn.training import FractionalAdam
rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
def run(wrap, make):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    torch.manual_seed(rank)  # as where each process shuffles or augments its own data
    module = torch.nn.parallel.DistributedDataParallel(net) if wrap else net
    optimizer = make(net.parameters())
    for _ in range(15):
        optimizer.zero_grad()
        module(x[rank::2] if wrap else x).square().mean().backward()
        optimizer.step()
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(0)
        if rank == 0:
            assert all("history" in state for state in optimizer.state_dict()["state"].values())
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])
def replicas(run):
    found = [torch.empty_like(run) for _ in range(2)]
    dist.all_gather(found, run)
    return found
for given in (dict(lr=0.01, alpha=0.7), dict(lr=0.01, alpha=0.5, kind="fcgd")):
    alone = run(False, lambda p: FractionalAdam(p, **given))
    for make in (lambda p: FractionalAdam(p, **given), lambda p: ZeroRedundancyOptimizer(p, FractionalAdam, **given)):
        both = run(True, make)
        torch.testing.assert_close(both, alone, rtol=0, atol=1e-12)
        assert torch.equal(*replicas(both))
dist.destroy_process_group()
"""
    done = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(tmp_path / "meet")], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in done:
        _, errors = process.communicate(timeout=150)
        assert process.returncode == 0, errors.decode()


def test_lightning_trains_with_it(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Line(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return FractionalAdam(self.parameters(), lr=0.01, alpha=0.7)

    data: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 3)), batch_size=8)
    options = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    module = Line()
    trainer = lightning.Trainer(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=False, **options)
    trainer.fit(module, data)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)["optimizer_states"][0]
    assert saved["state"][0]["history_step"] == 8
    lightning.Trainer(max_epochs=4, default_root_dir=tmp_path, enable_checkpointing=False, **options).fit(
        module, data, ckpt_path=str(tmp_path / "run.ckpt")
    )


def test_names_load_without_torch_and_then_with_it():
    names = {"AlphaSchedule", "FractionalAdam", "FractionalAdamW", "FractionalRMSprop", "FractionalSGD"}
    assert names <= set(dir(hpfracc_nn.training))
    assert all(issubclass(cls, torch.optim.Optimizer) for cls in BASES)
    assert np.all([getattr(hpfracc_nn.training, name) is not None for name in names])


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_there_twice_keeps_its_own_gradient():
    p = torch.nn.Parameter(torch.zeros(3))
    opt = FractionalSGD([p, p], lr=0.1, alpha=0.5)
    for k in (1.0, 2.0, 3.0):
        p.grad = k * torch.arange(1.0, 4.0)
        opt.step()
    assert p.grad is not None
    torch.testing.assert_close(p.grad, torch.tensor([3.0, 6.0, 9.0]))
