"""What a process gives up before it runs a candidate's kernels: files, network, new processes, most system calls.

The kernels cannot leave their buffers by construction; this is the second line. Where the system
refuses a measure the others still hold.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct

ADDRESS_SPACE = 24 << 30

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000

#: System calls left to a run, by machine: memory, the open channel, clocks, and the end. None opens, names or
#: makes a file, a socket or a process (linux/unistd.h; asm/unistd_64.h).
_CALLS = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
        "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "mremap": 25, "madvise": 28, "getpid": 39,
        "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "exit": 60, "fcntl": 72, "gettimeofday": 96,
        "getrusage": 98, "sigaltstack": 131, "gettid": 186, "futex": 202, "sched_yield": 24, "clock_gettime": 228,
        "exit_group": 231, "poll": 7, "ppoll": 271, "getrandom": 318, "fstat": 5,
    },
    "aarch64": {
        "read": 63, "write": 64, "close": 57, "lseek": 62, "mmap": 222, "mprotect": 226, "munmap": 215, "brk": 214,
        "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "mremap": 216, "madvise": 233,
        "getpid": 172, "sendto": 206, "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "exit": 93, "fcntl": 25,
        "gettimeofday": 169, "getrusage": 165, "sigaltstack": 132, "gettid": 178, "futex": 98, "sched_yield": 124,
        "clock_gettime": 113, "exit_group": 94, "ppoll": 73, "getrandom": 278, "fstat": 80,
    },
}  # fmt: skip
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: A call outside the list fails with EPERM.
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1


def resident(parent: int) -> None:
    """Limits of the process that compiles and starts runs: it lives and dies with its parent."""
    _die_with(parent)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.unshare(CLONE_NEWNET) != 0:
        libc.unshare(CLONE_NEWUSER | CLONE_NEWNET)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def run(parent: int, seconds: int) -> None:
    """Limits of a process that runs one candidate's plans: that much processor time, and no way out."""
    _die_with(parent)
    resource.setrlimit(resource.RLIMIT_CPU, (1 + seconds, 2 + seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    _filter_calls()


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the line above
        os._exit(1)


def _filter_calls() -> bool:
    """Install the filter of system calls; whether the system took it."""
    program = _program(platform.machine())
    if program is None:
        return False
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count and a pointer.
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(head, len(head))
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(pointer), 0, 0)
    return answer == 0


def _program(machine: str) -> bytes | None:
    """The filter as instructions of the classic packet filter: load, compare, answer."""
    calls = _CALLS.get(machine)
    if calls is None:
        return None
    numbers = sorted(calls.values())
    load, equal, answer = 0x20, 0x15, 0x06
    code = [
        struct.pack("HBBI", load, 0, 0, 4),  # the architecture
        struct.pack("HBBI", equal, 1, 0, _AUDIT[machine]),
        struct.pack("HBBI", answer, 0, 0, _REFUSE),
        struct.pack("HBBI", load, 0, 0, 0),  # the number
    ]
    for position, number in enumerate(numbers):
        code.append(struct.pack("HBBI", equal, len(numbers) - position, 0, number))
    code += [struct.pack("HBBI", answer, 0, 0, _REFUSE), struct.pack("HBBI", answer, 0, 0, _ALLOW)]
    return b"".join(code)
