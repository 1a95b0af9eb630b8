"""The sandbox from inside: a small server that locks itself in and runs one program after another.

Started by `growpage.grade.sandbox`, which knows what is expected; nothing here does. Every program gets a fresh
process, and with namespaces a fresh PID namespace and temporary file system, under a supervisor that it cannot signal.
Frames on standard input and output: eight bytes of length, then the content.
"""

import contextlib
import json
import math
import os
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from growpage.grade import linux

NOBODY = 65534
_BOX, _RUNNER = "/box", "/program_runner.py"
_START_LIMIT_S = (
    60.0  # for the interpreter on a busy machine; the program's own time starts afterwards
)
_LOOK_EVERY_S = 0.05
_STDERR_TAIL = 4096
_READ_BYTES = 1 << 16
_MAX_STACK = 256 << 20
_SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_HARDWARE = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
_MOUNT_POINTS = ("/sys", "/mnt", "/tmp")

Frame = tuple[dict[str, Any], bytes]


def send(descriptor: int, *contents: bytes) -> None:
    for content in contents:
        view = memoryview(struct.pack(">Q", len(content)) + content)
        while view:
            view = view[os.write(descriptor, view) :]


def receive(descriptor: int) -> bytes | None:
    """One frame; None when the other side has ended."""
    head = _read_exactly(descriptor, 8)
    return None if head is None else _read_exactly(descriptor, struct.unpack(">Q", head)[0])


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    content = bytearray()
    while len(content) < size:
        chunk = os.read(descriptor, min(size - len(content), 1 << 20))
        if not chunk:
            return None
        content += chunk
    return bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """Where programs run and as whom. `box` None: a temporary folder for each.

    `has_landlock`: without namespaces, the kernel at least keeps programs to their folder.
    """

    mode: str
    has_landlock: bool = False
    runner: str
    box: str | None
    uid: int | None

    @property
    def has_namespaces(self) -> bool:
        return self.box is not None


def serve() -> None:
    """Answer requests until standard input ends. The mode to enter is the last argument of the command."""
    requests, replies = _private_descriptors()
    try:
        jail = _ENTER[sys.argv[-1]]()
        linux.hide_memory()
    except OSError as error:
        send(replies, json.dumps({"error": str(error)}).encode())
        return
    send(replies, json.dumps({"mode": jail.mode}).encode())
    while (header := receive(requests)) is not None:
        program, given = receive(requests), receive(requests)
        if program is None or given is None:
            return
        report, output = _run(jail, json.loads(header), program, given, requests)
        send(replies, json.dumps(report).encode(), output)


def _private_descriptors() -> tuple[int, int]:
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return requests, replies


# ---- locking in ----------------------------------------------------------------------------------


def _enter_namespaces() -> Jail:
    """As root: mounts, network, IPC and host name of our own, programs as nobody."""
    if os.geteuid() != 0:
        raise PermissionError("needs root")
    return _lock_in("namespaces", uid=NOBODY)


def _enter_user_namespaces() -> Jail:
    """As anybody, where the kernel lets users have namespaces."""
    is_root = os.geteuid() == 0
    _own_user_namespace(is_root)
    return _lock_in("user_namespaces", uid=NOBODY if is_root else None)


def _lock_in(mode: str, uid: int | None) -> Jail:
    flags = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
    linux.unshare(flags)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    sources = _visible_folders()
    root = next(
        (point for point in _MOUNT_POINTS if _is_free(point, sources)), None
    )  # only this mount namespace sees it covered
    if root is None:
        raise OSError("no folder to mount the programs' root on")
    quiet = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", root, "tmpfs", quiet, "size=1m,mode=755")
    _fill_root(Path(root), sources)
    linux.mount("none", root, flags=linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | quiet)
    linux.enter_root(root)
    jail = Jail(mode=mode, runner=_RUNNER, box=_BOX, uid=uid)
    _try_namespaces()
    return jail


def _try_namespaces() -> None:
    """Raise here, and not for the first program, where the kernel forbids PID namespaces."""
    child = os.fork()
    if child == 0:
        try:
            linux.unshare(linux.CLONE_NEWPID | linux.CLONE_NEWNS)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise OSError(status, "no PID namespaces")


