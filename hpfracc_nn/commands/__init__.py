"""Commands of `hpfracc-nn` that are more than a few lines; each module makes its own from typer."""
