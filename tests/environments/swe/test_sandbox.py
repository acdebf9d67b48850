"""What commands can do in the sandbox, and what they cannot."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.environments.swe.conftest import RIGHT

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.worlds.swe.bubblewrap import BubblewrapWorkspace, _most_pids
from turnwise.worlds.swe.filters import filter_program
from turnwise.worlds.swe.system import python_system
from turnwise.worlds.swe.watch import descendants, run_watched
from turnwise.worlds.swe.workspace import Limits


def test_commands_read_and_write_a_copy(workspace, data):
    assert workspace.run("cat README.md; echo new > a.txt; echo more >> README.md; exit 3").code == 3
    assert workspace.run("cat README.md a.txt").output == b"Shapes.\nmore\nnew\n"
    assert (data / "snapshots/shapes/1.0/README.md").read_text() == "Shapes.\n"
    assert workspace.changes() == {"README.md": b"Shapes.\nmore\n", "a.txt": b"new\n"}


def test_changes_know_what_is_gone_and_what_took_its_place(workspace):
    workspace.run(
        "rm -r tests; mkdir tests; echo x > tests/new.py; rm README.md; ln -s /etc/passwd README.md; "
        "mkfifo pipe; mkdir empty"
    )
    workspace.run("rm -r shapes && echo now a file > shapes")
    assert workspace.changes() == {
        "tests/test_shapes.py": None,
        "tests/test_other.py": None,
        "tests/new.py": b"x\n",
        "README.md": None,
        "shapes": b"now a file\n",
        "shapes/__init__.py": None,
    }


def test_a_file_that_is_written_as_it_was_has_not_changed(workspace):
    workspace.run("cat > shapes/__init__.py; touch README.md", stdin=RIGHT.encode())
    assert workspace.changes() == {}


def test_nothing_of_the_host_is_seen(workspace, data, tmp_path):
    (tmp_path / "secret").write_text("a-secret-of-it")
    seen = workspace.run(
        f"cat {tmp_path}/secret; ls /home /work /var /run /sys {data} /proc/1/root/home; env; ps -e 2>/dev/null"
    ).output
    assert b"a-secret-of-it" not in seen
    assert str(data).encode() + b":\n" not in seen
    assert b"TURNWISE_CACHE" not in seen
    assert workspace.run("touch /usr/x /x /etc/x /proc/x /dev/x; echo $?").output.endswith(b"1\n")
    number = workspace.run("ls -d /proc/[0-9]* | wc -l").output
    assert int(number) < 8
    assert workspace.run("hostname; id -u").output == b"sandbox\n1000\n"


def test_of_a_python_of_its_own_no_other_packages_are_seen(tmp_path, monkeypatch):
    """conda's folder has packages in pkgs and envs as well."""
    for name in ("bin", "include", "lib/python3.11/site-packages", "pkgs/boltons-1/site-packages", "envs/a/lib"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    system = python_system()
    assert {name for name in system.mounts if Path(name).is_relative_to(tmp_path)} == {
        str(tmp_path / name) for name in ("bin", "include", "lib")
    }
    assert str(tmp_path / "lib/python3.11/site-packages") in system.covered


READ_PROC = """
import os
for folder, folders, names in os.walk("/proc"):
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
                found = file.read(1 << 20)
        except OSError:
            continue
        if found and b"sentinel" + b"-of-the-trainer" in found:
            print("FOUND", path)
print("read")
"""

TRAINER = """
import mmap, os, sys
from pathlib import Path
from turnwise.worlds.swe.bubblewrap import BubblewrapWorkspace
from turnwise.worlds.swe.system import python_system
from turnwise.worlds.swe.workspace import Limits

with open("sentinel-of-the-trainer", "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
for path in ("environ", "cmdline", "maps"):
    assert b"sentinel-of-the-trainer" in Path("/proc/self", path).read_bytes(), path
workspace = BubblewrapWorkspace(Path("snapshot"), python_system(), Limits())
sys.stdout.buffer.write(workspace.run("python3 -", stdin=sys.stdin.buffer.read()).output)
workspace.close()
"""


def test_no_file_of_proc_holds_a_secret_of_the_trainer(sandboxed, tmp_path):
    """The trainer has a secret in its environment, its arguments and the names of what it maps into memory (S1)."""
    (tmp_path / "sentinel-of-the-trainer").write_text("mapped")
    (tmp_path / "snapshot").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, "--token=sentinel-of-the-trainer"],
        input=READ_PROC,
        env={**os.environ, "HF_TOKEN": "sentinel-of-the-trainer"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "read\n"


OPEN_FOR_WRITING = """
import os, stat
for top in ("/proc", "/sys"):
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in ("fd", "map_files", "ns", "fdinfo")]
        for name in names:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    print("WRITABLE", path)
            except OSError:
                pass
print("tried")
"""


def test_no_file_of_proc_or_sys_can_be_written(workspace):
    """As root outside, most of /proc/sys was: the kernel asks who one is there, not for capabilities (S2)."""
    before = Path("/proc/sys/vm/overcommit_memory").read_text()
    assert workspace.run("python3 -", stdin=OPEN_FOR_WRITING.encode()).output == b"tried\n"
    workspace.run("echo 2 > /proc/sys/vm/overcommit_memory")
    assert Path("/proc/sys/vm/overcommit_memory").read_text() == before


def test_the_snapshot_and_its_hidden_tests_cannot_be_reached(workspace):
    workspace.run("rm tests/test_shapes.py")
    found = workspace.run(
        "find / -name test_shapes.py -not -path '/proc/*' 2>/dev/null; find /proc -name test_shapes.py 2>/dev/null"
    ).output
    assert found == b""
    assert workspace.run("mount -t overlay overlay -o lowerdir=/ /tmp; unshare -Urm true; echo $?").output.endswith(
        b"1\n"
    )


def test_there_is_no_network(workspace):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        reach = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 1); print('reached')\n"
            "except OSError as e: print('not', e)"
        )
        said = workspace.run("python3 -", stdin=reach.encode()).output
        assert said.startswith(b"not")
        with pytest.raises(TimeoutError):
            server.accept()
    interfaces = workspace.run(
        "cat /proc/net/dev | wc -l; python3 -c 'import socket; print(socket.if_nameindex())'"
    ).output
    assert interfaces == b"3\n[(1, 'lo')]\n"