def _visible_folders() -> list[str]:
    """The system and this Python, each named as it is used and as it is stored; none inside another."""
    own = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    named = [*_SYSTEM_FOLDERS, *own, *map(os.path.realpath, own)]
    folders: list[str] = []
    for folder in dict.fromkeys(named):
        is_covered = any(Path(folder).is_relative_to(other) for other in folders)
        if os.path.isdir(folder) and folder != "/" and not is_covered:
            folders.append(folder)
    return folders


def _is_free(point: str, sources: list[str]) -> bool:
    return os.path.isdir(point) and not any(Path(name).is_relative_to(point) for name in sources)


def _fill_root(root: Path, sources: list[str]) -> None:
    for source in sources:
        target = root / source.lstrip("/")
        if os.path.islink(source) and source in _SYSTEM_FOLDERS:
            target.symlink_to(os.readlink(source))
            continue
        target.mkdir(parents=True, exist_ok=True)
        linux.bind_read_only(source, str(target))
    for name in _SYSTEM_FILES:
        if os.path.exists(name):
            linux.bind_read_only(name, str(_empty_file(root / name.lstrip("/"))))
    for name in _DEVICES:
        linux.mount(f"/dev/{name}", str(_empty_file(root / "dev" / name)), flags=linux.MS_BIND)
    for name, number in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd{number}")
    (root / "proc").mkdir()  # a namespace may mount its own only where one is to be seen
    linux.mount("/proc", str(root / "proc"), flags=linux.MS_BIND | linux.MS_REC)
    (root / _BOX.lstrip("/")).mkdir()
    (root / "tmp").symlink_to(_BOX)
    shutil.copyfile(Path(__file__).with_name("program.py"), root / _RUNNER.lstrip("/"))
    (root / _RUNNER.lstrip("/")).chmod(0o644)


def _empty_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def _own_user_namespace(is_root: bool) -> None:
    """Enter one whose user is nobody. A process that stays outside writes its maps."""
    us, uid, gid = os.getpid(), os.geteuid(), os.getegid()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        try:
            is_told = os.read(wait, 1)
            if is_told:
                _write_maps(us, uid, gid, is_root)
            os._exit(0 if is_told else 1)
        except OSError as error:
            os._exit(error.errno or 1)
    os.close(wait)
    try:
        linux.unshare(linux.CLONE_NEWUSER)
        os.write(go, b"x")
    finally:
        os.close(go)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise OSError(status, "no map of users")
    if is_root:
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def _write_maps(process: int, uid: int, gid: int, is_root: bool) -> None:
    for name, own in (("uid_map", uid), ("gid_map", gid)):
        if name == "gid_map":
            Path(f"/proc/{process}/setgroups").write_text("deny")
        lines = f"0 0 1\n{NOBODY} {NOBODY} 1\n" if is_root else f"{NOBODY} {own} 1\n"
        Path(f"/proc/{process}/{name}").write_text(lines)


def _enter_other_user() -> Jail:
    """No namespaces, but root may run programs as nobody: they cannot signal or read what is ours."""
    if os.geteuid() != 0:
        raise PermissionError("needs root")
    jail = _without_namespaces("other_user", NOBODY)
    child = os.fork()
    if child == 0:
        try:
            _become(NOBODY)
            os.execv(sys.executable, [sys.executable, "-I", "-c", f"open({jail.runner!r}).close()"])
        except OSError:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise PermissionError("nobody cannot read this Python")
    return jail


def _enter_processes() -> Jail:
    """Limits, a process group, a clean environment and the filter of system calls, and no more."""
    return _without_namespaces("processes", None)


def _without_namespaces(mode: str, uid: int | None) -> Jail:
    child = os.fork()
    if child == 0:
        os._exit(0 if linux.restrict_files(_readable(), ()) else 1)
    has_landlock = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    name = f"{mode}_landlock" if has_landlock else mode
    return Jail(mode=name, has_landlock=has_landlock, runner=_runner_here(), box=None, uid=uid)


