"""The Python client of a gateway, for drivers and notebooks: `from gateway.client import Hone`.

All that it does goes over REST and can be done without it. It loads no server, store or model: only what a request and
a progress bar need. What it gives is in docs/client.md; each module beside this one has a part of it.
"""

from gateway.client.asynchronous import AsyncHone, TimedOut
from gateway.client.blocking import Hone
from gateway.client.episodes import AsyncEpisode, Episode
from gateway.client.rest import Client
from gateway.client.rollout import Attempt

__all__ = ["AsyncEpisode", "AsyncHone", "Attempt", "Client", "Episode", "Hone", "TimedOut"]
