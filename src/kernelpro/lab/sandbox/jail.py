"""Confines the calling process with kernel features that need no privilege.

There are three independent locks. The process applies them to itself before untrusted code runs, and they
cannot be undone:

- namespaces: own user, PID, network, IPC, UTS and mount namespaces; private /dev/shm, /proc and scratch
  folder, everything else read-only; no capabilities, and no nested user namespace that would restore them;
- Landlock: reading and executing only below named paths, writing only below scratch and to devices;
- seccomp: no ptrace, no access to other processes' memory, no mounts, no kernel keys, only Unix sockets.

All system calls go through libc, so that no helper binary has to be installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import socket
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MACHINE_SETTINGS = [f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")]
"""Folders with settings of the whole machine."""

# System calls that have the same number on x86-64 and aarch64.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT, _MOUNT_SETATTR = 444, 445, 446, 442
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 1
_CAPABILITIES = 0x20080522
"""The version of the data that capset receives (version 3)."""


MAX_TASKS = 1024
"""Most processes and threads in a PID namespace."""


class JailError(OSError):
    """A kernel feature that the requested level needs is not available on this machine."""


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise JailError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, value: int) -> None:
    """Call prctl(2)."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if a is None else a.encode() for a in (source, target, kind)]
    _check(
        _libc.mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode()),
        f"mount {target}",
    )


def unshare() -> None:
    """Enter new namespaces; the next fork is PID 1 of the new PID namespace."""
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
    _check(_libc.unshare(flags), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def enable_loopback() -> None:
    """Enable the loopback of the network namespace, over which profilers reach their target. It leads
    nowhere else."""
    request = struct.pack("16sh22x", b"lo", 1)  # IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, request)  # SIOCSIFFLAGS


def private_mounts(
    scratch: str, scratch_bytes: int, writable: list[str], kept_tmp_paths: list[str] | None = None
) -> None:
    """Mount a private /proc, /dev/shm and scratch; everything else except `writable` becomes read-only.

    The private mounts are invisible from outside and vanish with the last process. With `kept_tmp_paths`,
    also mount a private /tmp that contains only these paths of the original one.
    """
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount_read_only([path for path in writable if os.path.isdir(path)])
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if kept_tmp_paths is not None:
        _mount_private_tmp(scratch_bytes, kept_tmp_paths)
        os.makedirs(scratch, exist_ok=True)
    for path in ("/dev/shm", scratch):
        _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={scratch_bytes},mode=0700")
    with contextlib.suppress(OSError):  # per namespace since Linux 6.14; RLIMIT_NPROC does not limit root
        Path("/proc/sys/kernel/pid_max").write_text(str(MAX_TASKS))
    with contextlib.suppress(OSError):  # a nested user namespace would give it all capabilities again
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    read_only = _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    # root in a namespace may change the settings of the whole machine
    for path in _MACHINE_SETTINGS if os.geteuid() == 0 else ():
        if os.path.exists(path):
            _mount(path, path, None, _MS_BIND | _MS_REC)
            _mount(path, path, None, read_only)


def _mount_read_only(writable_paths: list[str]) -> None:
    """Make everything except `writable_paths` read-only.

    Landlock protects the contents of files, but not their times, modes and attributes, in which one candidate
    could leave a message for another.
    """
    read_only, writable = struct.pack("<4Q", _ATTR_RDONLY, 0, 0, 0), struct.pack("<4Q", 0, _ATTR_RDONLY, 0, 0)
    for path in writable_paths:
        _mount(path, path, None, _MS_BIND | _MS_REC)
    try:
        _set_mount("/", read_only)
    except JailError as error:
        # Linux before 5.12, or a container that blocks the call
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        return
    for path in writable_paths:
        _set_mount(path, writable)


def _set_mount(path: str, attributes: bytes) -> None:
    size = ctypes.c_size_t(len(attributes))
    _check(
        _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, size),
        f"mount_setattr {path}",
    )