def _readable() -> list[str]:
    return [*_visible_folders(), *_SYSTEM_FILES, *_HARDWARE, _runner_here()]


def _runner_here() -> str:
    return str(Path(__file__).with_name("program.py"))


_ENTER: dict[str, Callable[[], Jail]] = {
    "namespaces": _enter_namespaces,
    "user_namespaces": _enter_user_namespaces,
    "other_user": _enter_other_user,
    "processes": _enter_processes,
}
MODES = tuple(_ENTER)  # the strongest first


# ---- one program ---------------------------------------------------------------------------------


def _run(jail: Jail, header: dict[str, Any], program: bytes, given: bytes, requests: int) -> Frame:
    """The report of a supervisor, which is a child of ours; what it leaves behind is removed."""
    box = jail.box or tempfile.mkdtemp(prefix="growpage-box-", dir=header["temporary"])
    read, write = os.pipe()
    us = os.getpid()
    try:
        child = os.fork()
        if child == 0:
            try:
                os.close(read)
                linux.die_with_parent(us)
                task = _Task(jail=jail, box=box, header=header, program=program, given=given)
                _as_supervisor(task, write)
            finally:
                os._exit(1)
        os.close(write)
        return _await_report(child, read, requests)
    finally:
        os.close(read)
        if not jail.has_namespaces:
            shutil.rmtree(box, ignore_errors=True)


def _await_report(child: int, read: int, requests: int) -> Frame:
    content = bytearray()
    poller = select.poll()
    poller.register(read, select.POLLIN)
    poller.register(requests, 0)  # tells only that the grader is gone
    while True:
        events = dict(poller.poll())
        if requests in events:
            _end_supervisor(child)
            os._exit(0)
        chunk = os.read(read, 1 << 20)
        if not chunk:
            break
        content += chunk
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _parsed(bytes(content), status)


def _parsed(content: bytes, status: int) -> Frame:
    with contextlib.suppress(struct.error, ValueError):
        size = struct.unpack(">Q", content[:8])[0]
        report, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
        if len(rest) == 8 + struct.unpack(">Q", rest[:8])[0]:
            return report, rest[8:]
    return {"status": "sandbox_error", "detail": f"the supervisor ended with status {status}"}, b""


def _end_supervisor(child: int) -> None:
    os.kill(child, signal.SIGTERM)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    jail: Jail
    box: str
    header: dict[str, Any]
    program: bytes
    given: bytes


def _as_supervisor(task: _Task, write: int) -> None:
    """Never returns. With namespaces, the first process of a new PID namespace supervises: no signal reaches it."""
    if not task.jail.has_namespaces:
        linux.become_subreaper()
        signal.signal(signal.SIGTERM, _raise_exit)
        _supervise(task, write)
    linux.unshare(linux.CLONE_NEWPID | linux.CLONE_NEWNS)
    us = os.getpid()
    first = os.fork()
    if first == 0:
        try:
            linux.die_with_parent(us)
            _mount_box(task)
            _supervise(task, write)
        finally:
            os._exit(1)
    os._exit(min(255, abs(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))))


def _raise_exit(*_: object) -> None:
    raise SystemExit(1)


def _mount_box(task: _Task) -> None:
    quiet = linux.MS_NOSUID | linux.MS_NODEV
    size = task.header["disk_bytes"]
    linux.mount("tmpfs", _BOX, "tmpfs", quiet, f"size={size},nr_inodes=4096,mode=1777")
    try:
        linux.mount("proc", "/proc", "proc", quiet | linux.MS_NOEXEC)
    except OSError:  # hidden in many containers: then there is none
        linux.mount("tmpfs", "/proc", "tmpfs", quiet | linux.MS_RDONLY, "size=4k")


def _supervise(task: _Task, write: int) -> None:
    """Run the program, report, end."""
    try:
        watch = _Watch(task)
        try:
            report, output = watch.run()
        finally:
            watch.kill_all()
    except OSError as error:
        report, output = {"status": "sandbox_error", "detail": str(error)}, b""
    send(write, json.dumps(report).encode(), output)
    os._exit(0)


