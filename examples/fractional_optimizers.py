"""Train a small network with Adam and with fractional Adams, and stop and resume one of the runs.

Run:  python examples/fractional_optimizers.py [--quick]
"""

import argparse
import copy

import torch

from hpfracc_nn.training import FractionalAdam

RUNS = {
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "FractionalAdam, alpha 1": lambda params: FractionalAdam(params, lr=0.01),
    "FractionalAdam, alpha 0.9": lambda params: FractionalAdam(params, lr=0.01, alpha=0.9),
    "alpha 0.5 in place of beta1": lambda params: FractionalAdam(params, lr=0.01, alpha=0.5, betas=(0.0, 0.999)),
    "alpha 0.9, exponentials": lambda params: FractionalAdam(params, lr=0.01, alpha=0.9, memory="exponentials"),
}


def start(make):
    """Return a network, its optimizer, and the data: a sine to be learnt."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    x = torch.linspace(-3, 3, 200)[:, None]
    return net, make(net.parameters()), x, torch.sin(2 * x)


def train(net, optimizer, x, y, steps):
    """Return the loss after so many steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    return (net(x) - y).square().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 50 if parser.parse_args().quick else 1000

    for name, make in RUNS.items():
        print(f"{name}: {train(*start(make), steps):.6f}")

    make = RUNS["alpha 0.9, exponentials"]
    net, optimizer, x, y = start(make)
    train(net, optimizer, x, y, steps // 2)
    again, other, _, _ = start(make)
    again.load_state_dict(copy.deepcopy(net.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    losses = [train(one, optimizer, x, y, steps // 2) for one, optimizer in ((net, optimizer), (again, other))]
    print(f"stopped and resumed: {losses[1]:.6f}, not stopped: {losses[0]:.6f}")


if __name__ == "__main__":
    main()
