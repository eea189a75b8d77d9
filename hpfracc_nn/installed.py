"""The version of the installed package."""

from importlib import metadata

try:
    __version__ = metadata.version("hpfracc-nn")
except metadata.PackageNotFoundError:  # the sources are used without an installation
    __version__ = "0+unknown"
