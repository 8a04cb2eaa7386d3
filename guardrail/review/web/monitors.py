"""The page of the monitors."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ..monitors import Monitors, MonitorView
from ..store import ReviewStore
from .plots import wealth_plot
from .site import LARGEST_FORM, Site, SiteCall

__all__ = ["MonitorPages"]

POINTS = 400
"""Points of a monitor's plot."""


class MonitorPages:
    """Shows the monitors of a store and acknowledges their alarms.

    Args:
        site: Serves the pages.
        store: Its database holds the monitors.
    """

    def __init__(self, site: Site, store: ReviewStore) -> None:
        self._site, self._store = site, store

    def routes(self) -> list[Route]:
        """Paths and their handlers."""
        acknowledge = self._site.closed(self.acknowledge, form=LARGEST_FORM, admin=True)
        return [
            Route("/monitor", self._site.closed(self.monitor)),
            Route("/monitor/acknowledge", acknowledge, methods=["POST"]),
        ]

    async def monitor(self, call: SiteCall) -> Response:
        """Every monitor with its history."""

        def find() -> list[tuple[MonitorView, Any]]:
            monitors = Monitors(self._store)
            views = monitors.all()
            return [(view, wealth_plot(monitors.history(view.name, most=POINTS), view.delta)) for view in views]

        return self._site.page(call, "monitor.html", views=await run_in_threadpool(find))

    async def acknowledge(self, call: SiteCall) -> Response:
        """Acknowledge an alarm; for administrators."""

        def note() -> None:
            Monitors(self._store).acknowledge(call.field("name"), who=call.account.name)

        await run_in_threadpool(note)
        return RedirectResponse("/monitor", 303)
