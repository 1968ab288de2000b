"""Launch files of servers and trainers, and which profiles they imply. No torch here."""

from moeparity.profiles.launch.reader import read

__all__ = ["read"]
