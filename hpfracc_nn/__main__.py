"""`python -m hpfracc_nn` is the command `hpfracc-nn`."""

from hpfracc_nn.cli import main

if __name__ == "__main__":
    main()
