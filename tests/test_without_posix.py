"""Where there is no POSIX (Windows): what needs no processes works, and what does says so."""

import os
import subprocess
import sys
import textwrap

import pytest

# What Windows lacks, taken away before the package is imported. Other packages and the standard library have looked for
# what they need before.
PRELUDE = """
import asyncio, logging, random, selectors, socket, subprocess, tempfile, threading
import click, click.testing, cloudpickle, gymnasium, numpy, numpy.random, faulthandler
import concurrent.futures, multiprocessing, multiprocessing.connection
gymnasium.make("CartPole-v1").close()
import mmap, os, select, signal, sys, time

for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "setproctitle"):
    sys.modules[name] = None
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


os.open, mmap.mmap = folders_cannot_be_opened, Mapping
"""


def run(tmp_path, script):
    """Run a script where there is no POSIX; return what it printed."""
    file = tmp_path / "script.py"
    file.write_text(PRELUDE + textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, file], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_local_sampler_works_without_posix(tmp_path):
    printed = run(
        tmp_path,
        """
        import functools
        import streamsampler as s
        from streamsampler.testing import ScriptedAgent, ScriptedEnv

        env = functools.partial(ScriptedEnv, length=(2, 9), shape=(1_000,))
        for options in ({}, {"worker_class": s.VecWorker, "worker_args": {"n_envs": 3}}):
            with s.LocalSampler(ScriptedAgent(), env, n_workers=2, seed=3, **options) as sampler:
                batch = sampler.obtain_samples(2_000, progress=True)
                batch.save("batch.npz")
                assert s.load("batch.npz") == batch
                assert sampler.obtain_trajectories(3, agent_update={"offset": 1}).n_trajectories == 3
                assert next(iter(sampler.stream())).n_trajectories == 1
                assert sampler.obtain_exact_trajectories(2).n_trajectories == 4
        print(batch.n_timesteps)
        """,
    )
    assert int(printed) >= 2_000


def test_the_process_sampler_says_that_it_needs_linux_or_macos(tmp_path):
    run(
        tmp_path,
        """
        import streamsampler as s
        try:
            s.MultiprocessingSampler(lambda observation: 0, "CartPole-v1", n_workers=2, start_method="spawn")
        except s.errors.SamplerError as error:
            assert "needs Linux or macOS" in str(error) and "LocalSampler" in str(error), error
        else:
            raise AssertionError("it was made")
        """,
    )


COMMANDS = """
import json, os
from click.testing import CliRunner
import streamsampler
from streamsampler.cli.commands import cli

def sample(*arguments):
    result = CliRunner().invoke(cli, ["sample", "CartPole-v1", "--seed", "1", *map(str, arguments)])
    if not isinstance(result.exception, (SystemExit, type(None))):
        raise result.exception
    return result
"""


def test_the_command_works_without_posix(tmp_path):
    run(
        tmp_path,
        COMMANDS
        + """
result = sample("--num-samples", 500, "--out", "batch.npz", "--json")
assert result.exit_code == 0, result.output
told = json.loads(result.stdout)
batch = streamsampler.load("batch.npz")
assert told["timesteps"] == batch.n_timesteps >= 500 and told["workers"] == 1
assert os.listdir(".").count("batch.npz") == 1 and not [name for name in os.listdir(".") if name.endswith(".tmp")]
assert sample("--trajectories-per-worker", 2, "--workers", 0).exit_code == 0
assert CliRunner().invoke(cli, ["sample", "--help"]).exit_code == 0
""",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", 2), "needs Linux or macOS"),
        (("--start-method", "spawn"), "--start-method needs worker processes"),
        (("--step-timeout", 2, "--max-worker-memory", "2G"), "--step-timeout and --max-worker-memory need worker"),
        (("--shard-size", 100, "--out", "folder"), "needs Linux or macOS"),
    ],
    ids=str,
)
def test_what_the_command_cannot_do_without_posix_it_says(tmp_path, arguments, said):
    run(
        tmp_path,
        COMMANDS
        + f"""
result = sample("--num-samples", 500, *{arguments!r})
assert result.exit_code in (1, 2), result.output
assert {said!r} in " ".join(result.stderr.split()), result.stderr
assert not os.path.exists("folder")
""",
    )


def test_folders_of_shards_can_be_read_without_posix(tmp_path):
    folder = tmp_path / "folder"
    arguments = ["CartPole-v1", "--num-samples", "300", "--shard-size", "100", "--seed", "1", "--workers", "1"]
    subprocess.run(
        [sys.executable, "-m", "streamsampler", "sample", *arguments, "--out", folder], check=True, capture_output=True
    )
    printed = run(
        tmp_path,
        """
        import streamsampler
        print(sum(batch.n_timesteps for batch in streamsampler.load("folder")))
        """,
    )
    assert int(printed) >= 300
