"""What the tabs about one block tell the screen: another block is asked for."""

from __future__ import annotations

from textual.message import Message


class Stepped(Message):
    """Another block was asked for."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
