"""Properties are judged by what they say, not by how long a busy machine takes to say it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("protocol", deadline=None)
settings.load_profile("protocol")
