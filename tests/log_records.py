"""What a test sees of what moeparity logs: the fixture `log_records`."""

from __future__ import annotations

import logging


class Records(logging.Handler):
    """What moeparity logs, in `all`. pytest's plugin for that is off: six times a test it hangs two handlers on each of
    torch's loggers and takes them off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.all: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record)

    @property
    def text(self) -> str:
        return "\n".join(record.getMessage() for record in self.all)
