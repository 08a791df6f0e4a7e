"""Prints "<version>;<directory>" of the torch this interpreter would import; nothing where there is none.

Used by the build. Must not import torch: that costs seconds and needs its run-time libraries.
"""

import importlib.metadata
import importlib.util
import os


def locate() -> str | None:
    """Version (without local part) and package directory of torch, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = importlib.metadata.version("torch").split("+")[0]
    return f"{version};{os.path.dirname(spec.origin)}"


if __name__ == "__main__":
    found = locate()
    if found:
        print(found)
