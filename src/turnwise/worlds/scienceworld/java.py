"""Run ScienceWorld in Java: one Java process per Python process, started on first use and shared by all environments.

Each environment is an object in that process. Java's listing order of a room depends on memory addresses;
`-XX:hashCode=2` removes this dependence, so that equal responses lead to equal observations.
"""

import atexit
import contextlib
import os
import threading
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO, Any

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.needs import needed, needed_program

EXTRA = "scienceworld"
"""Extra of turnwise that has what is needed here."""

FIXED_ORDER = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")

_gateways: dict[int, Any] = {}
"""Gateway by process id, because a fork must not use its parent's."""


def simulator(heap_mb: int) -> Any:
    """Make a simulator in the Java process, which starts if it is not running.

    Args:
        heap_mb: Memory that a newly started Java process may use for its environments (MiB).

    Raises:
        ConfigError: The package or Java is missing, or Java does not start.
    """
    gateway = _gateways.get(os.getpid())
    if gateway is None or gateway.java_process.poll() is not None:
        stop()
        gateway = _gateways[os.getpid()] = _start(heap_mb)
    return gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()


def running() -> Any:
    """Return the Java process as a `Popen`; None if none was started."""
    gateway = _gateways.get(os.getpid())
    return gateway and gateway.java_process


def stop() -> None:
    """End the Java process and its environments; the next environment starts another process."""
    gateway = _gateways.pop(os.getpid(), None)
    if gateway is None:
        return
    with contextlib.suppress(Exception):  # it may be dead, and its connections with it
        gateway.shutdown()
    with contextlib.suppress(Exception):
        gateway.close()  # otherwise objects that are collected later use a closed connection
    process = gateway.java_process
    process.kill()
    process.wait()
    process.stdin.close()


def fault(error: Exception, where: str) -> EnvironmentFault:
    """Make the fault of a failed call into Java."""
    process = running()
    if process is not None:
        with contextlib.suppress(Exception):
            process.wait(1.0)  # a process that was killed is not gone at once
    code = None if process is None else process.poll()
    if code is not None:
        stop()  # closes its connections
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}" if code is None else f"exit code {code}"
    return EnvironmentFault(f"{where}: the Java process {'failed' if code is None else 'ended'} ({what})")


def _start(heap_mb: int) -> Any:
    constants = needed("scienceworld.constants", extra=EXTRA, by="scienceworld")
    py4j = needed("py4j.java_gateway", extra=EXTRA, by="scienceworld")
    java = needed_program("java", "JAVA_HOME", "bin/java", by="scienceworld", hint="install Java 8 or newer")
    # py4j's own launcher leaves files open and hides why Java fails
    command = [java, f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", *FIXED_ORDER]
    command += ["-classpath", os.pathsep.join((py4j.find_jar_path(), constants.JAR_PATH))]
    # the pipe to its input breaks whenever this process ends
    command += ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    streams = {"stdin": PIPE, "stdout": PIPE, "stderr": DEVNULL, "text": True}
    process = Popen(command, **streams, cwd=constants.BASEPATH, start_new_session=True)  # Ctrl-C is for the trainer
    assert process.stdin
    assert process.stdout
    port = process.stdout.readline().strip()
    if not port.isdecimal():
        with contextlib.suppress(TimeoutExpired):
            process.wait(5.0)  # it may print more
        process.kill()
        cause = " ".join([port, *process.stdout.read().split()])[:300]  # communicate() would miss what is buffered
        process.communicate()
        raise ConfigError(f"scienceworld: {java} does not start with environment.options.heap_mb={heap_mb} ({cause})")
    threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
    parameters = py4j.GatewayParameters(auto_field=True, port=int(port))
    return py4j.JavaGateway(gateway_parameters=parameters, java_process=process)


def _drain(stream: IO[str]) -> None:
    """Discard Java's output, so that Java does not block."""
    with stream:
        for _ in stream:
            pass


atexit.register(stop)
