"""Blocks by name in the command palette."""

from __future__ import annotations

from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from bisect_litert.reports import formats


class BlockSearch(Provider):
    """Finds blocks of the run that is shown."""

    async def discover(self) -> Hits:
        """Yields the culprits before anything is typed."""
        from bisect_litert.tui.run_screen import RunScreen

        if isinstance(self.screen, RunScreen):
            for culprit in self.screen.record.culprits:
                name = formats.clean(culprit.block)
                yield DiscoveryHit(
                    f"Culprit {name}", partial(self.screen.open_named, culprit.block), help="Open this block"
                )

    async def search(self, query: str) -> Hits:
        """Yields blocks whose name matches."""
        from bisect_litert.tui.run_screen import RunScreen

        if not isinstance(self.screen, RunScreen):
            return
        matcher = self.matcher(query)
        for block in self.screen.record.blocks:
            name = f"Block {formats.clean(block.name)}"
            score = matcher.match(name)
            if score > 0:
                help_text = f"{block.class_name}, {block.mark.value}"
                yield Hit(score, matcher.highlight(name), partial(self.screen.open_named, block.name), help=help_text)
