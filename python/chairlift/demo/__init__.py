"""The small model that ships with the package; `tools/train_demo` made it."""

from pathlib import Path
from typing import Final

MODEL_DIR: Final = Path(__file__).parent / "model"
"""Folder of the trained model, laid out like a Hugging Face model folder."""
