"""The saver behind `hopgate serve --keep`: a disk that is full must not stop an answer."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from hopgate.server.observing import metrics

log = logging.getLogger(__name__)


class Keeping(AsyncSqliteSaver):
    """Keeps conversations as another saver of the same file does, and only warns if it cannot."""

    def __init__(self, saver: AsyncSqliteSaver) -> None:
        """Share a saver's connection."""
        super().__init__(saver.conn, serde=saver.serde)
        self.lock, self.is_setup = saver.lock, saver.is_setup

    async def aput(self, config: RunnableConfig, *given: Any) -> RunnableConfig:
        """Keep a checkpoint."""
        async with self._warned():
            return await super().aput(config, *given)
        return config

    async def aput_writes(self, *given: Any, **more: Any) -> None:
        """Keep a node's writes."""
        async with self._warned():
            await super().aput_writes(*given, **more)

    @asynccontextmanager
    async def _warned(self) -> AsyncIterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            log.warning("a conversation is not kept: %s; make room on the disk", error)
            metrics.unkept.inc()
            await self.conn.rollback()
