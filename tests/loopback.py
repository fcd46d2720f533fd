"""A server on this machine that runs as long as a test needs it."""

import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LoopbackServer(ThreadingHTTPServer):
    """Answers by a handler at a free port; a client that hangs up is no error here."""

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.host = f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self):
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield self
        self.stop()
        thread.join()

    def stop(self):
        self.shutdown()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass
