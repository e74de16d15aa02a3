"""Timelines as one self-contained HTML page: rows are multiprocessors (or blocks), colours are stages, waits are hatched."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.runtime.timeline import Panel

__all__ = ["page_of"]

WIDTH = 1200
"""Pixels of the longest run."""
HEIGHT = 560
"""Pixels of a panel, about: rows are 2 to 16 pixels high."""
TICKS = 10

_STYLE = """
body { font: 13px/1.4 system-ui, sans-serif; margin: 24px; color: #222; background: #fff }
h1 { font-size: 18px } h2 { font-size: 14px; margin: 20px 0 4px }
svg { display: block; background: #f7f7f7 } svg text { font-size: 10px; fill: #555 }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 } .legend i { display: inline-block; width: 12px;
height: 12px; margin-right: 5px; vertical-align: -1px } #tip { position: fixed; pointer-events: none; background: #222;
color: #fff; padding: 3px 7px; border-radius: 3px; display: none; white-space: pre } pre { font-size: 12px }
"""

_SCRIPT = """
const tip = document.getElementById('tip');
for (const panel of DATA) {
  const svg = document.getElementById(panel.id);
  svg.addEventListener('mouseleave', () => tip.style.display = 'none');
  svg.addEventListener('mousemove', event => {
    const box = svg.getBoundingClientRect();
    const time = (event.clientX - box.left - panel.left) / panel.scale;
    const row = Math.floor((event.clientY - box.top - panel.top) / panel.height);
    const span = (panel.rows[row] || []).find(s => s[1] <= time && time < s[3]);
    tip.style.display = span ? 'block' : 'none';
    if (!span) return;
    const waits = span[2] > span[1] ? `\\nwaits ${(span[2] - span[1]).toFixed(2)} us` : '';
    tip.textContent = `${panel.tasks[span[0]]}, row ${row}\\n${span[1].toFixed(2)} to ${span[3].toFixed(2)} us${waits}`;
    tip.style.left = event.clientX + 14 + 'px'; tip.style.top = event.clientY + 14 + 'px';
  });
}
"""


def page_of(title: str, panels: Sequence[Panel], text: str = "") -> str:
    """An HTML page with a panel a run, all on one time scale; `text` stands below in fixed pitch."""
    longest = max([panel.total for panel in panels] + [1e-9])
    names = list(dict.fromkeys(task[0] for panel in panels for task in panel.tasks))
    colours = {name: f"hsl({n * 137.508 % 360:.0f} 62% {48 + 14 * (n % 2)}%)" for n, name in enumerate(names)}
    drawn = [_panel(n, panel, WIDTH / longest, colours) for n, panel in enumerate(panels)]
    legend = "".join(f'<span><i style="background:{colours[n]}"></i>{html.escape(n)}</span>' for n in names)
    legend += '<span><i style="background:repeating-linear-gradient(45deg,#888 0 1px,#ddd 1px 4px)"></i>waiting</span>'
    data = json.dumps([data for _, data in drawn], separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1><div class=legend>{legend}</div>\n"
        + "\n".join(svg for svg, _ in drawn)
        + f"\n<pre>{html.escape(text)}</pre><div id=tip></div>\n<script>const DATA = {data};{_SCRIPT}</script></body></html>\n"
    )


def _panel(number: int, panel: Panel, scale: float, colours: dict[str, str]) -> tuple[str, dict]:
    """One run as SVG, and what the page's script looks up."""
    rows = max(1, panel.rows)
    height = float(np.clip(HEIGHT / rows, 2, 16))
    left, top = 44, 18
    parts = [_axis(panel.total, scale, left, top, rows * height)]
    for task, (name, _, _) in enumerate(panel.tasks):
        mine = panel.task == task
        for begins, ends, fill in (
            (panel.begin, panel.ready, f'fill="{colours[name]}" fill-opacity=".22"'),
            (panel.begin, panel.ready, f'fill="url(#wait{number})"'),
            (panel.ready, panel.end, f'fill="{colours[name]}"'),
        ):
            shown = mine & (ends > begins)
            if shown.any():
                boxes = zip(panel.row[shown].tolist(), begins[shown].tolist(), ends[shown].tolist(), strict=True)
                shape = "".join(_box(left + b * scale, top + r * height, (e - b) * scale, height * 0.9) for r, b, e in boxes)
                parts.append(f'<path d="{shape}" {fill}/>')
    parts += [
        f'<text x="{left - 4}" y="{top + (r + 0.7) * height:.1f}" text-anchor="end">{r}</text>'
        for r in range(0, rows, max(1, int(24 / height)))
    ]
    pattern = (
        f'<defs><pattern id="wait{number}" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line x1="0" y1="0" x2="0" y2="4" stroke="#777" stroke-width="1"/></pattern></defs>'
    )
    identity = f"panel{number}"
    size = f'width="{left + panel.total * scale + 20:.0f}" height="{top + rows * height + 6:.0f}"'
    heading = f"<h2>{html.escape(panel.title)}: {panel.total:.1f} us</h2>"
    lookup: list[list[list[float]]] = [[] for _ in range(rows)]
    order = np.argsort(panel.begin, kind="stable")
    for n in order.tolist():
        times = (round(float(t[n]), 2) for t in (panel.begin, panel.ready, panel.end))
        lookup[int(panel.row[n])].append([int(panel.task[n]), *times])
    data = {
        "id": identity,
        "left": left,
        "top": top,
        "scale": scale,
        "height": height,
        "tasks": [f"{name} ({engine})" for name, engine, _ in panel.tasks],
        "rows": lookup,
    }
    return f'{heading}<svg id="{identity}" {size}>{pattern}{"".join(parts)}</svg>', data


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{max(0.2, width):.1f}v{height:.1f}h{-max(0.2, width):.1f}z"


def _axis(total: float, scale: float, left: float, top: float, height: float) -> str:
    """Vertical lines at round times, with their labels in microseconds."""
    step = 10 ** np.floor(np.log10(max(total, 1e-3) / TICKS))
    step = next(step * m for m in (1, 2, 5, 10) if total / (step * m) <= TICKS)
    parts = []
    for n in range(int(total / step) + 1):
        x = left + n * step * scale
        parts.append(f'<line x1="{x:.1f}" y1="{top - 3}" x2="{x:.1f}" y2="{top + height:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{top - 6}" text-anchor="middle">{n * step:g}</text>')
    return "".join(parts)
