"""Models of Transformers, timm, torchvision, PyG and diffusers as they are, with random weights; nothing is downloaded.

The libraries are the extra `breadth` of pyproject.toml; a case whose library is not installed is listed all the same, and
`bench.suite build` says that it is missing.
"""

from bench.breadth.library.cases import library

__all__ = ["library"]