def test_a_command_ends_with_its_time_and_leaves_nothing_running(workspace):
    begun = time.monotonic()
    outcome = workspace.run("echo begun; setsid sleep 1000 & sleep 1000", seconds=0.7)
    assert (outcome.stopped_by, outcome.output, outcome.code) == ("time", b"begun\n", -9)
    assert time.monotonic() - begun < 10
    workspace.run("setsid sleep 1000 > /dev/null 2>&1 & exit 0")
    assert workspace.run("ls -d /proc/[0-9]* | wc -l").output.strip() in (b"3", b"4", b"5")
    assert not [pid for pid in descendants(os.getpid()) if "sleep" in _name(pid)]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def test_a_process_namespace_bounds_what_the_watch_has_not_seen(workspace):
    if not _most_pids(1):
        pytest.skip("this kernel bounds the processes of the whole machine only")
    spawn = "i=0; while sleep 20 & do i=$((i+1)); echo $i; [ $i -lt 3000 ] || exit; done"
    with workspace._begin() as (begin, files):
        command = [*begin, "sh", "-c", spawn]
        outcome = run_watched(command, stdin=b"", seconds=20, output_chars=100_000, variables={}, pass_fds=files)
    counted = [int(line) for line in outcome.output.split() if line.isdigit()]
    assert 64 <= max(counted) <= 600
    assert workspace.run("echo alive").output == b"alive\n"


def test_a_fork_bomb_is_stopped(workspace):
    outcome = workspace.run("bomb() { bomb | bomb & }; bomb; sleep 20", seconds=20)
    assert outcome.stopped_by == "processes" or b"fork" in outcome.output  # the kernel's own limit binds all but root
    assert len(workspace._processes()) == 2  # at once, not a moment later: the next command needs its share of them
    assert workspace.run("echo alive").output == b"alive\n"