@dataclass(slots=True)
class _Stream:
    content: bytearray = field(default_factory=bytearray)


class _Watch:
    """One running program: its pipes, its clock, its memory and its end."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._header = task.header
        box = Path(task.box)
        self._program, given = box / "program.py", box / "input"
        self._program.write_bytes(task.program)
        self._program.chmod(0o644)
        given.write_bytes(task.given)
        self._given = os.open(given, os.O_RDONLY)
        given.unlink()
        if not task.jail.has_namespaces and task.jail.uid is not None:
            os.chown(box, task.jail.uid, task.jail.uid)
        self._output, self._errors, self._channel = bytearray(), bytearray(), bytearray()
        self._is_ready = False
        self._status = ""
        self._exit: tuple[int, Any] | None = None
        self._child = 0

    def run(self) -> Frame:
        pipes = [os.pipe() for _ in range(3)]
        us = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            try:
                self._become_program(us, [write for _, write in pipes])
            finally:
                os._exit(127)
        for _, write in pipes:
            os.close(write)
        self._reads = [read for read, _ in pipes]
        self._num_open = len(pipes)
        self._poller = select.poll()
        for read in self._reads:
            os.set_blocking(read, False)
            self._poller.register(read, select.POLLIN)
        started = time.monotonic()
        self._deadline = started + _START_LIMIT_S
        self._ready_at = started
        self._watch()
        wall = time.monotonic() - self._ready_at
        self.kill_all()
        self._drain()
        return self._report(wall)

    # the program's side of the fork

    def _become_program(self, parent: int, writes: list[int]) -> None:
        os.setsid()
        is_function = self._header["kind"] == "functional"
        stdin = os.open(os.devnull, os.O_RDONLY) if is_function else self._given
        wanted = [stdin, *writes, *([self._given] if is_function else [])]
        high = [_above(descriptor) for descriptor in wanted]
        for number, descriptor in enumerate(high):
            os.dup2(descriptor, number)
        os.chdir(self._task.box)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        jail = self._task.jail
        if jail.uid is not None:
            _become(jail.uid)
        linux.die_with_parent(parent)
        if jail.has_landlock:
            devices = [f"/dev/{name}" for name in _DEVICES]
            linux.restrict_files(_readable(), [self._task.box, *devices])
        is_filtered = linux.filter_system_calls(
            own_pid=None if jail.has_namespaces else os.getpid()
        )
        if not is_filtered:
            linux.forbid_privileges()
        self._limit()
        name = [self._header["fn_name"]] if is_function else []
        command = [
            sys.executable,
            "-I",
            "-B",
            jail.runner,
            self._header["kind"],
            "program.py",
            *name,
        ]
        os.execve(sys.executable, command, _clean_environment(self._task.box))

    def _limit(self) -> None:
        header = self._header
        cpu = math.ceil(header["time_limit_s"]) + 2
        num_processes = header["num_processes"]
        if not self._task.jail.has_namespaces:
            num_processes += _num_tasks_of(os.geteuid())
        memory = header["memory_bytes"]
        for kind, limit in (
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_FSIZE, header["file_bytes"]),
            (resource.RLIMIT_NOFILE, 128),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_NPROC, num_processes),
            (resource.RLIMIT_STACK, min(_MAX_STACK, memory // 4)),
            (resource.RLIMIT_AS, memory + header["interpreter_bytes"]),
        ):
            _, hard = resource.getrlimit(kind)
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.setrlimit(kind, (limit, limit))

    # the supervisor's side

    def _watch(self) -> None:
        """Until the program has ended or broken a limit."""
        next_look = 0.0
        while not self._status:
            now = time.monotonic()
            if now >= self._deadline:
                self._status = "timeout" if self._is_ready else "not_started"
                return
            if now >= next_look:
                self._look()
                next_look = now + 2 * _LOOK_EVERY_S
            # Closed pipes foretell the end, which itself wakes no one.
            is_calm = self._is_ready and self._num_open > 0
            wait = min(self._deadline - now, _LOOK_EVERY_S if is_calm else 0.002)
            for read, _ in self._poller.poll(1000 * wait):
                self._read(read)
            self._reap()
            if self._exit is not None:
                return

    def _read(self, read: int) -> bool:
        """Whether there may be more."""
        try:
            chunk = os.read(read, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._poller.unregister(read)
            self._num_open -= 1
            return False
        name = self._reads.index(read)
        if name == 0:
            self._output += chunk
        elif name == 1:
            self._errors = (self._errors + chunk)[-_STDERR_TAIL:]
        else:
            self._channel += chunk
            if not self._is_ready and self._channel.startswith(b"ready\n"):
                self._is_ready = True
                self._ready_at = time.monotonic()
                self._deadline = self._ready_at + self._header["time_limit_s"]
        if max(len(self._output), len(self._channel)) > self._header["output_bytes"]:
            self._status = "output"
            return False
        return True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._child:
                    self._exit = (os.waitstatus_to_exitcode(status), usage)

    def _look(self) -> None:
        """What no limit of the kernel adds up: the memory of all processes, the files of a folder."""
        if self._task.jail.has_namespaces:
            if _memory_in_use(self._task.box) > self._header["memory_bytes"] + (64 << 20):
                self._status = "memory"
        elif _folder_bytes(self._task.box) > self._header["disk_bytes"]:
            self._status = "output"
        elif len(_descendants(os.getpid())) > 2 * self._header["num_processes"]:
            self._status = "processes"  # the kernel does not count root's

    def kill_all(self) -> None:
        """Kill every process of the program, and those that took their leave of its group."""
        if self._task.jail.has_namespaces:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            _kill_descendants()
        self._reap()

    def _drain(self) -> None:
        """What stood in the pipes when the program ended. Poller entries that are gone have ended."""
        for read in self._reads:
            with contextlib.suppress(KeyError, OSError):
                while not self._status and self._read(read):
                    pass
            os.close(read)

    def _report(self, wall_s: float) -> Frame:
        code, usage = self._exit or (None, None)
        status = self._status or "exit"
        if not self._is_ready and status in ("exit", "memory"):
            status = "not_started"
        elif code == -signal.SIGXCPU:
            status = "timeout"
        report = {
            "status": status,
            "code": code,
            "wall_s": round(wall_s, 4),
            "cpu_s": None if usage is None else round(usage.ru_utime + usage.ru_stime, 4),
            "errors": bytes(self._errors).decode("utf-8", "replace"),
        }
        is_function = self._header["kind"] == "functional"
        result = bytes(self._channel)[len(b"ready\n") :] if is_function else bytes(self._output)
        return report, result


def _above(descriptor: int) -> int:
    """The same file under a number that dup2 will not hit."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 20)


