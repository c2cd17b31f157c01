"""Every setting of every command, declared once: name, type, default, bounds, group and description.

Command line options, environment variables, the configuration file, `--help`, `kvstore config` and
docs/configuration.md all come from these declarations.
"""

from __future__ import annotations

from kvstore.common.config.admin import AdminSettings
from kvstore.common.config.master import MasterSettings
from kvstore.common.config.schema import Settings
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.config.up import UpSettings

# What a configuration file can hold, and the only list of it.
SECTIONS: tuple[type[Settings], ...] = (MasterSettings, SegmentSettings, UpSettings, AdminSettings)
