"""Whether a server answers at all, asked before a library that would try for half a minute."""

import queue
import socket
import threading
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

_SECONDS = 2.0  # for the look-up of the name and a connection
_PORTS = {"http": 80, "https": 443}


def reachable(url: str) -> bool:
    """Whether a connection to a URL's server, or to the proxy in front of it, opens within two seconds. True for what is no web
    address, which whoever opens it refuses."""
    try:
        server = _first_asked(url)
        host, port = server.hostname, server.port or _PORTS[server.scheme]
    except (ValueError, KeyError):
        return True
    answers = queue.SimpleQueue()
    threading.Thread(target=_ask, args=(host, port, answers.put), daemon=True).start()  # a look-up knows no time limit
    try:
        return answers.get(timeout=_SECONDS)
    except queue.Empty:
        return False


def _first_asked(url: str):
    """The server that a request for a URL goes to: its own, or a proxy of the environment."""
    server = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(server.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(server.netloc):
        return server
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _ask(host: str, port: int, told) -> None:
    """Tell True once an address of a host takes a connection, or False when none does; all at once, as one may lead nowhere."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        rows = []
    tries = [threading.Thread(target=_connect, args=(row, told), daemon=True) for row in rows]
    for each in tries:
        each.start()
    for each in tries:
        each.join()
    told(False)


def _connect(row: tuple, told) -> None:
    with suppress(OSError), socket.socket(*row[:3]) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(row[4])
        told(True)
