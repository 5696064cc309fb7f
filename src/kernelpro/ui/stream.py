"""The feed of a run as server-sent events. The id of each message is the cursor: a browser that reconnects
sends the last id, and continues there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.ui.feed import Cursor, RunFeed

_TICK = 0.3
"""Seconds between two reads of the store. Even at 50 events a second, a page redraws only three times a
second."""
_HEARTBEAT = 10.0
"""Seconds of silence after which a comment is sent, so that both sides notice a dead connection."""


async def stream(
    folder: Path, cursor: Cursor, extra: Callable[[], dict[str, Any]], is_closed: Callable[[], bool]
) -> AsyncIterator[str]:
    """Messages until the page disconnects. `extra` returns the state of the run's process."""
    loop = asyncio.get_running_loop()
    reader = ThreadPoolExecutor(1, "kernelpro-feed")  # an SQLite connection belongs to one thread
    store: RunStore | None = None
    try:
        store = await loop.run_in_executor(reader, RunStore, folder)
        feed = RunFeed(store, cursor)
        last_process: dict[str, Any] = {}
        silent = _HEARTBEAT
        yield "retry: 1000\n\n"
        while not is_closed():
            if not store.folder.is_dir():
                raise BadInput(f"run {store.id} was deleted")
            batch = await loop.run_in_executor(reader, feed.next)
            process = extra()
            if batch is not None or process != last_process:
                last_process, silent = process, 0.0
                data = json.dumps((batch or {}) | {"process": last_process}, separators=(",", ":"))
                yield f"id: {feed.cursor}\nevent: batch\ndata: {data}\n\n"
                if batch is not None and not batch["complete"]:
                    continue
            elif silent >= _HEARTBEAT:
                silent = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(_TICK)
            silent += _TICK
    except BadInput as error:  # the run was deleted, or its store is damaged
        yield f"event: gone\ndata: {json.dumps(str(error))}\n\n"
    finally:
        if store is not None:
            reader.submit(store.close)
        reader.shutdown(wait=False)
