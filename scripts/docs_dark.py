"""Makes a chart of matplotlib's transparent, with other colors where the page around it is dark."""

from __future__ import annotations

import re

from aaren_rl.compare.report import INK, LINE, SOFT

# Light -> dark. What is not here is seen on both.
DARK = {
    INK: "#e6e9ed", SOFT: "#a3acb8", LINE: "#363d47", "#fffffe": "#14181d",
    "#0072b2": "#4aa8ec", "#56b4e9": "#a9dcff", "#d55e00": "#ff8b45", "#aa3377": "#e07bb0",
    "#000000": "#e6e9ed", "#222222": "#e6e9ed", "#808080": "#a3acb8", "#b0b0b0": "#4a525e", "#ffffff": "#1b1f26",
    "#b3b3b3": "#4a525e", "#3f51b5": "#9fb0ff", "#e65100": "#ff9d5c", "#9e9e9e": "#a3acb8", "#999999": "#a3acb8",
    "#009e73": "#3fd1a7", "#882255": "#d9679b", "#44aa99": "#5fd0bd", "#8f7700": "#d1bb3c",
}  # fmt: skip
_PAPER = re.compile(r'<g id="patch_\d+">\s*<path d="[^"]*"\s+style="fill: #ffffff"/>\s*</g>')
_STYLE = re.compile(r"<style>[^<]*</style>\n?")


def style_sheet() -> str:
    """Letters without a color of their own take that of the drawing; the others are exchanged one by one."""
    rules = [f"svg{{fill:{DARK[INK]}}}"]
    for light, dark in DARK.items():
        for kind in ("fill", "stroke"):
            rules.append(f'[style*="{kind}: {light.lower()}"]{{{kind}:{dark}!important}}')
    return f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>\n"


def adapt(svg: str) -> str:
    """The drawing without its paper, and with the style sheet; the same again where it has both."""
    first = svg.index(">", svg.index("<svg")) + 1
    return svg[:first] + "\n" + style_sheet() + _STYLE.sub("", _PAPER.sub("", svg[first:])).lstrip("\n")