def _become(uid: int) -> None:
    with contextlib.suppress(PermissionError):  # some user namespaces have no say over groups
        os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _clean_environment(box: str) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": box,
        "TMPDIR": box,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def _memory_in_use(box: str) -> int:
    """Bytes: resident in all processes but ours, and in files of the box."""
    page, total = resource.getpagesize(), 0
    us = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != us:
            with contextlib.suppress(OSError, IndexError):
                total += int(Path(f"/proc/{name}/statm").read_text().split()[1]) * page
    disk = os.statvfs(box)
    return total + (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def _folder_bytes(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def _num_tasks_of(uid: int) -> int:
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid:
                total += len(os.listdir(process / "task"))
    return total


def _kill_descendants() -> None:
    """Stop them first, so that none can fork behind our back; orphans come to us, the subreaper."""
    deadline = time.monotonic() + 10.0
    while (found := _descendants(os.getpid())) and time.monotonic() < deadline:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.002)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _descendants(root: int) -> list[int]:
    """Living processes below `root`, zombies included."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            after_name = (process / "stat").read_text(errors="replace").rpartition(")")[2]
            parents[int(process.name)] = int(after_name.split()[1])
    found, border = [], {root}
    while border:
        border = {pid for pid, parent in parents.items() if parent in border and pid != root}
        found += list(border)
    return found
