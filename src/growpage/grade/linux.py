"""The few system calls of the sandbox that Python 3.10 has no function for. Linux only; no other module calls libc."""

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterable

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
_CLONE_ANY_NAMESPACE = 0x7E02_0080  # cgroup and time included

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x2000, 0x4000, 0x4_0000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECCOMP_MODE_FILTER = 2

_MOUNT_SETATTR = 442  # the same number everywhere
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` for new ones. Raises OSError where the kernel forbids it."""
    _check("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(f"mount {target}", result)


def bind_read_only(source: str, target: str) -> None:
    """Show `source` at `target`, all mounts under it included, without writing, devices or set-uid."""
    mount(source, target, flags=MS_BIND | MS_REC)
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    )
    if result != 0:  # before Linux 5.12: the top mount only
        kept = MS_NOEXEC if os.statvfs(target).f_flag & os.ST_NOEXEC else 0
        mount("", target, flags=MS_REMOUNT | MS_BIND | flags | kept)


def enter_root(path: str) -> None:
    """Make the mount at `path` the root and drop the old one."""
    os.chdir(path)
    number = _PIVOT_ROOT.get(platform.machine())
    if number is not None and _libc.syscall(number, b".", b".") == 0:
        _check("umount2", _libc.umount2(b".", _MNT_DETACH))
    else:  # the first root of a machine cannot be pivoted away from
        mount(".", "/", flags=MS_MOVE)
        os.chroot(".")
    os.chdir("/")


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends; at once when it has."""
    _check("prctl", _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0))
    if os.getppid() not in (parent, 0):  # 0: the parent is outside our PID namespace
        os._exit(1)


def become_subreaper() -> None:
    """Orphans below this process become its children."""
    _check("prctl", _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def hide_memory() -> None:
    """Nobody of our user may read our memory, environment or descriptors in /proc."""
    _check("prctl", _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers everywhere
_EXECUTE, _WRITE, _READ, _LIST, _ALL_OF_FIRST_VERSION = 0x1, 0x2, 0x4, 0x8, 0x1FFF
_REFER, _TRUNCATE = 0x2000, 0x4000
_ABSTRACT_SOCKETS_AND_SIGNALS = 0x3


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Leave this process nothing but these files and folders; whether the kernel can (Landlock).

    From its sixth version on, signals to processes outside are refused too.
    """
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = _ALL_OF_FIRST_VERSION
    rights |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    scope = _ABSTRACT_SOCKETS_AND_SIGNALS
    rules = struct.pack("QQQ", rights, 0, scope) if version >= 6 else struct.pack("Q", rights)
    ruleset = _libc.syscall(_LANDLOCK_CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(ruleset, path, _EXECUTE | _READ | _LIST)
        for path in writable:
            _allow(ruleset, path, rights)
        forbid_privileges()
        return bool(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0)
    except OSError:
        return False
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Names that do not exist are passed over."""
    if not os.path.exists(path):
        return
    if not os.path.isdir(path):
        rights &= _EXECUTE | _WRITE | _READ | _TRUNCATE
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, place)
        _check(f"landlock {path}", _libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0))
    finally:
        os.close(place)


def forbid_privileges() -> None:
    _check("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _check(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# ---- the filter of system calls ------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
# Memory outside every limit, other processes' memory, mounts, keys, kernel programs, and sockets.
_FORBIDDEN = {
    "x86_64": (
        29, 30, 41, 64, 68, 101, 155, 165, 166, 240, 246, 248, 249, 250, 272, 298, 308, 310, 311,
        319, 321, 323, 425, 426, 427, 428, 429, 430, 432, 442, 447,
    ),
    "aarch64": (
        39, 40, 41, 97, 104, 117, 180, 186, 190, 194, 196, 198, 217, 218, 219, 241, 268, 270, 271,
        279, 280, 282, 425, 426, 427, 428, 429, 430, 432, 442, 447,
    ),
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435  # its flags lie in memory, which a filter cannot read: "not implemented" makes libc use clone
_TO_ONE_PROCESS = {"x86_64": (62, 234, 302), "aarch64": (129, 131, 261)}  # kill, tgkill, prlimit64
_TO_ANY_PROCESS = {"x86_64": (129, 200, 297, 424), "aarch64": (130, 138, 240, 424)}

_ALLOW, _ERRNO, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32_BIT = 0x4000_0000

Step = tuple[int, int, int, int]  # code, jump if true, jump if false, value


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def filter_system_calls(*, own_pid: int | None = None) -> bool:
    """Refuse what a contest program never needs; whether the kernel took the filter.

    own_pid: also refuse signals and limits for other processes (without a PID namespace).
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    code = b"".join(struct.pack("HBBI", *step) for step in _steps(machine, own_pid))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    with contextlib.suppress(OSError):
        forbid_privileges()
        result = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
        return bool(result == 0)
    return False


def _steps(machine: str, own_pid: int | None) -> list[Step]:
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    steps += _refusals(_FORBIDDEN[machine], _EPERM)
    steps += _refusals((_CLONE3,), _ENOSYS)
    steps += [
        (_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _CLONE_ANY_NAMESPACE),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    if own_pid is not None:
        steps += _refusals(_TO_ANY_PROCESS[machine], _EPERM)
        for number in _TO_ONE_PROCESS[machine]:
            steps += [
                (_EQUAL, 0, 5, number),
                (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
                (_EQUAL, 2, 0, own_pid),
                (_EQUAL, 1, 0, 0),
                (_RETURN, 0, 0, _ERRNO | _EPERM),
                (_RETURN, 0, 0, _ALLOW),
            ]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _refusals(numbers: Iterable[int], error: int) -> list[Step]:
    return [
        step
        for number in numbers
        for step in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error))
    ]
