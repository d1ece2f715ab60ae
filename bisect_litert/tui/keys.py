"""Keys that pagers have taught everybody's fingers: j, k, h, l, g, G do what the arrows and the ends of a list do."""

from __future__ import annotations

from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import DataTable

_ARROWS = {"j": "down", "k": "up", "h": "left", "l": "right", "ctrl+d": "pagedown", "ctrl+u": "pageup"}
_ENDS = {"g": "home", "G": "end"}

PAGER: tuple[BindingType, ...] = tuple(
    Binding(key, f"app.as_if('{other}')", other, show=False, system=True) for key, other in (_ARROWS | _ENDS).items()
)


def meant(key: str, focused: Widget | None) -> str:
    """The key that a widget knows for it: in a table, home and end go to the ends of a row."""
    return f"ctrl+{key}" if key in _ENDS.values() and isinstance(focused, DataTable) else key
