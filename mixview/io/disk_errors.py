"""Errors of the disk: the reason in plain text, and a remedy."""

import errno


def reason_of(error: BaseException) -> str:
    """The reason for an error as the system states it, without number and path."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def remedy(error: BaseException) -> str:
    """The remedy for a file that could not be written."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", None)):
        return "free some space on that disk, or raise its quota"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "make the folder writable"
    if number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP):
        return "move away what is in its place"
    if number == errno.ENOENT:
        return "put the run's folder back, which is gone"
    return "check that disk"
