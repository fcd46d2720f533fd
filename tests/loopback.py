"""A server on this machine, whose clients may hang up, and whose handlers write no log."""

import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LoopbackServer(ThreadingHTTPServer):
    """On a free port; a client that hangs up is no error here."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self):
        """Answers requests in a thread of its own."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield self
        self.shutdown()
        thread.join()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class QuietHandler(BaseHTTPRequestHandler):
    """Says nothing of the requests it answers."""

    def log_message(self, *arguments):
        pass
