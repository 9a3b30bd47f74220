"""The sweep as an SVG, written by hand: matplotlib is not a dependency."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 320, 240, 56, 44, 40, 24
COLOURS = ("#888888", "#d08a2e", "#3a76c2", "#8a4fb0", "#1f9d55", "#c23a5a")


def svg(found: list[dict[str, Any]]) -> str:
    """One panel per number of workers: steps per second over device time, a line per strategy."""
    panels = sorted({f["workers"] for f in found})
    names = list(found[0]["strategies"])
    width = LEFT + len(panels) * (WIDTH + GAP)
    height = TOP + HEIGHT + BOTTOM
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, name in enumerate(names):
        parts.append(_text(LEFT + 100 * i, 14, name, COLOURS[i % len(COLOURS)]))
    for i, workers in enumerate(panels):
        rows = sorted((f for f in found if f["workers"] == workers), key=lambda f: f["device_ms"])
        parts += _panel(LEFT + i * (WIDTH + GAP), workers, rows, names)
    return "\n".join([*parts, "</svg>", ""])


def _panel(x0: float, workers: int, rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    longest = max(r["device_ms"] for r in rows) or 1
    speeds = {n: [1e3 / r["strategies"][n]["ms_per_step"] for r in rows] for n in names}
    top = max(max(s) for s in speeds.values())

    def x(device_ms: float) -> float:
        return x0 + device_ms / longest * (WIDTH - 20)

    def y(speed: float) -> float:
        return TOP + HEIGHT * (1 - speed / top)

    parts = [_text(x0, TOP - 10, f"{workers} worker{'s' * (workers > 1)}"),
             f'<path d="M{x0} {TOP}V{TOP + HEIGHT}H{x0 + WIDTH - 10}" fill="none" stroke="#333"/>',
             _text(x0 + WIDTH / 3, TOP + HEIGHT + 32, "device ms per step")]
    parts += [_text(x(r["device_ms"]) - 3, TOP + HEIGHT + 15, f"{r['device_ms']:g}") for r in rows]
    parts += [_text(x0 - 26, y(top * k / 4) + 4, f"{top * k / 4:.0f}") for k in range(1, 5)]
    if x0 == LEFT:
        parts.append(_text(2, TOP - 10, "steps/s"))
    for i, name in enumerate(names):
        points = " ".join(f"{x(r['device_ms']):.1f},{y(s):.1f}"
                          for r, s in zip(rows, speeds[name]))
        parts.append(f'<polyline points="{points}" fill="none" stroke-width="1.5" '
                     f'stroke="{COLOURS[i % len(COLOURS)]}"/>')
    return parts


def _text(x: float, y: float, text: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(text)}</text>'