def test_no_command_leaves_anything_behind_however_many_there_are(workspace):
    """Each left a zombie once, and after 224 of them none would start."""
    for command, seconds in (
        ("true", 5),
        ("sleep 100 &", 5),
        ("setsid sleep 100 > /dev/null & exit 3", 5),
        ("sleep 100", 0.05),
    ) * 5:
        workspace.run(command, seconds=seconds)
        assert len(workspace._processes()) == 2, command
    for _ in range(300):
        assert workspace.run("echo alive").output == b"alive\n"


def test_memory_is_limited_for_one_process_and_for_all(workspace):
    hog = workspace.run("python3 -c 'x = bytearray(2000 * 2**20)'")
    assert hog.code != 0
    assert b"MemoryError" in hog.output or hog.stopped_by == "memory"
    each = "python3 -c 'import time; x = bytearray(b\"a\") * (200 * 2**20); time.sleep(15)' &"
    assert workspace.run(f"{each} {each} {each} {each} wait").stopped_by == "memory"


HIDDEN_MEMORY = {
    "memfd": "f = os.memfd_create('x')\nos.ftruncate(f, 1440 << 20)\nm = mmap.mmap(f, 1440 << 20)",
    "a segment of System V": (
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "if c.shmget(0, 1440 << 20, 0o1600) < 0: raise OSError(ctypes.get_errno(), 'shmget')"
    ),
    "shared memory without a file": "mmap.mmap(-1, 100 << 20)",
    "shared memory of /dev/zero": "mmap.mmap(open('/dev/zero', 'r+b').fileno(), 100 << 20)",
    "a queue of messages": (
        "c = ctypes.CDLL(None, use_errno=True)\nif c.msgget(0, 0o1600) < 0: raise OSError(ctypes.get_errno(), 'msgget')"
    ),
    "another family of sockets": "socket.socket(38, socket.SOCK_SEQPACKET)",
}


@pytest.mark.parametrize("name", HIDDEN_MEMORY)
def test_memory_that_no_process_shows_is_refused(workspace, name):
    """All of these passed the limit: 1,440 MB under 256 (S4)."""
    code = f"import ctypes, mmap, os, socket\ntry:\n    {HIDDEN_MEMORY[name].replace(chr(10), chr(10) + '    ')}\n"
    outcome = workspace.run("python3 -", stdin=(code + "    print('had')\nexcept OSError: print('refused')").encode())
    assert outcome.output == b"refused\n", outcome


FULL_SOCKETS = """
import socket, sys, time
kept = []
server = socket.create_server(("127.0.0.1", 0))
while len(kept) < 900:
    if sys.argv[1] == "unix":
        one, other = socket.socketpair()
    else:
        one, other = socket.create_connection(server.getsockname()), server.accept()[0]
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    one.setblocking(False)
    kept += [one, other]
    try:
        while True:
            one.send(b"x" * 65536)
    except OSError:
        pass
time.sleep(20)
"""


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_buffers_of_sockets_count(sandboxed, data, system, family):
    workspace = BubblewrapWorkspace(data / "snapshots/shapes/1.0", system, Limits(memory_mb=128, seconds=20))
    outcome = workspace.run(f"python3 - {family}", stdin=FULL_SOCKETS.encode())
    workspace.close()
    assert outcome.stopped_by == "memory"


def test_programs_that_need_sockets_and_pipes_run(workspace):
    code = "import asyncio, multiprocessing\nasyncio.run(asyncio.sleep(0))\nmultiprocessing.Queue().put(1)\nprint('ok')"
    assert workspace.run("python3 -", stdin=code.encode()).output == b"ok\n"
    assert workspace.run("head -c 3 /dev/zero | od -An -c").output.split() == [b"\\0"] * 3


def test_the_filter_is_known_for_two_machines():
    programs = {machine: filter_program(machine) for machine in ("x86_64", "aarch64", "riscv64")}
    assert programs["riscv64"] is None
    assert programs["x86_64"] != programs["aarch64"]
    for program in (programs["x86_64"], programs["aarch64"]):
        assert program is not None
        lines = list(struct.iter_unpack("<HBBI", program))
        assert lines[-1][0] == 0x06  # every path ends in an answer
        for place, (code, yes, no, _) in enumerate(lines):
            assert code not in (0x15, 0x35, 0x45) or place + 1 + max(yes, no) < len(lines)


