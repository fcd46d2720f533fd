"""mkdocs: the panel of docs/demo.md, and what its robots need: MuJoCo, ONNX Runtime, their licenses, the models."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import gymnasium
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.pages import Page

DEMO = Path(__file__).resolve().parent.parent / "docs" / "demo"
MODULES = DEMO / "node_modules"
VENDOR = {
    "@mujoco/mujoco": ("mujoco.js", "mujoco.wasm"),
    "onnxruntime-web/dist": ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
}
MODELS = {"halfcheetah": "half_cheetah"}  # a robot's name in Gymnasium, where that is another
MISSING = "The demo is not part of this site: it was built without `npm ci --prefix docs/demo`."

log = get_plugin_logger(__name__)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Puts the panel into the page, or a line on what is missing; `mkdocs build --strict` fails then."""
    if page.file.src_uri != "demo.md":
        return markdown
    if not MODULES.is_dir():
        log.warning(MISSING)
        panel = f"!!! warning\n    {MISSING}"
    else:
        panel = (DEMO / "panel.html").read_text(encoding="utf-8")
    return markdown.replace("<!-- demo -->", panel)


def on_post_build(config: MkDocsConfig) -> None:
    """Copies what the page loads. The npm packages lack the text of their licenses; Python's have it."""
    if not MODULES.is_dir():
        return
    site = Path(config.site_dir) / "demo"
    vendor = site / "vendor"
    vendor.mkdir(parents=True, exist_ok=True)
    for package, files in VENDOR.items():
        for file in files:
            shutil.copy(MODULES / package / file, vendor / file)
    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    for policy in DEMO.glob("*.onnx"):  # each is named after its robot
        shutil.copy(assets / f"{MODELS.get(policy.stem, policy.stem)}.xml", site / f"{policy.stem}.xml")
    for name in ("mujoco", "gymnasium"):
        terms = next(file for file in metadata.files(name) or () if file.name == "LICENSE")
        shutil.copy(str(terms.locate()), vendor / f"{name}.LICENSE")
    shutil.copy(DEMO / "onnxruntime.LICENSE", vendor / "onnxruntime.LICENSE")
