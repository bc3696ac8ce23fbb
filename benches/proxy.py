"""HTTP proxy in front of a coordinator. The proxy answers the first requests of some methods with 500: `Proxy(url, {"PATCH": 30})`."""
import http.client
import http.server
import threading
import urllib.parse

MAX_RESPONSE_SECONDS = 120


class Proxy:
    """Listens on a free port until it is closed."""

    def __init__(self, url: str, failures: dict[str, int]):
        target, failures_left, lock = urllib.parse.urlsplit(url), dict(failures), threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with lock:
                    fails = failures_left.get(self.command, 0) > 0
                    failures_left[self.command] = failures_left.get(self.command, 0) - 1
                if fails:
                    self.respond(500, {}, b"failure injected by the benchmark")
                    return
                connection = http.client.HTTPConnection(target.hostname, target.port, timeout=MAX_RESPONSE_SECONDS)
                try:
                    headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "connection")}
                    connection.request(self.command, self.path, body, headers)
                    response = connection.getresponse()
                    self.respond(response.status, dict(response.getheaders()), response.read())
                finally:
                    connection.close()

            def respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

            def log_message(self, *_) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_) -> None:
                """Ignores closed connections."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
