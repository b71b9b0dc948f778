"""Takes away what Windows lacks, from every Python process whose PYTHONPATH has this folder, before anything else."""

import faulthandler
import functools
import importlib
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import time
import types

# Other packages and the standard library look for what they need when they are imported. (Python's own
# `multiprocessing` works on Windows by other means; here it keeps those of this system.)
LOADED = (
    "asyncio logging random subprocess tempfile threading concurrent.futures click.testing cloudpickle numpy.random "
    "multiprocessing.connection multiprocessing.popen_spawn_posix multiprocessing.queues multiprocessing.sharedctypes "
    "multiprocessing.resource_tracker multiprocessing.synchronize ctypes.util"
)
HARNESS = "_pytest.tmpdir _pytest.pathlib _pytest.faulthandler _pytest.capture"
for name in f"{LOADED} {HARNESS if 'pytest' in sys.orig_argv else ''}".split():
    importlib.import_module(name)
importlib.import_module("gymnasium").make("CartPole-v1").close()
WHOLE = (os, signal, select, selectors, socket, mmap, time)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("multiprocessing", "_pytest", "ctypes"):
        for whole in WHOLE:
            if vars(module).get(whole.__name__) is whole:
                copy = types.ModuleType(whole.__name__)
                vars(copy).update(vars(whole))
                setattr(module, whole.__name__, copy)
                if whole is socket:
                    vars(copy)["socketpair"] = functools.partial(socket.socketpair, socket.AF_UNIX)

for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "setproctitle"):
    sys.modules[name] = None  # type: ignore[assignment]
ABSENT = {
    os: (
        "fork forkpty register_at_fork memfd_create pidfd_open posix_fallocate posix_fadvise pread preadv "
        "pwrite pwritev sched_getaffinity sched_setaffinity sched_yield killpg setsid getsid setpgid getpgid "
        "getpgrp setpgrp tcsetpgrp wait wait3 wait4 waitid WNOHANG WIFEXITED WIFSIGNALED WTERMSIG WEXITSTATUS "
        "WUNTRACED pipe2 mkfifo mknod nice uname sysconf statvfs fstatvfs fchmod fchown chown lchown chroot "
        "sync fdatasync getuid geteuid getgid getloadavg set_blocking get_blocking openpty login_tty readv "
        "writev sendfile O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_ASYNC O_SYNC O_DSYNC splice getxattr "
        "listxattr eventfd ctermid fchdir lockf "
    ),
    signal: (
        "SIGKILL SIGSTOP SIGCONT SIGTSTP SIGUSR1 SIGUSR2 SIGCHLD SIGHUP SIGALRM SIGPIPE SIGQUIT SIGIO SIGURG "
        "SIGWINCH SIG_BLOCK SIG_UNBLOCK SIG_SETMASK pthread_sigmask pthread_kill sigwait sigwaitinfo "
        "sigtimedwait sigpending alarm setitimer getitimer ITIMER_REAL pause siginterrupt pidfd_send_signal "
        "valid_signals "
    ),
    select: "poll epoll POLLIN POLLOUT POLLHUP POLLERR EPOLLIN",
    selectors: "PollSelector EpollSelector",
    socket: "socketpair AF_UNIX send_fds recv_fds sendmsg MSG_CMSG_CLOEXEC SCM_RIGHTS",
    mmap: "MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS MAP_ANON PROT_READ PROT_WRITE MADV_HUGEPAGE MADV_DONTNEED",
    faulthandler: "register unregister",
    time: "clock_gettime pthread_getcpuclockid",
}
for module, names in ABSENT.items():
    for name in names.split():
        vars(module).pop(name, None)


def folders_cannot_be_opened(path, flags, *rest, _open=os.open, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return _open(path, flags, *rest, **options)


class Mapping(mmap.mmap):
    def __new__(cls, fileno, length, tagname=None, access=mmap.ACCESS_DEFAULT, offset=0):
        return super().__new__(cls, fileno, length, access=access, offset=offset)


os.open, mmap.mmap = folders_cannot_be_opened, Mapping  # type: ignore[assignment, misc]
