"""Models by the `config.json` that lies beside a model's weights, as Hugging Face's `transformers` writes it.

`models.json` has the sizes of published models as their own `config.json` gives them; a file or folder of one's own is
read by the same rules. A key that is not known is an error and is never guessed.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError
from arch.near import hint
from workloads.graphs.config import read_config
from workloads.graphs.model import Model

MODELS_JSON = Path(__file__).with_name("models.json")


def _is_file(model: str) -> bool:
    """Whether a model is a file or folder, not the name of a published one."""
    return "/" in model or model.endswith(".json")


@functools.cache
def _published() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(MODELS_JSON.read_text(encoding="utf-8"))
    return found


def names() -> tuple[str, ...]:
    """Published models, by name."""
    return tuple(_published())


def model_of(model: str) -> Model:
    """The sizes of a published model, or of a `config.json` (file, or the folder it lies in). InputError where there is
    none, or where it holds what is not understood."""
    if not _is_file(model):
        if model not in _published():
            read = "published ones are " + ", ".join(names())
            raise InputError(
                f"model={model}: unknown{hint(model, names())}; {read}, or a config.json: model=./config.json"
            )
        return read_config(_published()[model], model)
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    found = reading.document(reading.text(path, f"model={model}"), f"model={model}: {path}")
    if not isinstance(found, dict):
        raise InputError(f"model={model}: {path} holds no object; it should be a model's config.json")
    return read_config(found, str(path))


def whole_model(model: str, keys: list[str]) -> str:
    """The operator that runs all of a model: its layers, embedding and head. keys: `key=value`, which stand in the
    place of these."""
    sizes = model_of(model)
    given = {key.partition("=")[0] for key in keys}
    own = {"layers": sizes.layers, "vocab": sizes.vocab} | ({"seq": sizes.positions} if sizes.patch else {})
    if "phase=encode" in keys:
        own = {"layers": sizes.encoder_layers, "seq": sizes.frames}
    return " ".join(["llama", f"model={model}", *(f"{k}={v}" for k, v in own.items() if k not in given), *keys])