def test_a_repository_can_be_read_only(workspace):
    outcome = workspace.run("echo x > README.md; rm README.md; echo x > /scratch/y && cat README.md", read_only=True)
    assert outcome.output.endswith(b"Shapes.\n")
    assert workspace.changes() == {}


def test_the_disk_is_limited_wherever_one_writes(workspace):
    for place in ("/repo", "/scratch", "/tmp", "/dev/shm"):
        filled = workspace.run(
            f"i=0; while head -c 4000000 /dev/zero > {place}/x$i; do i=$((i+1)); done; "
            f"du -sm {place} | cut -f1; rm {place}/x*"
        )
        assert int(filled.output.split()[-1]) <= 17, place  # rounded up, with folders
    many = workspace.run("i=0; while true > f$i; do i=$((i+1)); done 2> /dev/null; ls | wc -l; rm f*")
    assert int(many.output.split()[-1]) < 4000
    assert workspace.run("echo x > y && cat y").output == b"x\n"


def test_output_is_cut_and_read_to_its_end(workspace):
    outcome = workspace.run("head -c 30000000 /dev/zero; echo end >&2; exit 5", output_chars=1000)
    assert (outcome.code, len(outcome.output)) == (5, 1000)


def test_standard_input_may_be_long_and_unread(workspace):
    sent = os.urandom(3_000_000)
    assert workspace.run("cat", stdin=sent, output_chars=4_000_000).output == sent
    assert workspace.run("exit 4", stdin=sent).code == 4


def test_killing_everything_harms_the_command_alone(workspace):
    workspace.run("kill -9 -1; kill -9 1; kill -9 $PPID; kill -TERM 0")
    assert workspace.run("echo alive").output == b"alive\n"


def test_a_closed_workspace_says_so_and_leaves_no_process(sandboxed, data, system):
    workspace = BubblewrapWorkspace(data / "snapshots/shapes/1.0", system, Limits())
    keeper = workspace._keeper.pid
    workspace.close()
    workspace.close()
    assert not Path(f"/proc/{keeper}").exists()
    with pytest.raises(EnvironmentFault, match="closed"):
        workspace.run("true")
    lost = BubblewrapWorkspace(data / "snapshots/shapes/1.0", system, Limits())
    keeper = lost._keeper.pid
    del lost
    assert not Path(f"/proc/{keeper}").exists()


@pytest.mark.parametrize("number", [2, 8])
def test_workspaces_in_parallel_do_not_meet(sandboxed, data, system, number):
    together = threading.Barrier(number)

    def work(mine: int) -> tuple[bytes, dict]:
        workspace = BubblewrapWorkspace(data / "snapshots/shapes/1.0", system, Limits())
        together.wait(60)
        workspace.run(f"echo {mine} > README.md; echo {mine} > /tmp/mine")
        together.wait(60)
        seen, changed = workspace.run("cat README.md /tmp/mine").output, workspace.changes()
        workspace.close()
        return seen, changed

    with ThreadPoolExecutor(number) as pool:
        for mine, (seen, changed) in enumerate(pool.map(work, range(number))):
            assert seen == f"{mine}\n{mine}\n".encode()
            assert changed == {"README.md": f"{mine}\n".encode()}


def test_what_is_missing_is_said(monkeypatch, tmp_path, system):
    from turnwise.worlds.swe import bubblewrap

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs the program 'bwrap'.*install your system's package 'bubblewrap'"):
        bubblewrap.check_bubblewrap()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="which overlayfs cannot take"):
        BubblewrapWorkspace(tmp_path / "a:b", system, Limits())


@pytest.mark.parametrize(("user", "said"), [(0, True), (1000, False)])
def test_as_root_it_says_what_cannot_be_promised(sandboxed, monkeypatch, capsys, user, said):
    from turnwise.worlds.swe import bubblewrap

    bubblewrap._try_once.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: user)
    bubblewrap.check_bubblewrap()
    bubblewrap.check_bubblewrap()
    assert capsys.readouterr().err.count("swe runs as root") == said