def drop_capabilities() -> None:
    """Drop all capabilities for good; programs executed later get none either."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(_libc.capset(struct.pack("<Ii", _CAPABILITIES, 0), struct.pack("<6I", *[0] * 6)), "capset")


def _mount_private_tmp(nbytes: int, paths: list[str]) -> None:
    descriptors = {
        path: os.open(path, os.O_PATH)
        for path in sorted(paths)
        if path.startswith("/tmp/") and os.path.isdir(path)
    }
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={nbytes},mode=0700")
    for path, fd in descriptors.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND | _MS_REC)
        os.close(fd)


def set_resource_limits(memory_bytes: int | None, file_bytes: int, processes: int) -> None:
    """Limit resources. The address space is limited only if `memory_bytes` is given, because CUDA reserves
    far more than it uses."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


# --- Landlock ---------------------------------------------------------------------------------------

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_ALL_FS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
_NET_TCP = 0b11
_SCOPE_ABSTRACT_AND_SIGNAL = 0b11


def landlock_abi() -> int:
    """The version of Landlock in this kernel; 0 if there is none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def landlock(readable: list[str], writable: list[str], tcp: bool = False) -> None:
    """Allow reading and executing below `readable`, everything below `writable`, and nothing else.

    From ABI 4 on, this also denies TCP, unless `tcp` (in a network namespace TCP leads nowhere); from ABI 6
    on, also signals to processes outside.
    """
    abi = landlock_abi()
    if not abi:
        raise JailError(errno.ENOSYS, "Landlock is not in this kernel")
    handled = _ALL_FS[min(abi, 3)]
    attributes = struct.pack(
        "<QQQ",
        handled,
        _NET_TCP if abi >= 4 and not tcp else 0,
        _SCOPE_ABSTRACT_AND_SIGNAL if abi >= 6 else 0,
    )
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _check(
        _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0), "landlock ruleset"
    )
    for paths, rights in ((readable, _EXECUTE | _READ_FILE | _READ_DIR), (writable, handled)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            allowed = rights if os.path.isdir(path) else rights & _FILE_RIGHTS
            rule = struct.pack("<Qi", allowed & handled, fd)
            _check(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock rule {path}")
            os.close(fd)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


# --- seccomp ----------------------------------------------------------------------------------------

# Numbers of system calls on (x86-64, aarch64) that no kernel needs.
_DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "io_uring_setup": (425, 425),
    "timer_create": (222, 107),
    "mq_notify": (244, 184),
    "shmget": (29, 194),
}
"""timer_create and mq_notify can send SIGCONT to a stopped process. Memory from shmget is not counted as any
process's own."""
_SOCKET, _FCNTL = (41, 198), (72, 25)
_F_SETSIG = 10
"""The fcntl command that chooses the signal for readable files, which could be SIGCONT."""
_NO_CALL = 0xFFFFFFFF
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LD_W_ABS, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_AF_UNIX = 1


def seccomp(allowed: tuple[str, ...] = ()) -> None:
    """Install a filter of system calls. A call through a foreign ABI kills the process.

    The calls in _DENIED, sockets other than Unix sockets, and choosing a signal for files fail with EPERM,
    except calls in `allowed`.
    """
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise JailError(errno.ENOSYS, f"no system-call filter for {machine}")
    column = 0 if machine == "x86_64" else 1
    denied = sorted({numbers[column] for name, numbers in _DENIED.items() if name not in allowed})
    program: list[tuple[int, int, int, int]] = [
        (_LD_W_ABS, 0, 0, 4),
        (_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        (_RET, 0, 0, _KILL),
        (_LD_W_ABS, 0, 0, 0),
    ]
    if machine == "x86_64":  # numbers from 2^30 on are the x32 ABI, a second way to every call
        program += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _EPERM)]
    for number in denied:
        program += [(_JEQ, 0, 1, number), (_RET, 0, 0, _EPERM)]
    program += [
        (_JEQ, 0, 4, _FCNTL[column]),
        (_LD_W_ABS, 0, 0, 24),
        (_JEQ, 0, 1, _F_SETSIG),
        (_RET, 0, 0, _EPERM),
        (_RET, 0, 0, _ALLOW),
        (_JEQ, 0, 3, _SOCKET[column] if "socket" not in allowed else _NO_CALL),
        (_LD_W_ABS, 0, 0, 16),
        (_JEQ, 1, 0, _AF_UNIX),
        (_RET, 0, 0, _EPERM),
        (_RET, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(_libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")
