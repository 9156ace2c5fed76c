"""Clean shutdown file, and which errors take a log directory offline."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.seams.files import OutOfDescriptors
from odradek.storage.directories import clean_shutdown
from odradek.storage.directories.clean_shutdown import CleanShutdownFile
from odradek.storage.directories.io_errors import takes_offline


def test_clean_shutdown_file_has_kafka_json_format() -> None:
    assert clean_shutdown.format(17) == b'{"version":0,"brokerEpoch":17}'
    assert clean_shutdown.parse(clean_shutdown.format(17)) == CleanShutdownFile(17)
    assert clean_shutdown.parse(b'{"version":9,"brokerEpoch":-1,"more":[]}') == CleanShutdownFile(
        -1
    )


@given(st.binary(max_size=60))
def test_clean_shutdown_file_with_any_content_is_accepted(data: bytes) -> None:
    assert isinstance(clean_shutdown.parse(data), CleanShutdownFile)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"brokerEpoch":true}', b"\xff", b"[" * 9999])
def test_unreadable_clean_shutdown_file_has_no_broker_epoch(text: bytes) -> None:
    assert clean_shutdown.parse(text) == CleanShutdownFile(None)


@pytest.mark.parametrize(
    ("error", "files_unchanged", "offline"),
    [
        (OSError(errno.EIO, "I/O error"), False, True),
        (OSError(errno.EIO, "I/O error"), True, True),
        (OSError(errno.EROFS, "read-only"), True, True),
        (FileNotFoundError(errno.ENOENT, "gone"), False, True),
        (PermissionError(errno.EACCES, "chmod"), False, True),
        (OSError(errno.ENOSPC, "full"), False, True),
        (OSError(errno.ENOSPC, "full"), True, False),
        (OSError(errno.EDQUOT, "quota"), True, False),
        (OutOfDescriptors(errno.EMFILE, "descriptors"), False, False),
    ],
)
def test_io_errors_take_directory_offline_with_exceptions(
    error: OSError, files_unchanged: bool, offline: bool
) -> None:
    assert takes_offline(error, files_unchanged=files_unchanged) is offline
